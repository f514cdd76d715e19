"""One seed: a run whose machine loses power several times, until the run is finished."""

import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast
from unittest.mock import patch

import torch

from power.disk import PowerFailure, VolatileDisk, volatile
from support.played import PlayedWire
from support.wire import update_of
from swarm.client import vector
from swarm.learning import LEARNING_RATE, NUMBERS, PlayedCompute, PlayedLearner, evaluation
from swarm.server import welcome
from swarm.world import World
from unstale.config import build
from unstale.config.settings import RunSettings, Settings
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.phase import Phase
from unstale.coordinator.settings import CoordinatorSettings
from unstale.journal.journal import Journal
from unstale.journal.recovery import Recovery
from unstale.journal.rundir import RunDirectory
from unstale.learner.bounds import NormBounds
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.seeds import Generator
from unstale.server.admission import Admission
from unstale.server.commands import CheckpointCommand, QueueItem
from unstale.server.compute import frames_of
from unstale.server.protocol import ServerProtocol
from unstale.server.state import ProtocolSettings, RunState
from unstale.server.stats import ServerStats
from unstale.settings.learning import SelectorSettings, TriggerSettings
from unstale_proto import codec
from unstale_proto.messages import Ack, Heartbeat, Hello, Stop, Task, Welcome

MEMORY = Path("/dev/shm")
FAILURES = 4  # of one seed
CLIENTS = 4
ROUNDS = 80


@dataclass(kw_only=True)
class Report:
    """The effects of the power failures of one seed.

    Attributes:
        failures: Number of power failures.
        lost: Acknowledged updates that the next start did not find, of all failures.
        oldest_s: Age of the oldest of them when the power failed, seconds.
        unreported: Failures with a loss that the next start did not log.
        unfinished: Failures after which a run that was reported as finished was not.
        false_alarms: Starts that took the directory for a copy, or gave the run another id though nothing may be lost.
        seen: How often each kind of thing happened.
    """

    failures: int = 0
    lost: int = 0
    oldest_s: float = 0.0
    unreported: int = 0
    unfinished: int = 0
    false_alarms: int = 0
    seen: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Report") -> "Report":
        return Report(
            failures=self.failures + other.failures,
            lost=self.lost + other.lost,
            oldest_s=max(self.oldest_s, other.oldest_s),
            unreported=self.unreported + other.unreported,
            unfinished=self.unfinished + other.unfinished,
            false_alarms=self.false_alarms + other.false_alarms,
            seen=self.seen + other.seen,
        )


def attempt(seed: int, durability: Literal["full", "normal"]) -> Report:
    """Play one seed.

    Args:
        seed: Everything is drawn from it.
        durability: Of the run.

    Returns:
        What was lost, and whether the next start reported it.
    """
    in_memory = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="unstale-power-", dir=in_memory)).resolve()
    try:
        return _Seed(seed, durability, folder).play()
    finally:
        shutil.rmtree(folder)


class _LateSync:
    """The background thread of the segments: a submitted call runs a while later, or when a caller waits for it."""

    def __init__(self, world: World, rng: Generator) -> None:
        self._world = world
        self._rng = rng
        self.pending: list[Callable[[], None]] = []

    def submit(self, call: Callable[..., None], *given: Any) -> "Future[None]":
        future = _Awaited()
        future.run = partial(self._run, future, partial(call, *given))
        self.pending.append(future.run)
        self._world.after(0.2 * float(self._rng.random()), future.run)
        return future

    def shutdown(self) -> None:
        """Nothing more is submitted."""

    def _run(self, future: "_Awaited", call: Callable[[], None]) -> None:
        if future.run in self.pending:
            self.pending.remove(future.run)
            try:
                call()
            except Exception as error:  # noqa: BLE001  (raised where the result is asked for)
                future.set_exception(error)
            except PowerFailure as error:
                future.set_exception(error)
                raise
            else:
                future.set_result(None)


class _Awaited(Future[None]):
    run: Callable[[], None]

    def result(self, timeout: float | None = None) -> None:
        self.run()
        super().result(timeout)


@dataclass
class _Client:
    """A client that answers each task after a while. Its connection ends with the server."""

    client_id: int
    run_id: str = ""
    task: Task | None = None

    @property
    def route(self) -> bytes:
        return b"%d" % self.client_id


class _Seed:
    def __init__(self, seed: int, durability: Literal["full", "normal"], folder: Path) -> None:
        self.world = World(seed)
        self.rng = self.world.draws("power")
        self.folder = folder
        self.report = Report()
        self.acknowledged: dict[int, float] = {}  # task id -> when its client heard so
        self.told_finished: int | None = None
        self.is_over = False  # the run, as the last start found it
        self.lines: list[str] = []  # warnings of starts since the last one that succeeded
        self.run_id: str | None = None
        self.boot = 0
        self.clients = [_Client(client_id) for client_id in range(CLIENTS)]
        self.settings = Settings(
            run=RunSettings(
                durability=durability,
                checkpoint_every=int(self.rng.integers(3, 9)),
                keep_updates=bool(self.rng.random() < 0.3),
                free_bytes_min=0,
            )
        )
        self.quiet = float(self.rng.random() < 0.3)  # share of seeds in which clients are slow
        self.segment_bytes = int(self.rng.integers(60, 400))
        self.wal_pages = int(self.rng.choice([20, 60, 8192]))

    def play(self) -> Report:
        with ExitStack() as stack:
            for module in ("journal", "database"):
                stack.enter_context(patch(f"unstale.journal.{module}.boot", lambda: f"boot {self.boot}"))
            stack.enter_context(patch("unstale.journal.database.WAL_PAGES", self.wal_pages))
            stack.enter_context(patch("unstale.journal.resumption.mark", _mark))
            while self._live():
                self.boot += 1
        return self.report

    @property
    def path(self) -> Path:
        return self.folder / str(self.boot)

    def _live(self) -> bool:
        """One start of the machine. Returns whether the power fails at its end."""
        disk = VolatileDisk(self.path)
        server: _Server | None = None
        try:
            with volatile(disk):
                if self.report.failures < FAILURES and self.rng.random() < 0.6:
                    disk.operations_left = int(self.rng.exponential(60))
                try:
                    server = self._start()
                    if self.is_over or not self._run(server, disk):
                        return False
                except PowerFailure:
                    self.report.seen["failures within an operation"] += 1
                    self.report.seen["failures of a start"] += server is None
                self.report.failures += 1
                self.report.seen["failures behind the end"] += self.told_finished is not None
                disk.fail(self.rng, self.folder / str(self.boot + 1))
            self.world._queue.clear()
            return True
        finally:
            disk.operations_left = None
            if server is not None:
                with suppress(Exception, PowerFailure):  # the process is gone; this only closes its files
                    for late in list(server.late.pending):
                        late()
                    server.close()
            disk.close()

    def _run(self, server: "_Server", disk: VolatileDisk) -> bool:
        """Until the power is to fail, or the run is over without. Returns whether it fails."""
        fails_s = self.world.now_s + float(self.rng.exponential(3.0))
        if self.report.failures >= FAILURES:
            fails_s = float("inf")
        waits = self.rng.random() < 0.3  # for the end of the run, and fails right behind it
        self.world.at(fails_s if fails_s < 1e9 else 1e9, lambda: None)
        while not (self.world.now_s >= fails_s and not waits):
            if self.told_finished is not None:
                if self.report.failures >= FAILURES:
                    server.close()
                    self._check_end()
                    return False
                break
            self.world.step()
            server.settle()
            self._listen(server)
            if self.rng.random() < 0.1:
                disk.write_back(self.rng)
        return True

    def _start(self) -> "_Server":
        """Start the server on the files of the disk, and compare it with the acks that clients received."""
        with _warnings(self.lines):
            server = _Server(self)
        lines, self.lines = self.lines, []
        self.report.false_alarms += any("is not as its last server left it" in line for line in lines)
        if self.settings.run.durability == "full":
            self.report.false_alarms += self.run_id not in (None, server.run_id)
        self.run_id = server.run_id
        database = server.journal.database
        found = {row.staged.task_id for row in database.updates_after(0) if row.reason is None}
        lost = {task: at_s for task, at_s in self.acknowledged.items() if task not in found}
        if lost:
            self.report.lost += len(lost)
            self.report.oldest_s = max(self.report.oldest_s, self.world.now_s - min(lost.values()))
            self.report.unreported += not any("lost" in line for line in lines)
            self.report.seen["failures with a loss"] += 1
        for task in lost:
            del self.acknowledged[task]
        if self.told_finished is not None:
            coordinator = server.coordinator
            over = coordinator.phase is Phase.FINISHED and coordinator.version == self.told_finished
            self.report.unfinished += not over
            self.is_over = over
            self.told_finished = None
        for client in self.clients:
            holding = () if client.task is None else (client.task.task_id,)
            server.say(client, Hello(client_id=client.client_id, session=f"{client.client_id:032x}", holding=holding))
        server.settle()
        self._listen(server)
        return server

    def _listen(self, server: "_Server") -> None:
        for client in self.clients:
            for message, _ in server.wire.sent.pop(client.route, []):
                if isinstance(message, Welcome):
                    if message.run_id != client.run_id and client.task is not None:
                        client.task = None
                        server.give_back(client)
                    client.run_id = message.run_id
                    if client.task is not None:
                        self._work_on(server, client, client.task)
                elif isinstance(message, Task):
                    client.task = message
                    self._work_on(server, client, message)
                elif isinstance(message, Ack):
                    if client.task is not None and client.task.task_id == message.task_id:
                        client.task = None
                    if message.outcome == "accepted":
                        self.acknowledged[message.task_id] = self.world.now_s
                        self.report.seen["acknowledged"] += 1
                elif isinstance(message, Stop) and message.reason == "finished":
                    self.told_finished = message.version

    def _work_on(self, server: "_Server", client: _Client, task: Task) -> None:
        slow = self.quiet and self.rng.random() < 0.3
        wait_s = float(self.rng.exponential(6.0 if slow else 0.3))
        self.world.after(wait_s, partial(self._answer, server, client, task))

    def _answer(self, server: "_Server", client: _Client, task: Task) -> None:
        if client.task is task:  # which it keeps until the ack
            server.say(client, update_of(task), vector(client.client_id, task.task_id, task.version))

    def _check_end(self) -> None:
        """The run is finished, and nothing that was acknowledged since the last failure is missing."""
        journal = self._opened()
        found = {row.staged.task_id for row in journal.database.updates_after(0) if row.reason is None}
        journal.close()
        assert self.acknowledged.keys() <= found
        assert self.told_finished == ROUNDS

    def _opened(self) -> Journal:
        directory = RunDirectory.open(self.path, self.settings)
        return Journal(directory, self.settings.run, clock=self.world.clock)


class _Server:
    """The real exchange, coordinator and journal; computation is simulated, and the clock is the world's."""

    def __init__(self, seed: _Seed) -> None:
        world, settings = seed.world, _coordinator_settings()
        self.wire = PlayedWire()
        self.coordinator = Coordinator(settings)
        learner = PlayedLearner()
        self.journal = journal = seed._opened()
        journal.segments._segment_bytes = seed.segment_bytes
        self._is_closed = False
        self.late = _LateSync(world, seed.rng)
        journal.segments._background = cast(Any, self.late)
        self.run_id = run_id = journal.run_id(f"{seed.boot + 1:032x}")
        staging: Staging = build.staging(settings, NUMBERS, torch.device("cpu"))
        begins_s = 0.0
        recovers = not journal.directory.is_new
        if recovers:
            recovery = Recovery(
                journal,
                coordinator=self.coordinator,
                learner=cast("Learner", learner),
                staging=staging,
                evaluate=evaluation,
            )
            begins_s = recovery.run().at_s
        self._world, self._ahead_s = world, begins_s - world.now_s
        self._letters: list[QueueItem] = []
        stats = ServerStats(
            rounds=ROUNDS, record=lambda _: None, on_progress=lambda _: None, evaluate_clients_every=None
        )
        stats.restore(journal.database)
        compute = PlayedCompute(
            world,
            learner,
            work_s=0.05,
            check=lambda _: None,
            post=self._letters.append,
            save=lambda command, state: self._save(command, state),
            guarded=lambda act: act(),
        )
        self.protocol = ServerProtocol(
            ProtocolSettings(linger_s=1.0),
            RunState(
                coordinator=self.coordinator,
                staging=staging,
                admission=Admission(NormBounds(None, clients=settings.clients)),
                welcome=welcome(settings, run_id=run_id, heartbeat_s=1e4),
                learning_rate=LEARNING_RATE,
                frames={learner.version: frames_of(learner.sent)},
                sent=learner.sent,
                dimension=NUMBERS,
                journal=journal,
            ),
            self.wire,
            clock=lambda: max(begins_s, world.now_s + self._ahead_s),
            compute=compute.submit,
            stats=stats,
        )
        if recovers:
            self.protocol.resume()

    def say(self, client: _Client, message: Any, frames: Any = ()) -> None:
        """A message of a client arrives."""
        self.protocol.on_message(client.route, codec.encode(message), frames)

    def give_back(self, client: _Client) -> None:
        """Two heartbeats of a client that has forgotten the task of its hello prove that the task is lost."""
        for number, heard in ((0, None), (1, 0)):
            self.say(client, Heartbeat(number=number, version=0, newest_task=0, heard=heard))
            self.protocol.flush()

    def settle(self) -> None:
        """One turn of the server protocol; the next one is planned for when it is due."""
        while self._letters:
            self.protocol.on_result(self._letters.pop(0))
        self.protocol.flush()
        due_s = self.protocol.due_s
        if due_s is not None and not self.protocol.is_over:
            self._world.at(max(due_s - self._ahead_s, self._world.now_s + 1e-3), lambda: None)

    def close(self) -> None:
        """Close the journal, once."""
        if not self._is_closed:
            self._is_closed = True
            self.journal.close()

    def _save(self, command: CheckpointCommand, state: Any) -> tuple[str, int]:
        return self.journal.write_checkpoint(command.version, command.seq, state, command.coordinator)


def _coordinator_settings() -> CoordinatorSettings:
    return CoordinatorSettings(
        clients=CLIENTS,
        rounds=ROUNDS,
        trigger=TriggerSettings(name="k-async", k=2),
        selector=SelectorSettings(),
        seed=0,
        lease_s=1e5,
        evaluate_every=ROUNDS,
        retry_s=5.0,
        min_clients=None,
    )


def _mark(directory: RunDirectory) -> str:
    """The journal's, on a disk whose inodes survive a power failure."""
    return f"{int(os.stat(directory.lock).st_mtime)}-1-2-3"


@contextmanager
def _warnings(lines: list[str]) -> Iterator[None]:
    """Add the warnings that the journal logs meanwhile to `lines`."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    listener = Listener(logging.WARNING)
    log = logging.getLogger("unstale.journal")
    log.addHandler(listener)
    try:
        yield
    finally:
        log.removeHandler(listener)
