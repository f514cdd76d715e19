"""A simulated server process: the real exchange, coordinator, staging and journal; simulated sockets, clock and
computation."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch

from swarm.hostile import NORM_MAX
from swarm.invariants import Ledger, Watched
from swarm.journal import Disk, Doom, Killed, PlayedJournal
from swarm.learning import LEARNING_RATE, NUMBERS, PlayedCompute, PlayedLearner, evaluation
from swarm.network import FAR, End, Frames, Link, Network
from swarm.options import Options
from swarm.world import World
from unstale.config import build
from unstale.config.metrics import ACCURACY
from unstale.coordinator.settings import CoordinatorSettings
from unstale.gateway.transport import Delivery
from unstale.journal.recovery import Recovery
from unstale.learner.bounds import NormBounds
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.server.admission import Admission
from unstale.server.client_limits import REASONS, STRANGER_MESSAGES_PER_S, ClientLimits
from unstale.server.commands import CheckpointCommand, QueueItem, StopNow
from unstale.server.compute import Save, frames_of
from unstale.server.protocol import ServerProtocol
from unstale.server.state import ProtocolSettings, RunState, TransferBounds
from unstale.server.stats import ServerStats
from unstale_client.partial_files import PartialFiles
from unstale_proto import signature
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import PartitionPlan, TensorSpec, TrainingPlan, Welcome

TURN_MESSAGES = 64  # messages read before timers and results


class Wire:
    """The output of the server protocol, to the connections of the server. observe: called with all that it
    sends."""

    def __init__(self, network: Network, doom: Doom, observe: Callable[[Link, bytes, Frames], None]) -> None:
        self._network = network
        self._doom = doom
        self._observe = observe
        self.links: dict[bytes, Link] = {}

    def wrap(self, frames: Sequence[memoryview]) -> Sequence[memoryview]:
        return frames

    def send(self, route: bytes, header: bytes, frames: Sequence[object] = ()) -> Delivery:
        self._doom.reach("before a word")
        link = self.links.get(route)
        if link is None:
            return Delivery.GONE
        payload = [frame for frame in frames if isinstance(frame, memoryview)]
        delivery = self._network.send(link, FAR, header, payload)
        if delivery is Delivery.SENT:
            self._observe(link, header, payload)
        return delivery


class WatchedGuard(ClientLimits):
    """The real guard. ledger: notified of excluded clients."""

    def __init__(self, ledger: Ledger, **bounds: Any) -> None:
        super().__init__(**bounds)
        self._ledger = ledger

    def on_refused(self, client_id: int | None, reason: Reason, at_s: float) -> None:
        super().on_refused(client_id, reason, at_s)
        if client_id is not None and reason in REASONS and self.model_health.is_unhealthy:
            self._ledger.forgiven(client_id)

    def quarantine(self, client_id: int, at_s: float) -> RemoteContractError:
        self._ledger.quarantined(client_id)
        return super().quarantine(client_id, at_s)


class Ended(Protocol):
    """Notified of the end of a server's process."""

    def server_killed(self, server: "Server") -> None: ...

    def server_left(self, server: "Server") -> None: ...


class Server:
    """One process of a run's server: turns as the protocol thread does.

    disk: stores the run; None for a run without files. doom: where the process dies.
    """

    def __init__(
        self, ledger: Ledger, options: Options, *, world: World, network: Network, disk: Disk | None, ended: Ended
    ) -> None:
        self._world = world
        self._network = network
        self._ledger = ledger
        self._ended = ended
        self._inbox: deque[tuple[Link, bytes, Frames]] = deque()
        self._letters: deque[QueueItem] = deque()
        self._turning_s: float | None = None
        self._asleep_until_s = 0.0
        self.is_alive = True
        self._has_left = False
        self.doom = Doom()
        self.wire = Wire(network, self.doom, ledger.server_sent)
        learner = PlayedLearner()
        self.coordinator = coordinator = Watched(options.coordinator, ledger)
        self.journal = None if disk is None else self._opened(disk, options)
        staging = _staging(options, self.journal)
        recovered_s = None
        if self.journal is not None and not self.journal.directory.is_new:
            recovered_s = _recover(self.journal, coordinator, learner, staging)
            ledger.resumed(coordinator, learner, self.journal.database, recovered_s)
        self._begins_s = world.now_s if recovered_s is None else recovered_s
        self._ahead_s = self._begins_s - world.now_s
        coordinator.is_watched = True
        self.protocol = self._exchange(options, coordinator, learner, staging)
        if recovered_s is not None:
            self.protocol.resume()
            self._plan_turn(world.now_s)

    def _opened(self, disk: Disk, options: Options) -> PlayedJournal:
        assert options.keeping is not None
        return PlayedJournal(
            disk.path, options.keeping, clock=self._world.clock, doom=self.doom, committed=self._ledger.committed
        )

    def _exchange(
        self, options: Options, coordinator: Watched, learner: PlayedLearner, staging: Staging
    ) -> ServerProtocol:
        settings, journal = options.coordinator, self.journal
        stats = ServerStats(
            rounds=settings.rounds,
            main=ACCURACY,
            record=lambda _: None,
            on_progress=lambda _: None,
            evaluate_clients_every=None,
        )
        run_id = self._ledger.run_id
        if journal is not None:
            stats.restore(journal.database)
            assert journal.run_id(run_id) == run_id
        compute = PlayedCompute(
            self._world,
            learner,
            work_s=options.apply_s,
            check=self._ledger.check_rows,
            post=self._post,
            save=_saver(journal),
            guarded=self._guarded,
        )
        late = max(settings.stale_rounds.values(), default=0)
        return ServerProtocol(
            ProtocolSettings(
                linger_s=options.linger_s,
                return_s=options.return_s,
                transfers=options.transfers or TransferBounds(),
                client_limits=WatchedGuard(
                    self._ledger,
                    client_messages_per_s_max=options.bounds.messages_per_s_max,
                    stranger_messages_per_s_max=STRANGER_MESSAGES_PER_S,
                    quarantine_after=options.bounds.quarantine_after,
                    quarantine_s=options.bounds.quarantine_s,
                ),
            ),
            RunState(
                coordinator=coordinator,
                staging=staging,
                admission=Admission(NormBounds(NORM_MAX, clients=settings.clients)),
                welcome=welcome(settings, run_id=run_id, heartbeat_s=options.heartbeat_s),
                learning_rate=LEARNING_RATE,
                frames={
                    version: frames_of(learner.base(version))
                    for version in range(max(0, learner.version - late), learner.version + 1)
                },
                sent=learner.sent,
                dimension=NUMBERS,
                journal=journal,
                partial_files=PartialFiles(None if journal is None else journal.directory.transfers),
            ),
            self.wire,
            clock=self._clock,
            compute=compute.submit,
            stats=stats,
        )

    # --- connections ---

    def dial(self, end: End) -> Link | None:
        """A peer connects."""
        if not self.is_alive:
            return None
        link = self._network.connect(end, self)
        self.wire.links[link.route] = link
        return link

    def receive(self, link: Link, header: bytes, frames: Frames) -> None:
        self._inbox.append((link, header, frames))
        self._plan_turn(self._world.now_s)

    def lost(self, link: Link) -> None:
        del self.wire.links[link.route]

    # --- its end ---

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while, as a paused process or machine."""
        self._asleep_until_s = self._world.now_s + seconds
        self._world.note("server", f"sleeps for {seconds:.3f} s")

    def stop(self) -> None:
        """The operator ends the process."""
        self._post(StopNow())

    def kill(self) -> None:
        """End without a goodbye. Peers learn of it later; a part of the last messages still arrives."""
        self._world.note("server", "is killed")
        self.is_alive = False
        for link in list(self.wire.links.values()):
            self._network.cut(link)
            link.open[FAR] = False
        self.wire.links.clear()
        self._ended.server_killed(self)

    @property
    def is_over(self) -> bool:
        """Whether it has ended by itself."""
        return self._has_left

    def _leave(self) -> None:
        if self.journal is not None:
            self.journal.close()
        self.is_alive, self._has_left = False, True
        self._ended.server_left(self)
        for link in list(self.wire.links.values()):
            self._network.close(link, FAR)
        self.wire.links.clear()

    def _guarded(self, act: Callable[[], None]) -> None:
        """Run a call unless the process is dead; the call may kill it."""
        if not self.is_alive:
            return
        try:
            act()
        except Killed as killed:
            self._world.seen[f"killed {killed}"] += 1
            self.kill()

    # --- turns ---

    def _clock(self) -> float:
        """Time of the run, which resumes from its last record."""
        return max(self._begins_s, self._world.now_s + self._ahead_s)

    def _post(self, item: QueueItem) -> None:
        self._letters.append(item)
        self._plan_turn(self._world.now_s)

    def _plan_turn(self, due_s: float) -> None:
        due_s = max(due_s, self._asleep_until_s)
        if self._turning_s is not None and self._turning_s <= due_s:
            return
        self._turning_s = due_s

        def turn() -> None:
            if self._turning_s == due_s:
                self._turning_s = None
                self._guarded(self._turn)

        self._world.at(due_s, turn)

    def _turn(self) -> None:
        if self._world.now_s < self._asleep_until_s:
            self._plan_turn(self._asleep_until_s)
            return
        self.doom.reach("between turns")
        did_something = bool(self._letters or self._inbox)
        while self._letters:
            self.protocol.on_result(self._letters.popleft())
        for _ in range(min(TURN_MESSAGES, len(self._inbox))):
            link, header, frames = self._inbox.popleft()
            self._ledger.server_received(link, header)
            self.protocol.on_message(link.route, header, frames)
            self.doom.reach("heard")
        self.protocol.flush(more_waits=bool(self._inbox))
        self._ledger.turn_ends()
        if self.protocol.is_over:
            self._leave()
        elif self._inbox or self._letters:
            self._plan_turn(self._world.now_s)
        elif self.protocol.due_s is not None:
            is_later = self.protocol.due_s > self._clock()
            assert did_something or is_later, "a turn without effect is followed by another"
            self._plan_turn(self._world_time(self.protocol.due_s))

    def _world_time(self, run_s: float) -> float:
        """The first instant of the world at this time of the run."""
        at_s = run_s - self._ahead_s
        while at_s + self._ahead_s < run_s:
            at_s = math.nextafter(at_s, math.inf)
        return at_s


def _staging(options: Options, journal: PlayedJournal | None) -> Staging:
    if journal is not None and options.keeping is not None and options.keeping.spills:
        return journal.spill(NUMBERS)
    return build.staging(options.coordinator, NUMBERS, torch.device("cpu"))


def _recover(journal: PlayedJournal, coordinator: Watched, learner: PlayedLearner, staging: Staging) -> float:
    """Resume the run; returns the time of its last record."""
    recovery = Recovery(
        journal, coordinator=coordinator, learner=cast("Learner", learner), staging=staging, evaluate=evaluation
    )
    return recovery.run().at_s


def _saver(journal: PlayedJournal | None) -> Save | None:
    if journal is None:
        return None

    def save(command: CheckpointCommand, learner: Mapping[str, Any]) -> tuple[str, int]:
        return journal.write_checkpoint(command.version, command.seq, learner, command.coordinator)

    return save


def welcome(settings: CoordinatorSettings, *, run_id: str, heartbeat_s: float) -> Welcome:
    """The welcome for every client."""
    tensors = (TensorSpec(name="weights", shape=(NUMBERS,), dtype="float32"),)
    return Welcome(
        client_id=0,
        run_id=run_id,
        clients=settings.clients,
        seed=settings.seed,
        version=0,
        model="played",
        data="played",
        partition=PartitionPlan(name="iid"),
        training=TrainingPlan(name="gradient", batch_size=1, steps=1),
        tensors=tensors,
        signature=signature.digest(tensors),
        heartbeat_s=heartbeat_s,
        lease_s=settings.lease_s,
    )
