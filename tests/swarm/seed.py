"""One seed from start to end: faults for a while, and then all clients must be served."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from swarm.chaos import Chaos
from swarm.client import Process
from swarm.hostile import HostileUpdates
from swarm.injection import Injector
from swarm.invariants import Ledger, Order
from swarm.journal import Disk
from swarm.network import End, Frames, Link, Network
from swarm.options import ENDLESS, Options, draw
from swarm.server import Server
from swarm.world import World
from unstale.coordinator.divergence import DivergedError
from unstale.injector.core import Core
from unstale.journal.database import Database
from unstale.journal.rundir import DATABASE
from unstale.toxics.link import ToxicLink
from unstale_client.actions import PendingUpdate, Train
from unstale_client.session import GREETING_S, State
from unstale_proto.messages import Message, Stop, Task, Update

FAULTY_EVENTS_MAX = 4_000  # during the fault phase, so that a quick run takes no longer than others
EVENTS_MAX = 150_000  # of one seed
RESTART_S = 1.0
FEW_MESSAGES = 2  # a queue that an ack and a task fill


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a seed. seen: the number of events by kind."""

    seed: int
    digest: str
    seen: dict[str, int]


class FailureError(AssertionError):
    """An invariant is violated. transcript: the last lines."""

    def __init__(self, seed: int, what: BaseException, at_s: float, transcript: list[str]) -> None:
        super().__init__(f"seed {seed} at {at_s:.6f} s: {type(what).__name__}: {what}")
        self.seed = seed
        self.transcript = transcript


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> Report:
    """Simulate a seed. Raises FailureError when an invariant is violated."""
    world = World(seed, verbose=verbose)
    disk = Disk(world.draws("disk"))
    try:
        swarm = Swarm(world, draw(world), disk)
        try:
            swarm.play()
        except DivergedError:
            if not swarm.has_only_hostile_clients:
                raise
            world.seen["given up, with hostile clients alone"] += 1
    except Exception as error:
        raise FailureError(seed, error, world.now_s, list(world.transcript)) from error
    finally:
        disk.delete()
    world.seen.update(events=world.events, messages=swarm.network.messages)
    for name, count in swarm.touched.items():
        world.seen[f"toxic {name}"] += count
    return Report(seed, world.digest, dict(world.seen))


class Swarm:
    """The state of a seed. newest: process of each client. links: connections, possibly broken."""

    def __init__(self, world: World, options: Options, disk: Disk) -> None:
        self.world = world
        self.options = options
        self.network = Network(world, delay_s=options.delay_s, notice_s=options.notice_s, queue_max=options.queue_max)
        self.link = ToxicLink(options.conditions.toxics, world.seed)
        self._order = Order(options.toxic_types)
        self._may_damage = "corrupt" in options.toxic_types or (
            options.chaos.restart > 0 and not options.toxic_types.isdisjoint({"reorder", "duplicate"})
        )
        self._disk = None if options.keeping is None else disk
        self._ledgers: dict[str, Ledger] = {}
        self._processes: list[Process] = []
        self.newest: dict[int, Process] = {}
        self.links: list[Link] = []
        self._calm_since_s = math.inf
        self._served: set[Process] = set()  # since then
        self._first_acks: set[Process] = set()  # that the run is over
        self._reachable: list[Process] = []  # when the server left; a toxic may cut a message late
        self._pauses = False  # the operator has ended the server, which restarts
        self.ledger = self._begin_run()
        self.server = self._start_server()
        self._chaos = Chaos(self)
        self.injector = Injector(
            Core(self.link, clients=options.coordinator.clients, started_s=0.0, bytes_max=options.bytes_max),
            world=world,
            network=self.network,
            dial=self._dial_server,
            observe=self._order.passed,
        )

    # --- the phases ---

    def play(self) -> None:
        """First all faults occur, and every invariant must hold. Then the faults end,
        all clients must be served, and the run must end."""
        options, world = self.options, self.world
        world.note("swarm", options.words)
        for client_id in range(options.coordinator.clients):
            world.at(self._chaos.random() * options.first_s, partial(self._start_first, client_id))
        self._chaos.begin()
        while world.now_s < options.fault_s and world.events < FAULTY_EVENTS_MAX and not self._is_over:
            self._step()
        self._end_of_faults()
        self._until(self._all_are_served, self._patience_s, "all clients are served")
        if options.coordinator.rounds == ENDLESS:
            self.server.stop()
        self._until(self._all_is_over, self._patience_s, "the run ends, and all clients know it")
        self._check_stored()

    def _step(self) -> None:
        assert self.world.events < EVENTS_MAX, "the seed does not end"
        self.world.step()

    def _until(self, holds: Callable[[], bool], patience_s: float, what: str) -> None:
        until_s = self.world.now_s + patience_s
        while not holds():
            self._step()
            assert self.world.now_s <= until_s, f"this is not so after {patience_s:.1f} s: {what}"

    @property
    def has_only_hostile_clients(self) -> bool:
        """Whether no honest client takes part: then a run cannot be told from one that diverges."""
        return set(self.server.coordinator.membership.active) <= self.options.hostile

    @property
    def touched(self) -> dict[str, int]:
        """Messages that each type of toxic touched."""
        return dict(self.link.counts.faults)

    # --- the end of the faults, and of the run ---

    def _end_of_faults(self) -> None:
        self.world.note("swarm", "the faults end")
        self._chaos.end()
        self.link.change(())
        for client_id in range(self.options.coordinator.clients):
            process = self.newest.get(client_id)
            # A client that received nonsense may have ended for good: an operator would restart it.
            if process is None or not process.alive or self._may_damage:
                self.start(client_id)
        self._calm_since_s = self.world.now_s
        self._kept_then = [
            (process, task_id)
            for process in self.newest.values()
            if process.alive and not process.is_hostile
            for task_id in process.unacknowledged
        ]

    @property
    def _patience_s(self) -> float:
        """A generous bound on the time until all clients are served, or a run of few rounds is over."""
        options = self.options
        coordinator = options.coordinator
        turn_s = (
            coordinator.lease_s
            + options.behaviour.training_s
            + GREETING_S
            + 4 * options.heartbeat_s
            + options.apply_s
            + coordinator.retry_s
            + (coordinator.trigger.wait_s or 0.0)
            + 20 * options.delay_s
            + (options.bounds.quarantine_s if options.hostile or self._may_blunder else 0.0)
        )
        rounds = coordinator.rounds if coordinator.rounds < ENDLESS else self._rounds_to_serve
        return 30.0 + turn_s * (5 + rounds)

    @property
    def _may_blunder(self) -> bool:
        """Whether honest clients may be quarantined."""
        return self._may_damage or self.options.behaviour.non_finite > 0

    @property
    def _rounds_to_serve(self) -> int:
        """Rounds until every client had a task, with a margin for a random selector."""
        selector, clients = self.options.coordinator.selector, self.options.coordinator.clients
        return 1 if selector.size is None else 8 * clients // selector.size + clients

    def _all_are_served(self) -> bool:
        """Every client has one process, which had a task since, and an answer to every update stored then."""
        if self.server.protocol.is_finishing and not self._pauses:
            return True
        kept = any(task_id in process.unacknowledged for process, task_id in self._kept_then if process.alive)
        settings = self.options.coordinator
        alive = [process for process in self._processes if process.alive]
        return (
            self.server.is_alive
            and not self._pauses
            and not kept
            and sorted(process.client_id for process in alive) == list(range(settings.clients))
            # Clients that are always available may never be selected.
            and (self._leaves_some_out or all(one in self._served or one.is_hostile for one in alive))
        )

    @property
    def _leaves_some_out(self) -> bool:
        """Whether the loop may never assign a task to some of the clients."""
        return self.options.coordinator.selector.name == "availability"

    @property
    def _is_over(self) -> bool:
        return self.server.is_over and not self._pauses

    def _all_is_over(self) -> bool:
        if not self._is_over:
            return False
        core = self.injector.core
        return core.in_flight_messages == 0 and core.in_flight_bytes == 0 and self._all_are_informed()

    def _all_are_informed(self) -> bool:
        """Whether no client expects the run to continue; and, if the server waited long enough for goodbyes, all were
        informed of the end."""
        options, alive = self.options, [process for process in self._processes if process.alive]
        waited_s = 2 * options.heartbeat_s + 20 * options.delay_s
        # The server does not wait for a client whose queue was full at the end.
        waits = options.linger_s >= waited_s and options.queue_max > FEW_MESSAGES
        were_served = options.coordinator.rounds == ENDLESS and not self._leaves_some_out
        if were_served and waits and not self._may_damage:
            assert all(one in self._first_acks or one.is_hostile for one in self._reachable), (
                "the server has ended before it informed all clients"
            )
        return all(process.link is None or process.session.state is not State.IN for process in alive)

    # --- clients and server ---

    def start(self, client_id: int) -> None:
        """Start a process for a client; it supersedes an existing one."""
        before = self.newest.get(client_id)
        if before is not None and before.alive and not self._chaos.is_active:
            before.crash()
        number = len(self._processes)
        kept: Sequence[PendingUpdate] = ()
        if before is not None and not before.alive and self.options.outbox:
            kept = before.outbox  # only one process at a time has the folder
        is_hostile = client_id in self.options.hostile
        process = Process(
            client_id,
            number,
            world=self.world,
            network=self.network,
            dial=self._dial,
            behaviour=self.options.behaviour,
            transfers=self.options.transfers,
            watcher=self,
            kept=kept,
            malice=HostileUpdates(self.world.draws(f"malice of {number}")) if is_hostile else None,
        )
        self._processes.append(process)
        self.newest[client_id] = process
        self.world.seen["processes"] += 1

    def _start_first(self, client_id: int) -> None:
        if client_id not in self.newest:  # otherwise the faults ended before, and it started then
            self.start(client_id)

    def _dial(self, end: End) -> Link | None:
        assert isinstance(end, Process)
        link = self.injector.dial(end.client_id, end) if self.options.injector else self._dial_server(end)
        if link is not None:
            self.links.append(link)
        return link

    def _dial_server(self, end: End) -> Link | None:
        link = self.server.dial(end)
        if link is not None and not isinstance(end, Process):
            self.links.append(link)
        return link

    def _begin_run(self) -> Ledger:
        run_id = f"{len(self._ledgers):032x}"
        ledger = Ledger(run_id, self.options, self.world, may_damage=self._may_damage)
        self._ledgers[run_id] = ledger
        return ledger

    def _start_server(self) -> Server:
        return Server(self.ledger, self.options, world=self.world, network=self.network, disk=self._disk, ended=self)

    def pause_server(self) -> None:
        """The operator ends the process of an unfinished run, and restarts it."""
        if self.server.is_alive and not self._pauses:
            self._pauses = True
            self.server.stop()

    def server_killed(self, server: Server) -> None:
        self.ledger.server_died()
        if self._disk is not None and server.journal is not None:
            self._disk.outlive(server.journal)
            self.world.seen["damaged checkpoints"] += self._disk.is_damaged
        self.world.after(RESTART_S * self._chaos.random(), self._start_again)

    def server_left(self, server: Server) -> None:
        assert server.protocol.outcome is not None
        self._reachable = [
            one
            for one in self._processes
            if one.alive and one.link is not None and not one.link.broken and not self.ledger.is_excluded(one.client_id)
        ]
        self.ledger.server_died()
        if server.protocol.outcome.reason == "finished":
            self._pauses = False
        elif self._pauses:
            self.world.seen["server pauses"] += 1
            self.world.after(RESTART_S * self._chaos.random(), self._start_again)

    def _start_again(self) -> None:
        self._pauses = False
        if self._disk is None:
            self.ledger = self._begin_run()
        self.server = self._start_server()

    def _check_stored(self) -> None:
        if self._disk is not None:
            database = Database(self._disk.path / DATABASE, read_only=True)
            self.ledger.check_stored(database)
            database.close()

    def client_received(self, process: Process, message: Message, frames: Frames) -> None:
        ledger = self._ledgers.get(process.run_id or "")
        if ledger is not None:
            ledger.client_received(process, message, frames)
        if isinstance(message, Task) and self.ledger.given_s(message.task_id) >= self._calm_since_s:
            self._served.add(process)
        if isinstance(message, Stop):
            self._first_acks.add(process)

    def client_trains(self, process: Process, train: Train) -> None:
        ledger = self._ledgers.get(process.run_id or "")
        if ledger is not None:
            ledger.trains(train)

    def client_failed(self, process: Process, task_id: int) -> None:
        ledger = self._ledgers.get(process.run_id or "")
        if ledger is not None:
            ledger.failed(task_id)

    def client_made(self, process: Process, update: Update) -> None:
        ledger = self._ledgers.get(process.run_id or "")
        if ledger is not None:
            ledger.made(process, update)
