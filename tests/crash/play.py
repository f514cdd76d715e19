"""One run, played: processes started, killed as planned and started again, until the server says that it is over."""

import json
import multiprocessing
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import yaml

from crash import child
from crash.plan import CLIENTS, SCENARIO, Fate, Plan, fate
from crash.tap import Said, Tap
from support.processes import free_port
from unstale_client.net.clock import now_s
from unstale_client.net.wakeable_queue import WakeableQueue

STUCK_S = 60.0  # without a new version, though everybody is there: the run has failed
GOODBYE_S = 10.0  # clients that have not heard of the end are told to go
LINES_SHOWN = 12  # of each log, of a run that failed


Fates = Callable[[Plan, str, str, int], Fate | None]


class FailureError(Exception):
    """Something that must hold does not."""


@dataclass(slots=True, kw_only=True)
class Death:
    """A process that died. version, at_s: when, since the run began. next_s: how long until the next version, None for
    a run that was over. polite: it was only asked to end."""

    process: str
    life: int
    how: str
    version: int
    at_s: float
    next_s: float | None = None
    polite: bool = False


@dataclass(slots=True, kw_only=True)
class Played:
    """What is left of a run. outcome: what the server told at its end."""

    folder: Path
    said: Said
    outcome: dict[str, Any]
    deaths: list[Death]


@dataclass(slots=True)
class _Actor:
    """A command that is started again and again. due_s: when it is to be killed, None for not yet known or never."""

    name: str
    kind: str
    arguments: list[str]
    log: Path
    life: int = -1
    process: ForkServerProcess | None = None
    fate: Fate | None = None
    from_version: int = 0
    due_s: float | None = None
    killed: bool = False


@dataclass(slots=True)
class _Table:
    deaths: list[Death] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(not death.polite for death in self.deaths)

    def made(self, version: int, at_s: float) -> None:
        for death in self.deaths:
            if death.next_s is None and death.version < version:
                death.next_s = at_s - death.at_s


class Play:
    """One run in a folder of its own. Use `run`, once.

    fates: how a process dies, given the plan, its kind, its name and how many of it were there before; None for not at
    all. hasty: the server makes a mistake that must be found.
    """

    def __init__(self, plan: Plan, folder: Path, *, fates: Fates = fate, hasty: bool = False) -> None:
        self._plan = plan
        self._fates = fates
        self._hasty = hasty
        self._folder = folder
        self._table = _Table()
        self._version = 0
        self._started_s = self._moved_s = now_s()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(child.PRELOADED)
        self._actors: list[_Actor] = []

    def run(self) -> Played:
        """Play it to its end. Raises FailureError when it does not come to one."""
        with ExitStack() as stack:
            self._versions: WakeableQueue[int] = WakeableQueue()
            stack.callback(self._versions.close)
            server_port, injector_port = free_port(), free_port()
            tap = stack.enter_context(Tap(server_port, self._versions.post))
            self._cast(self._configure(server_port, tap.port, injector_port))
            stack.callback(self._end_all)
            self._warm_up()
            self._started_s = self._moved_s = now_s()
            for actor in self._actors:
                self._start(actor)
            server = self._actors[0]
            while server.process is not None:
                self._turn()
            self._see_off()
        return Played(folder=self._folder, said=tap.said, outcome=self._outcome(server), deaths=self._table.deaths)

    @property
    def deaths(self) -> list[Death]:
        """Those that have happened."""
        return self._table.deaths

    def logs(self) -> str:
        """The ends of what the processes wrote."""
        return "\n".join(
            f"--- {actor.name}\n" + "".join(actor.log.read_text().splitlines(keepends=True)[-LINES_SHOWN:])
            for actor in self._actors
            if actor.log.exists()
        )

    # --- before ---

    def _warm_up(self) -> None:
        first = self._context.Process(target=child.nothing)
        first.start()
        first.join()

    def _configure(self, server_port: int, tap_port: int, injector_port: int) -> Path:
        scenario, config = self._folder / "scenario.yaml", self._folder / "config.yaml"
        scenario.write_text(yaml.safe_dump(SCENARIO))
        settings = {
            key: dict(value) if isinstance(value, dict) else value for key, value in self._plan.settings.items()
        }
        address = "tcp://127.0.0.1:{}".format
        settings["server"] = {
            "address": address(server_port),
            "http_address": None,
            "heartbeat_s": 0.05,
            "lease_s": 2.0,
            "retry_s": 0.1,
            "linger_s": 1.0,
        }
        settings["run"]["directory"] = str(self._folder / "run")
        settings["client"] |= {"server": address(injector_port), "directory": str(self._folder / "clients")}
        settings["injector"] = {"address": address(injector_port), "http_address": None, "upstream": address(tap_port)}
        settings["scenario"] = {"name": str(scenario)}
        config.write_text(yaml.safe_dump(settings))
        return config

    def _cast(self, config: Path) -> None:
        common = ["--config", str(config)]
        self._add("server", "server", ["server", *common, "--json"])
        self._add("injector", "inject", ["inject", *common])
        each = CLIENTS // self._plan.client_processes
        for first in range(0, CLIENTS, each):
            share = ["--first", str(first), "--count", str(each)]
            self._add(f"client {first}", "client", ["client", *common, *share])

    def _add(self, name: str, kind: str, arguments: list[str]) -> None:
        self._actors.append(_Actor(name, kind, arguments, self._folder / f"{name.replace(' ', '-')}.log"))

    # --- while it goes on ---

    def _start(self, actor: _Actor) -> None:
        actor.life += 1
        actor.killed = False
        actor.from_version = self._version
        doomed = sum(one.fate is not None for one in self._actors)
        actor.fate = None
        if self._table.kills + doomed < self._plan.kills:
            actor.fate = self._fates(self._plan, actor.kind, actor.name, actor.life)
        due = actor.fate
        actor.due_s = now_s() + due.wait_s if due is not None and due.rounds is None else None
        dies_at = None if due is None or due.place is None else (due.place, due.call)
        actor.process = self._context.Process(
            target=child.main,
            args=(actor.arguments, actor.log, self._folder / "kept", dies_at),
            kwargs={"hasty": self._hasty},
            name=actor.name,
        )
        actor.process.start()

    def _turn(self) -> None:
        alive = {actor.process.sentinel: actor for actor in self._actors if actor.process is not None}
        dues_s = [actor.due_s for actor in alive.values() if actor.due_s is not None]
        until_s = min([self._moved_s + STUCK_S, *dues_s])
        ready = wait([*alive, self._versions.fileno()], max(0.0, until_s - now_s()))
        if self._versions.fileno() in ready:
            for version in self._versions.drain():
                self._made(version)
        at_s = now_s()
        for sentinel, actor in alive.items():
            if sentinel in ready:
                self._ended(actor)
            elif actor.due_s is not None and at_s >= actor.due_s and not actor.killed:
                assert actor.process is not None
                assert actor.fate is not None
                end = actor.process.terminate if actor.fate.polite else actor.process.kill
                end()
                actor.killed, actor.due_s = True, None
        if at_s - self._moved_s >= STUCK_S:
            raise FailureError(f"nothing has moved for {STUCK_S:g} s at version {self._version}")

    def _made(self, version: int) -> None:
        if version <= self._version:
            return
        self._version, self._moved_s = version, now_s()
        self._table.made(version, self._moved_s - self._started_s)
        for actor in self._actors:
            if actor.fate is None or actor.fate.rounds is None or actor.due_s is not None or actor.killed:
                continue
            if version >= actor.from_version + actor.fate.rounds:
                actor.due_s = self._moved_s + actor.fate.wait_s

    def _ended(self, actor: _Actor) -> None:
        assert actor.process is not None
        actor.process.join()
        code = actor.process.exitcode
        actor.process.close()
        actor.process = None
        if code == -signal.SIGKILL or self._was_asked_to(actor, code):
            assert actor.fate is not None
            how = str(actor.fate) if actor.killed else f"{actor.fate.place}, call {actor.fate.call}"
            self._table.deaths.append(
                Death(
                    process=actor.name,
                    life=actor.life,
                    how=how,
                    version=self._version,
                    at_s=now_s() - self._started_s,
                    polite=code != -signal.SIGKILL,
                )
            )
            actor.fate = None
            self._start(actor)
        elif code != 0:
            raise FailureError(f"{actor.name} ended by itself with code {code}")
        else:
            actor.fate = None

    def _was_asked_to(self, actor: _Actor, code: int | None) -> bool:
        """Whether a process has ended because it was asked to. A run may have ended meanwhile."""
        if actor.fate is None or not actor.fate.polite:
            return False
        if code == -signal.SIGTERM:  # it had not begun yet
            return True
        return code == 0 and (actor.kind != "server" or self._outcome(actor)["reason"] == "shutdown")

    # --- after ---

    def _see_off(self) -> None:
        """The server has ended well. Clients that have not heard of it never will; the injector ends when told to."""
        for told in (False, True):
            waits_until_s = now_s() + (STUCK_S if told else GOODBYE_S)
            for actor in self._actors:
                if actor.process is None:
                    continue
                if told or actor.kind == "inject":
                    actor.process.terminate()
                actor.process.join(max(0.0, waits_until_s - now_s()))
                code = actor.process.exitcode
                if code is not None:
                    actor.process = None
                    if code not in (0, -signal.SIGKILL, -signal.SIGTERM):
                        raise FailureError(f"{actor.name} ended by itself with code {code}")
                elif told:
                    raise FailureError(f"{actor.name} does not end")

    def _end_all(self) -> None:
        for actor in self._actors:
            if actor.process is not None:
                actor.process.kill()
                actor.process.join()

    def _outcome(self, server: _Actor) -> dict[str, Any]:
        facts = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
        outcome: dict[str, Any] = facts[-1]
        if outcome["event"] != "finished":
            raise FailureError(f"the server has ended, and the last it said is {outcome}")
        return outcome
