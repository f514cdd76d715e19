"""Invariants after every event, from outside: counted from messages and actions, not from the parts' own state."""

from collections import Counter

import numpy as np
from torch import Tensor

from support import coordinator_invariants as invariants
from swarm.bookkeeping import Bookkeeping, check_resumed, check_stored
from swarm.client import Process, summary, vector
from swarm.learning import NUMBERS, PlayedLearner, chained, model, version_of
from swarm.network import Frames, Link
from swarm.options import OUT_OF_ORDER, Options
from swarm.world import World
from unstale.coordinator import actions, events
from unstale.coordinator.admission import REMEMBERED_VERDICTS
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.journal.database import Database
from unstale.server.client_limits import BLAMED
from unstale.server.commands import ApplyCommand
from unstale.toxics.in_flight import Direction
from unstale_client.actions import Train
from unstale_client.session import State
from unstale_proto import codec, limits
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Ack, Hello, Task, Update, Welcome

UNHEARD_MAX = 1
_SAME_S = 1e-6


class Watched(Coordinator):
    """The real coordinator, checked after every event. is_watched: False during a replay."""

    def __init__(self, settings: CoordinatorSettings, ledger: "Ledger") -> None:
        super().__init__(settings)
        self._ledger = ledger
        self.is_watched = False

    def handle(self, event: events.Event) -> list[actions.Action]:
        done = super().handle(event)
        if self.is_watched:
            invariants.check(self)
            self._ledger.record(self, event, done)
        return done


class Ledger:
    """The account of one run, over all processes of its server."""

    def __init__(self, run_id: str, options: Options, world: World, *, may_damage: bool) -> None:
        """may_damage: messages may change in transit, so that their content is unpredictable."""
        self.run_id = run_id
        self.bookkeeping = Bookkeeping()
        self._settings = options.coordinator
        self._world = world
        self._may_damage = may_damage
        self._in_order = options.toxic_types.isdisjoint(OUT_OF_ORDER)
        self._down_in_order = options.keeps_order_down
        self._announces = options.transfers is not None
        self._hostile = options.hostile
        self._may_blunder = may_damage or options.behaviour.non_finite > 0
        self._bounds = options.bounds
        # Events in order, the number of durable ones, and irrevocable facts.
        self._history: list[tuple[events.Event, list[actions.Action]]] = []
        self._durable = 0
        self._models = {0: model(0, 0)}
        self._chains = {0: 0}
        self._makings: dict[int, tuple[tuple[actions.Contribution, ...], int]] = {}  # rounds, and their chains
        self._first_acks: dict[int, Ack] = {}  # the first ack of each task
        self._given_s: dict[int, float] = {}
        self._held: dict[int, Process] = {}  # received tasks that were not returned
        self._made: set[tuple[int, int]] = set()  # client and task
        self._unanswered: Counter[int] = Counter()  # models sent to a client since its last message
        self._client_of: dict[bytes, int] = {}
        self._newest_sent: Counter[int] = Counter()
        self._out_until_s: dict[int, float] = {}  # clients in quarantine
        self._bad: Counter[int] = Counter()  # refused updates of hostile clients, since their exclusion

    def given_s(self, task_id: int) -> float:
        """When a task was assigned; 0 if it was not."""
        return self._given_s.get(task_id, 0.0)

    # --- the coordinator ---

    def record(self, coordinator: Coordinator, event: events.Event, done: list[actions.Action]) -> None:
        """An event, and its actions."""
        self._world.seen[type(event).__name__] += 1
        self._world.note("coordinator", _short(event))
        if isinstance(event, events.TaskLost) and self._in_order:
            holder = self._held.get(event.task_id)
            # The model of a version other than the current one may already be dropped.
            is_old = self._announces and self.bookkeeping.given[event.task_id].version != coordinator.version
            assert is_old or holder is None or not holder.alive, (
                f"{holder.name} has task {event.task_id}, which is declared lost"
            )
        for action in done:
            if isinstance(action, actions.SendTask):
                self._given_s[action.task_id] = self._world.now_s
            elif isinstance(action, actions.Acknowledge) and action.outcome is actions.Outcome.ACCEPTED:
                key = action.client_id, action.task_id
                assert self._may_damage or key in self._made, (
                    f"an update of task {action.task_id} counts that client {action.client_id} did not make"
                )
            elif isinstance(action, actions.Acknowledge) and action.outcome is actions.Outcome.REJECTED:
                self._bad[action.client_id] += action.client_id in self._hostile and action.reason in BLAMED
            elif isinstance(action, actions.ApplyRound):
                self._world.seen["rounds"] += 1
                self._world.seen["updates in rounds"] += len(action.contributions)
        self.bookkeeping.record(coordinator, event, done)
        self.bookkeeping.check(coordinator)
        self._history.append((event, done))
        if isinstance(event, events.RoundApplied):
            self._add_version(event.version)

    def _add_version(self, version: int) -> None:
        """A round is aggregated; if it is not durable, another one may replace it."""
        _, chain = self._makings[version]
        self._chains[version], self._models[version] = chain, model(version, chain)

    def check_rows(self, command: ApplyCommand) -> None:
        """The staged rows are those of the round's updates, in order, also when they are staged again."""
        members, rows = self.bookkeeping.round, command.round.rows
        matrix_KD = rows if isinstance(rows, Tensor) else rows.columns(0, NUMBERS)
        assert [update.client_id for update in command.updates] == [one.client_id for one in members]
        assert matrix_KD.shape == (len(members), NUMBERS)
        for row_D, one in zip(matrix_KD, members, strict=True):
            expected = np.frombuffer(vector(one.client_id, one.task_id, one.base_version)[0], dtype="<f4")
            same = np.array_equal(row_D.numpy(), expected)
            assert same or self._may_damage, f"the row of task {one.task_id} holds {row_D.tolist()}"
        version = next(reversed(self.bookkeeping.rounds), 0)
        chain = chained(self._chains[version], matrix_KD, command.updates)
        before = self._makings.setdefault(version + 1, (members, chain))
        assert before == (members, chain), "a repeated aggregation has another result"

    # --- a server that dies and resumes ---

    def committed(self) -> None:
        """All events are durable."""
        self._durable = len(self._history)

    def server_died(self) -> None:
        """Drop events that are not durable. The next server process does not know the quarantined clients."""
        del self._history[self._durable :]
        self._unanswered.clear()
        self._out_until_s.clear()
        self._bad.clear()

    def resumed(self, coordinator: Coordinator, learner: PlayedLearner, database: Database, at_s: float) -> None:
        """A server has resumed at this time of the run. It must have the state of all durable events, and nothing
        else."""
        while self._history and self._history[-1][0].at_s > at_s:
            self._history.pop()  # heartbeats and similar events, which are not recorded
        self.bookkeeping, undisturbed = self._replayed()
        check_resumed(coordinator, undisturbed)
        version = coordinator.version
        # A closed round is aggregated again with the same result; others are dropped.
        ends = version + (undisturbed.making is not None)
        self._makings = {made: what for made, what in self._makings.items() if made <= ends}
        assert (learner.version, learner.chains[version]) == (version, self._chains[version]), (
            f"version {version} differs from before"
        )
        for task_id, ack in self._first_acks.items():
            assert ack.first_outcome != "accepted" or task_id in self.bookkeeping.accepted, (
                f"task {task_id} was acknowledged and lost"
            )
        self.check_stored(database)

    def check_stored(self, database: Database) -> None:
        """The database matches the events."""
        digests = {version: version_of(version, chain).digest for version, chain in self._chains.items()}
        check_stored(database, self.bookkeeping, digests)

    def _replayed(self) -> tuple[Bookkeeping, Coordinator]:
        """The state of a server without restarts: it handles the same events, and must return the same actions."""
        bookkeeping, coordinator = Bookkeeping(), Coordinator(self._settings)
        was_stopped = False
        for event, done in self._history:
            if isinstance(event, events.StopRequested):
                was_stopped = True  # the run was not stopped: it resumes from before
                continue
            was_stopped &= not isinstance(event, events.Resumed)
            again = coordinator.handle(event)
            assert was_stopped or again == done, f"{event} came to {again} and to {done}"
            bookkeeping.record(coordinator, event, again)
        bookkeeping.check(coordinator)
        return bookkeeping, coordinator

    # --- messages of the server ---

    def quarantined(self, client_id: int) -> None:
        """A client is excluded from now on."""
        self._world.seen["quarantined"] += 1
        assert client_id in self._hostile or self._may_blunder, f"client {client_id} is innocent"
        self._out_until_s[client_id] = self._world.now_s + self._bounds.quarantine_s
        self._bad[client_id] = 0

    def forgiven(self, client_id: int) -> None:
        """A client is not blamed for a reason for which most clients are refused at the same time."""
        self._bad[client_id] = 0

    def is_excluded(self, client_id: int) -> bool:
        """Whether a client is excluded, or has not returned since."""
        return client_id in self._out_until_s

    def turn_ends(self) -> None:
        """All messages of the turn are sent."""
        after = self._bounds.quarantine_after
        for client_id, bad in self._bad.items():
            assert bad < after, f"client {client_id} is still accepted after {bad} refusals"

    def server_received(self, link: Link, header: bytes) -> None:
        """Before the server processes it."""
        try:
            message = codec.decode(header)
        except RemoteContractError as error:
            self._world.note("server", f"hears {error.reason.value} on {link.number}")
            return
        self._world.note("server", f"hears {summary(message)} on {link.number}")
        if isinstance(message, Hello) and message.client_id < self._settings.clients:
            self._client_of[link.route] = message.client_id
        client_id = self._client_of.get(link.route)
        if client_id is not None:
            self._unanswered[client_id] = 0

    def server_sent(self, link: Link, header: bytes, frames: Frames) -> None:
        """A message is in transit."""
        message = codec.decode(header)
        self._world.note("server", f"says {summary(message)} on {link.number}")
        client_id = self._client_of.get(link.route)
        if isinstance(message, Task):
            self._sent_task(message, frames)
        elif isinstance(message, Ack):
            self._sent_ack(message)
        if isinstance(message, Task | Welcome) and client_id in self._out_until_s:
            until_s = self._out_until_s.pop(client_id)
            assert self._world.now_s >= until_s - _SAME_S, f"client {client_id} is readmitted too early"

    def _sent_task(self, task: Task, frames: Frames) -> None:
        given = self.bookkeeping.given[task.task_id]
        assert given.version == task.version
        if task.checksum is None:
            assert bytes(frames[0]) == self._models[task.version], "a task carries another version's model"
        else:
            self._world.seen["models announced"] += 1
        client_id = given.client_id
        assert self._unanswered[client_id] < UNHEARD_MAX, f"client {client_id} gets one model after the other"
        assert task.task_id > self._newest_sent[client_id], "a task is sent again, or an older one"
        self._newest_sent[client_id] = task.task_id
        self._unanswered[client_id] += 1

    def _sent_ack(self, ack: Ack) -> None:
        task_id = ack.task_id
        if ack.first_outcome == "accepted":
            assert task_id in self.bookkeeping.accepted, f"task {task_id} is acknowledged, and not accepted"
        if task_id not in self.bookkeeping.given or ack.reason is Reason.UNKNOWN_TASK:
            return
        first = self._first_acks.setdefault(task_id, ack)
        is_contradicted = task_id in self.bookkeeping.accepted and ack.first_outcome != "accepted"
        if is_contradicted or (first.first_outcome, first.reason) != (ack.first_outcome, ack.reason):
            self._check_forgotten_verdict(task_id, ack, first)

    def _check_forgotten_verdict(self, task_id: int, ack: Ack, first: Ack) -> None:
        """A forgotten verdict may be reported wrong, but never counts twice."""
        clients = self._settings.clients
        newer = (max(self._tasks_of(self.bookkeeping.given[task_id].client_id)) - task_id) // clients
        assert newer >= REMEMBERED_VERDICTS and ack.reason in (Reason.EXPIRED_TASK, Reason.RUN_FINISHED), (
            f"the client of task {task_id} received {summary(first)}, and then {summary(ack)}"
        )
        self._world.seen["verdicts forgotten"] += 1

    def _tasks_of(self, client_id: int) -> list[int]:
        return [task_id for task_id, given in self.bookkeeping.given.items() if given.client_id == client_id]

    # --- clients ---

    def made(self, process: Process, update: Update) -> None:
        """A client has a new update."""
        key = process.client_id, update.task_id
        if not self._may_damage:
            assert self.bookkeeping.given[update.task_id].client_id == process.client_id
            assert self.bookkeeping.given[update.task_id].version == update.base_version
        self._made.add(key)

    def trains(self, train: Train) -> None:
        """A client begins to work on a task."""
        came = b"".join(bytes(frame) for frame in train.parcel)
        same = came == self._models.get(train.task.version)
        assert same or self._may_damage, f"task {train.task.task_id} has the model of another version"

    def failed(self, task_id: int) -> None:
        """A client returns a task, or reports its failure."""
        self._held.pop(task_id, None)

    def client_received(self, process: Process, message: object, frames: Frames) -> None:
        """Before the client processes it."""
        held = len(process.unacknowledged)
        assert held < limits.HOLDING_MAX, f"{process.name} keeps {held} updates"
        if self._may_damage:
            return
        if isinstance(message, Task):
            if message.run_id != self.run_id:
                return  # of a run whose welcome was lost: the client ignores it
            assert self.bookkeeping.given[message.task_id].client_id == process.client_id
            self._held[message.task_id] = process
            called_lost = message.task_id in self.bookkeeping.lost and process.session.state is State.IN
            assert self._announces or not (self._down_in_order and called_lost), (
                f"task {message.task_id} arrives, although declared lost"
            )
        elif isinstance(message, Ack):
            counts = message.task_id in self.bookkeeping.accepted
            assert counts or message.first_outcome == "rejected", "a client gets an acceptance of a rejected update"


class Order:
    """The outputs of the injector against its inputs: on each line in the same order, unless a toxic may change
    it; no additional messages, unless a toxic duplicates."""

    def __init__(self, toxics: frozenset[str]) -> None:
        self._strict = toxics.isdisjoint(OUT_OF_ORDER)
        self._conserves = toxics.isdisjoint({"duplicate", "corrupt"})
        self._entered: dict[tuple[int, Direction], list[bytes]] = {}

    def passed(self, link: Link, direction: Direction, header: bytes, out: bool) -> None:
        """A message enters, or is forwarded."""
        waiting = self._entered.setdefault((link.number, direction), [])
        if not out:
            waiting.append(header)
            return
        if not self._conserves or (direction is Direction.UP and b"unavailable" in header):
            return
        assert header in waiting, "the injector forwards an unknown message"
        place = waiting.index(header)
        del waiting[: place + 1 if self._strict else 0]
        if not self._strict:
            waiting.remove(header)


def _short(event: events.Event) -> str:
    fields = " ".join(
        f"{name}={getattr(event, name)}" for name in event.__dataclass_fields__ if name not in ("at_s", "handle")
    )
    return f"{type(event).__name__} {fields}"
