"""Execution of one run: processes are started, killed as planned and restarted until the server finishes."""

import json
import multiprocessing
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil
import yaml

from crash import child
from crash.plan import CLIENTS, SCENARIO, Fate, Plan, fate
from crash.tap import ServerMessages, Tap
from support.processes import free_port
from unstale_client.net.clock import now_s
from unstale_client.net.wakeable_queue import WakeableQueue

STUCK_S = 60.0  # without a new version the run has failed
GOODBYE_S = 10.0  # after it, clients that missed the end are terminated
GATEWAY = "gateway"  # name of the gateways of the server, which are aborted beside the planned kills
LINES_SHOWN = 12  # of each log of a failed run


Fates = Callable[[Plan, str, str, int], Fate | None]


class FailureError(Exception):
    """A failed check."""


@dataclass(slots=True, kw_only=True)
class Death:
    """A process that died. version, at_s: time since the start of the run. next_s: until the next version, None at the
    end of a run. polite: ended by SIGTERM."""

    process: str
    life: int
    how: str
    version: int
    at_s: float
    next_s: float | None = None
    polite: bool = False

    @property
    def is_kill(self) -> bool:
        """Whether it counts as one of the planned kills."""
        return not self.polite and self.process != GATEWAY


@dataclass(slots=True, kw_only=True)
class Played:
    """The remains of a run. outcome: the server's last line."""

    folder: Path
    sent: ServerMessages
    outcome: dict[str, Any]
    deaths: list[Death]


@dataclass(slots=True)
class _Command:
    """A restarted command. due_s: time of its kill, None for unknown or never."""

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
        return sum(death.is_kill for death in self.deaths)

    def made(self, version: int, at_s: float) -> None:
        for death in self.deaths:
            if death.next_s is None and death.version < version:
                death.next_s = at_s - death.at_s


class Play:
    """One run in a folder of its own. Use `run`, once.

    fates: how a process dies, by plan, kind, name and number of previous starts; None for no death. early_ack: the
    server makes an error that the checks must detect.
    """

    def __init__(self, plan: Plan, folder: Path, *, fates: Fates = fate, early_ack: bool = False) -> None:
        self._plan = plan
        self._fates = fates
        self._early_ack = early_ack
        self._folder = folder
        self._table = _Table()
        self._version = 0
        self._started_s = self._moved_s = now_s()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(child.PRELOADED)
        self._commands: list[_Command] = []
        self._gateway_deaths = list(plan.gateway_deaths)

    def run(self) -> Played:
        """Execute it to its end. Raises FailureError without one."""
        with ExitStack() as stack:
            self._versions: WakeableQueue[int] = WakeableQueue()
            stack.callback(self._versions.close)
            server_port, injector_port = free_port(), free_port()
            tap = stack.enter_context(Tap(server_port, self._versions.post))
            self._add_commands(self._configure(server_port, tap.port, injector_port))
            stack.callback(self._end_all)
            self._warm_up()
            self._started_s = self._moved_s = now_s()
            for command in self._commands:
                self._start(command)
            server = self._commands[0]
            while server.process is not None:
                self._step()
            self._end_others()
        return Played(folder=self._folder, sent=tap.sent, outcome=self._outcome(server), deaths=self._table.deaths)

    @property
    def deaths(self) -> list[Death]:
        """The deaths up to now."""
        return self._table.deaths

    def logs(self) -> str:
        """The last lines of the processes' output."""
        return "\n".join(
            f"--- {command.name}\n" + "".join(command.log.read_text().splitlines(keepends=True)[-LINES_SHOWN:])
            for command in self._commands
            if command.log.exists()
        )

    # --- start ---

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
        settings["server"] |= {
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

    def _add_commands(self, config: Path) -> None:
        common = ["--config", str(config)]
        self._add("server", "server", ["server", *common, "--json"])
        self._add("injector", "inject", ["inject", *common])
        each = CLIENTS // self._plan.client_processes
        for first in range(0, CLIENTS, each):
            share = ["--first", str(first), "--count", str(each)]
            self._add(f"client {first}", "client", ["client", *common, *share])

    def _add(self, name: str, kind: str, arguments: list[str]) -> None:
        self._commands.append(_Command(name, kind, arguments, self._folder / f"{name.replace(' ', '-')}.log"))

    # --- execution ---

    def _start(self, command: _Command) -> None:
        command.life += 1
        command.killed = False
        command.from_version = self._version
        doomed = sum(one.fate is not None for one in self._commands)
        command.fate = None
        if self._table.kills + doomed < self._plan.kills:
            command.fate = self._fates(self._plan, command.kind, command.name, command.life)
        due = command.fate
        command.due_s = now_s() + due.wait_s if due is not None and due.rounds is None else None
        dies_at = None if due is None or due.place is None else (due.place, due.call)
        command.process = self._context.Process(
            target=child.main,
            args=(command.arguments, command.log, self._folder / "kept", dies_at),
            kwargs={"early_ack": self._early_ack},
            name=command.name,
        )
        command.process.start()

    def _step(self) -> None:
        alive = {command.process.sentinel: command for command in self._commands if command.process is not None}
        dues_s = [command.due_s for command in alive.values() if command.due_s is not None]
        until_s = min([self._moved_s + STUCK_S, *dues_s])
        ready = wait([*alive, self._versions.fileno()], max(0.0, until_s - now_s()))
        if self._versions.fileno() in ready:
            for version in self._versions.drain():
                self._made(version)
        at_s = now_s()
        for sentinel, command in alive.items():
            if sentinel in ready:
                self._ended(command)
            elif command.due_s is not None and at_s >= command.due_s and not command.killed:
                assert command.process is not None
                assert command.fate is not None
                end = command.process.terminate if command.fate.polite else command.process.kill
                end()
                command.killed, command.due_s = True, None
        if at_s - self._moved_s >= STUCK_S:
            raise FailureError(f"no new version for {STUCK_S:g} s at version {self._version}")

    def _made(self, version: int) -> None:
        if version <= self._version:
            return
        self._version, self._moved_s = version, now_s()
        self._table.made(version, self._moved_s - self._started_s)
        if self._gateway_deaths and version >= self._gateway_deaths[0]:
            self._abort_gateway()
        for command in self._commands:
            if command.fate is None or command.fate.rounds is None or command.due_s is not None or command.killed:
                continue
            if version >= command.from_version + command.fate.rounds:
                command.due_s = self._moved_s + command.fate.wait_s

    def _abort_gateway(self) -> None:
        """Abort a gateway of the server, as libzmq does, if the server has one now."""
        server = self._commands[0].process
        with suppress(psutil.Error):  # the server has died meanwhile
            children = [] if server is None or server.pid is None else psutil.Process(server.pid).children()
            gateways = [child for child in children if "unstale.gateway.process" in child.cmdline()]
            if gateways:
                gateways[self._version % len(gateways)].send_signal(signal.SIGABRT)
                del self._gateway_deaths[0]
                at_s = now_s() - self._started_s
                self._table.deaths.append(
                    Death(process=GATEWAY, life=0, how="aborted", version=self._version, at_s=at_s)
                )

    def _ended(self, command: _Command) -> None:
        assert command.process is not None
        command.process.join()
        code = command.process.exitcode
        command.process.close()
        command.process = None
        if code == -signal.SIGKILL or self._ended_by_request(command, code):
            assert command.fate is not None
            how = str(command.fate) if command.killed else f"{command.fate.place}, call {command.fate.call}"
            self._table.deaths.append(
                Death(
                    process=command.name,
                    life=command.life,
                    how=how,
                    version=self._version,
                    at_s=now_s() - self._started_s,
                    polite=code != -signal.SIGKILL,
                )
            )
            command.fate = None
            self._start(command)
        elif code != 0:
            raise FailureError(f"{command.name} ended by itself with code {code}")
        else:
            command.fate = None

    def _ended_by_request(self, command: _Command, code: int | None) -> bool:
        """Whether SIGTERM ended a process, and not the end of the run."""
        if command.fate is None or not command.fate.polite:
            return False
        if code == -signal.SIGTERM:  # before its signal handler was set
            return True
        return code == 0 and (command.kind != "server" or self._outcome(command)["reason"] == "shutdown")

    # --- end ---

    def _end_others(self) -> None:
        """End the injector, and the clients that missed the server's end."""
        for is_forced in (False, True):
            waits_until_s = now_s() + (STUCK_S if is_forced else GOODBYE_S)
            for command in self._commands:
                if command.process is None:
                    continue
                if is_forced or command.kind == "inject":
                    command.process.terminate()
                command.process.join(max(0.0, waits_until_s - now_s()))
                code = command.process.exitcode
                if code is not None:
                    command.process = None
                    if code not in (0, -signal.SIGKILL, -signal.SIGTERM):
                        raise FailureError(f"{command.name} ended by itself with code {code}")
                elif is_forced:
                    raise FailureError(f"{command.name} does not end")

    def _end_all(self) -> None:
        for command in self._commands:
            if command.process is not None:
                command.process.kill()
                command.process.join()

    def _outcome(self, server: _Command) -> dict[str, Any]:
        facts = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
        outcome: dict[str, Any] = facts[-1]
        if outcome["event"] != "finished":
            raise FailureError(f"the server ended with the line {outcome}")
        return outcome
