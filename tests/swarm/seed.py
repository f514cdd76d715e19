"""One seed from its beginning to its end: things go wrong for a while, and then everybody must be served."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from swarm.client import Process
from swarm.injection import Injector
from swarm.invariants import Ledger, Order, Watched
from swarm.network import NEAR, End, Frames, Link, Network
from swarm.options import ENDLESS, OUT_OF_ORDER, Options, draw
from swarm.server import Server
from swarm.world import World
from unstale.client.instructions import Train
from unstale.client.session import GREETING_S, State
from unstale.injector.core import Core
from unstale.seeds import Generator
from unstale.toxics.passage import Passage
from unstale_proto.messages import Message, Stop, Task, Update

FAULTY_EVENTS_MAX = 4_000  # as long as things go wrong, so that a quick run takes no longer than others
EVENTS_MAX = 150_000  # of one seed
RESTART_S = 1.0
FEW_MESSAGES = 2  # a queue that an ack and a task fill


@dataclass(frozen=True, slots=True)
class Report:
    """What a seed came to. seen: how often each kind of thing happened."""

    seed: int
    digest: str
    seen: dict[str, int]


class FailureError(AssertionError):
    """Something did not hold. transcript: the last lines."""

    def __init__(self, seed: int, what: BaseException, at_s: float, transcript: list[str]) -> None:
        super().__init__(f"seed {seed} at {at_s:.6f} s: {type(what).__name__}: {what}")
        self.seed = seed
        self.transcript = transcript


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> Report:
    """Play a seed. Raises FailureError where anything does not hold."""
    world = World(seed, verbose=verbose)
    try:
        swarm = Swarm(world, draw(world))
        swarm.play()
    except Exception as error:
        raise FailureError(seed, error, world.now_s, list(world.transcript)) from error
    world.seen.update(events=world.events, messages=swarm.network.messages)
    for name, count in swarm.touched.items():
        world.seen[f"toxic {name}"] += count
    return Report(seed, world.digest, dict(world.seen))


class Swarm:
    """Everything of a seed."""

    def __init__(self, world: World, options: Options) -> None:
        self.world = world
        self.options = options
        self.network = Network(
            world, delay_s=options.delay_s, notice_s=options.notice_s, queue_max=options.queue_max
        )
        self.passage = Passage(options.conditions.toxics, world.seed)
        self._types = {applied.toxic.name: applied.toxic.type for applied in options.conditions.toxics}
        self._order = Order(options.toxic_types)
        self._may_damage = "corrupt" in options.toxic_types or (
            options.chaos.restart > 0 and not options.toxic_types.isdisjoint({"reorder", "duplicate"})
        )
        self._rng = world.draws("chaos")
        self._ledgers: dict[str, Ledger] = {}
        self._processes: list[Process] = []
        self._newest: dict[int, Process] = {}  # by client
        self._links: list[Link] = []
        self._faulty = True
        self._calm_since_s = math.inf
        self._served: set[Process] = set()  # since then
        self._told: set[Process] = set()  # that the run is over
        self.server = self._start_server()
        self.injector = Injector(
            Core(
                self.passage,
                clients=options.coordinator.clients,
                started_s=0.0,
                bytes_max=options.bytes_max,
            ),
            world=world,
            network=self.network,
            dial=self._dial_server,
            observe=self._order.passed,
        )

    # --- the play ---

    def play(self) -> None:
        """First everything goes wrong that may, and nothing wrong must come of it. Then nothing goes wrong any more,
        and everybody must be served, and the run must end."""
        options, world = self.options, self.world
        world.note("swarm", options.words)
        for client_id in range(options.coordinator.clients):
            world.at(float(self._rng.random()) * options.first_s, partial(self._start, client_id))
        self._plan_chaos()
        while world.now_s < options.fault_s and world.events < FAULTY_EVENTS_MAX and not self.server.is_over:
            self._step()
        self._end_of_faults()
        self._until(self._everyone_is_served, self._patience_s, "everybody is served")
        if options.coordinator.rounds == ENDLESS:
            self.server.stop()
        self._until(self._all_is_over, self._patience_s, "the run ends, and everybody knows it")

    def _step(self) -> None:
        assert self.world.events < EVENTS_MAX, "there is no end of it"
        self.world.step()

    def _until(self, holds: Callable[[], bool], patience_s: float, what: str) -> None:
        until_s = self.world.now_s + patience_s
        while not holds():
            self._step()
            assert self.world.now_s <= until_s, f"it is not so after {patience_s:.1f} s: {what}"

    @property
    def touched(self) -> dict[str, int]:
        """Messages that each type of toxic touched."""
        counts: dict[str, int] = {}
        for name, count in self.passage.touched.items():
            counts[self._types[name]] = counts.get(self._types[name], 0) + count
        return counts

    # --- the end of the faults, and of the run ---

    def _end_of_faults(self) -> None:
        self.world.note("swarm", "nothing goes wrong any more")
        self._faulty = False
        self.passage.change(())
        for client_id in range(self.options.coordinator.clients):
            process = self._newest.get(client_id)
            # Who was told nonsense may believe it for good: people would start it again.
            if process is None or not process.alive or self._may_damage:
                self._start(client_id)
        self._calm_since_s = self.world.now_s
        self._kept_then = [
            (process, task_id)
            for process in self._newest.values()
            if process.alive
            for task_id in process.unacknowledged
        ]

    @property
    def _patience_s(self) -> float:
        """How long it may take until everybody is served, or a run of few rounds is over: generous, and no more."""
        options = self.options
        coordinator = options.coordinator
        turn_s = (
            coordinator.lease_s
            + options.manners.training_s
            + GREETING_S
            + 4 * options.heartbeat_s
            + options.apply_s
            + coordinator.retry_s
            + (coordinator.trigger.wait_s or 0.0)
            + 20 * options.delay_s
        )
        rounds = coordinator.rounds if coordinator.rounds < ENDLESS else self._rounds_to_serve
        return 30.0 + turn_s * (5 + rounds)

    @property
    def _rounds_to_serve(self) -> int:
        """Rounds until everybody was given a task, with plenty for a selector that draws."""
        selector, clients = self.options.coordinator.selector, self.options.coordinator.clients
        return 1 if selector.size is None else 8 * clients // selector.size + clients

    def _everyone_is_served(self) -> bool:
        """Every client has one process, that was given a task since, and has an answer to all that it kept then."""
        if self.server.exchange.is_finishing:
            return True
        kept = any(task_id in process.unacknowledged for process, task_id in self._kept_then if process.alive)
        settings = self.options.coordinator
        alive = [process for process in self._processes if process.alive]
        return (
            self.server.is_alive
            and not kept
            and sorted(process.client_id for process in alive) == list(range(settings.clients))
            # Those that are always there may be left out for good.
            and (self._leaves_some_out or all(process in self._served for process in alive))
        )

    @property
    def _leaves_some_out(self) -> bool:
        """Whether the loop may never give a task to some of the clients."""
        return self.options.coordinator.selector.name == "availability"

    def _all_is_over(self) -> bool:
        if not self.server.is_over:
            return False
        core = self.injector.core
        return core.in_flight_messages == 0 and core.in_flight_bytes == 0 and self._are_told()

    def _are_told(self) -> bool:
        """Whether nobody takes the run to go on; and, where the server waited long enough for goodbyes, everybody was
        told that it is over."""
        options, alive = self.options, [process for process in self._processes if process.alive]
        waited_s = 2 * options.heartbeat_s + 20 * options.delay_s
        # Nobody waits for a client whose queue was full when it was to be told.
        waits = options.linger_s >= waited_s and options.queue_max > FEW_MESSAGES
        were_served = options.coordinator.rounds == ENDLESS and not self._leaves_some_out
        if were_served and waits and not self._may_damage:
            assert all(process in self._told for process in alive), (
                "the server has ended, and not everybody was told"
            )
        return all(process.link is None or process.session.state is not State.IN for process in alive)

    # --- clients and server ---

    def _start(self, client_id: int) -> None:
        """A process for a client; one that is there already is to be superseded."""
        before = self._newest.get(client_id)
        if before is not None and before.alive and not self._faulty:
            before.crash()
        process = Process(
            client_id,
            len(self._processes),
            world=self.world,
            network=self.network,
            dial=self._dial,
            manners=self.options.manners,
            transfers=self.options.transfers,
            watcher=self,
        )
        self._processes.append(process)
        self._newest[client_id] = process
        self.world.seen["processes"] += 1

    def _dial(self, end: End) -> Link | None:
        assert isinstance(end, Process)
        link = self.injector.dial(end.client_id, end) if self.options.injector else self._dial_server(end)
        if link is not None:
            self._links.append(link)
        return link

    def _dial_server(self, end: End) -> Link | None:
        link = self.server.dial(end)
        if link is not None and not isinstance(end, Process):
            self._links.append(link)
        return link

    def _start_server(self) -> Server:
        run_id = f"{len(self._ledgers):032x}"
        options = self.options
        in_order = options.toxic_types.isdisjoint(OUT_OF_ORDER)
        ledger = Ledger(
            run_id,
            options.coordinator,
            self.world,
            may_damage=self._may_damage,
            in_order=in_order,
            down_in_order=options.keeps_order_down,
            announces=options.transfers is not None,
        )
        self._ledgers[run_id] = self.ledger = ledger
        return Server(
            Watched(options.coordinator, ledger),
            run_id=run_id,
            heartbeat_s=options.heartbeat_s,
            apply_s=options.apply_s,
            linger_s=options.linger_s,
            transfers=options.transfers,
            world=self.world,
            network=self.network,
            heard=ledger.server_heard,
            said=ledger.server_said,
            check=ledger.check_rows,
        )

    def client_heard(self, process: Process, message: Message, frames: Frames) -> None:
        ledger = self._ledgers.get(process.run_id or "")
        if ledger is not None:
            ledger.client_heard(process, message, frames)
        if isinstance(message, Task) and self.ledger.given_s(message.task_id) >= self._calm_since_s:
            self._served.add(process)
        if isinstance(message, Stop):
            self._told.add(process)

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

    # --- what goes wrong beside the toxics ---

    def _plan_chaos(self) -> None:
        chaos = self.options.chaos
        for rate, what in (
            (chaos.crash, self._crash),
            (chaos.leave, self._leave),
            (chaos.take_over, self._take_over),
            (chaos.cut, self._cut),
            (chaos.hello, self._say_hello),
            (chaos.sleep, self._sleep),
            (chaos.stranger, self._meet_a_stranger),
            (chaos.restart, self._restart),
        ):
            if rate > 0:
                _Often(self, rate, what).plan()

    @property
    def is_faulty(self) -> bool:
        return self._faulty

    def _someone(self) -> Process | None:
        alive = [process for process in self._newest.values() if process.alive]
        return alive[int(self._rng.integers(len(alive)))] if alive else None

    def _crash(self) -> None:
        process = self._someone()
        if process is not None:
            process.crash()
            self.world.seen["crashes"] += 1
            self._come_back(process.client_id)

    def _leave(self) -> None:
        process = self._someone()
        if process is not None:
            process.leave()
            self.world.seen["clients left"] += 1
            self._come_back(process.client_id)

    def _come_back(self, client_id: int) -> None:
        def back() -> None:
            if self._faulty and not self._newest[client_id].alive:
                self._start(client_id)

        self.world.after(float(self._rng.exponential(3.0)), back)

    def _take_over(self) -> None:
        process = self._someone()
        if process is not None:
            self.world.seen["take-overs"] += 1
            self._start(process.client_id)

    def _cut(self) -> None:
        self._links = [link for link in self._links if not link.broken]
        if self._links:
            link = self._links[int(self._rng.integers(len(self._links)))]
            self.world.note("network", f"cuts connection {link.number}")
            self.network.cut(link)

    def _say_hello(self) -> None:
        process = self._someone()
        if process is not None and process.link is not None:
            self.world.seen["hellos for no reason"] += 1
            process.say_hello_again()

    def _sleep(self) -> None:
        self.world.seen["server sleeps"] += 1
        self.server.sleep(float(self._rng.exponential(2.0)))

    def _meet_a_stranger(self) -> None:
        self.world.seen["strangers"] += 1
        link = self.server.dial(_Stranger())
        if link is not None:
            self.network.send(link, NEAR, self._rng.bytes(int(self._rng.integers(40))), ())
            self.network.close(link, NEAR)

    def _restart(self) -> None:
        """The server dies, and another run begins after a while."""
        if not self.server.is_alive:
            return
        self.world.seen["server restarts"] += 1
        self.server.crash()
        self.world.after(RESTART_S, self._start_again)

    def _start_again(self) -> None:
        self.server = self._start_server()


class _Stranger:
    """Somebody who says nonsense, and listens to nothing."""

    def took(self, link: Link, header: bytes, frames: Frames) -> None: ...

    def lost(self, link: Link) -> None: ...


class _Often:
    """Something that happens now and then, as long as things go wrong."""

    def __init__(self, swarm: Swarm, rate: float, what: Callable[[], None]) -> None:
        self._swarm = swarm
        self._what = what
        self._mean_s = 1 / rate
        self._rng: Generator = swarm.world.draws(what.__name__)

    def plan(self) -> None:
        self._swarm.world.after(float(self._rng.exponential(self._mean_s)), self._happen)

    def _happen(self) -> None:
        if self._swarm.is_faulty:
            self._what()
            self.plan()
