"""What holds after every event, from outside: counted by what was said and done, not by the parts' own books."""

from collections import Counter

import numpy as np
from torch import Tensor

from support import coordinator_invariants as invariants
from swarm.bookkeeping import Bookkeeping, check_stored, check_taken_up
from swarm.client import Process, said, vector
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
    """The real coordinator, looked at after every event. is_watched: it is no replay that it handles."""

    def __init__(self, settings: CoordinatorSettings, ledger: "Ledger") -> None:
        super().__init__(settings)
        self._ledger = ledger
        self.is_watched = False

    def handle(self, event: events.Event) -> list[actions.Action]:
        done = super().handle(event)
        if self.is_watched:
            invariants.check(self)
            self._ledger.happened(self, event, done)
        return done


class Ledger:
    """One run's account, over all the lives of its server."""

    def __init__(self, run_id: str, options: Options, world: World, *, may_damage: bool) -> None:
        """may_damage: messages may change on the way, so that what arrives is anybody's guess."""
        self.run_id = run_id
        self.bookkeeping = Bookkeeping()
        self._settings = options.coordinator
        self._world = world
        self._may_damage = may_damage
        self._in_order = options.toxic_types.isdisjoint(OUT_OF_ORDER)
        self._down_in_order = options.keeps_order_down
        self._announces = options.transfers is not None
        self._hostile = options.hostile
        self._may_blunder = may_damage or options.manners.non_finite > 0
        self._bounds = options.bounds
        # What happened, in order, and how much of it is durable; and what cannot be taken back.
        self._history: list[tuple[events.Event, list[actions.Action]]] = []
        self._durable = 0
        self._models = {0: model(0, 0)}
        self._chains = {0: 0}
        self._makings: dict[int, tuple[tuple[actions.Contribution, ...], int]] = {}  # rounds, and their chains
        self._told: dict[int, Ack] = {}  # the first that was said of a task
        self._given_s: dict[int, float] = {}
        self._held: dict[int, Process] = {}  # tasks that came, and were not given back
        self._made: set[tuple[int, int]] = set()  # client and task
        self._unheard: Counter[int] = Counter()  # models that a client was sent since it was last heard of
        self._client_of: dict[bytes, int] = {}
        self._newest_sent: Counter[int] = Counter()
        self._out_until_s: dict[int, float] = {}  # clients in quarantine
        self._bad: Counter[int] = Counter()  # updates of hostile clients that were refused, since they were taken out

    def given_s(self, task_id: int) -> float:
        """When a task was given; long ago, if it was not."""
        return self._given_s.get(task_id, 0.0)

    # --- the coordinator ---

    def happened(self, coordinator: Coordinator, event: events.Event, done: list[actions.Action]) -> None:
        """An event, and what came of it."""
        self._world.seen[type(event).__name__] += 1
        self._world.note("coordinator", _short(event))
        if isinstance(event, events.TaskLost) and self._in_order:
            holder = self._held.get(event.task_id)
            # The model of another version than the current one may be held no more.
            is_old = self._announces and self.bookkeeping.given[event.task_id].version != coordinator.version
            assert is_old or holder is None or not holder.alive, (
                f"{holder.name} has task {event.task_id}, which is called lost"
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
        self.bookkeeping.happened(coordinator, event, done)
        self.bookkeeping.check(coordinator)
        self._history.append((event, done))
        if isinstance(event, events.RoundApplied):
            self._has_version(event.version)

    def _has_version(self, version: int) -> None:
        """A round is made; should it not be durable, it is made again, perhaps another one."""
        _, chain = self._makings[version]
        self._chains[version], self._models[version] = chain, model(version, chain)

    def check_rows(self, command: ApplyCommand) -> None:
        """The staged rows are those of the round's updates, in order; and the same if they are staged again."""
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
        assert before == (members, chain), "a round that is made again is another one"

    # --- a server that dies, and comes back ---

    def committed(self) -> None:
        """All that happened is durable."""
        self._durable = len(self._history)

    def server_died(self) -> None:
        """What was not durable never happened. Whoever comes next does not know who was quarantined."""
        del self._history[self._durable :]
        self._unheard.clear()
        self._out_until_s.clear()
        self._bad.clear()

    def taken_up(self, coordinator: Coordinator, learner: PlayedLearner, database: Database, at_s: float) -> None:
        """A server has come back, and goes on at this time of the run. It must know all that was durable, and nothing
        else."""
        while self._history and self._history[-1][0].at_s > at_s:
            self._history.pop()  # heartbeats and the like, of which there are no records
        self.bookkeeping, undisturbed = self._played_again()
        check_taken_up(coordinator, undisturbed)
        version = coordinator.version
        # A round that was closed is made again, and the same; others never were.
        ends = version + (undisturbed.making is not None)
        self._makings = {made: what for made, what in self._makings.items() if made <= ends}
        assert (learner.version, learner.chains[version]) == (version, self._chains[version]), (
            f"version {version} is another one than it was"
        )
        for task_id, ack in self._told.items():
            assert ack.first_outcome != "accepted" or task_id in self.bookkeeping.accepted, (
                f"task {task_id} was acknowledged, and is forgotten"
            )
        self.check_stored(database)

    def check_stored(self, database: Database) -> None:
        """What is in the database is what happened."""
        digests = {version: version_of(version, chain).digest for version, chain in self._chains.items()}
        check_stored(database, self.bookkeeping, digests)

    def _played_again(self) -> tuple[Bookkeeping, Coordinator]:
        """What a server would have come to that lived all the time: it handles the same, and must do the same."""
        bookkeeping, coordinator = Bookkeeping(), Coordinator(self._settings)
        was_stopped = False
        for event, done in self._history:
            if isinstance(event, events.StopRequested):
                was_stopped = True  # the run was not: it goes on from before
                continue
            was_stopped &= not isinstance(event, events.Resumed)
            again = coordinator.handle(event)
            assert was_stopped or again == done, f"{event} came to {again} and to {done}"
            bookkeeping.happened(coordinator, event, again)
        bookkeeping.check(coordinator)
        return bookkeeping, coordinator

    # --- what the server hears and says ---

    def quarantined(self, client_id: int) -> None:
        """A client is to be kept out from now on."""
        self._world.seen["quarantined"] += 1
        assert client_id in self._hostile or self._may_blunder, f"client {client_id} is innocent"
        self._out_until_s[client_id] = self._world.now_s + self._bounds.quarantine_s
        self._bad[client_id] = 0

    def forgiven(self, client_id: int) -> None:
        """A client is not blamed for what most clients are refused for at the same time."""
        self._bad[client_id] = 0

    def is_out(self, client_id: int) -> bool:
        """Whether a client is kept out, or has not come back since."""
        return client_id in self._out_until_s

    def turn_ends(self) -> None:
        """All is said that followed."""
        after = self._bounds.quarantine_after
        for client_id, bad in self._bad.items():
            assert bad < after, f"client {client_id} is heard still, having been refused {bad} times"

    def server_heard(self, link: Link, header: bytes) -> None:
        """Before the server takes it in."""
        try:
            message = codec.decode(header)
        except RemoteContractError as error:
            self._world.note("server", f"hears {error.reason.value} on {link.number}")
            return
        self._world.note("server", f"hears {said(message)} on {link.number}")
        if isinstance(message, Hello) and message.client_id < self._settings.clients:
            self._client_of[link.route] = message.client_id
        client_id = self._client_of.get(link.route)
        if client_id is not None:
            self._unheard[client_id] = 0

    def server_said(self, link: Link, header: bytes, frames: Frames) -> None:
        """A message is on its way."""
        message = codec.decode(header)
        self._world.note("server", f"says {said(message)} on {link.number}")
        client_id = self._client_of.get(link.route)
        if isinstance(message, Task):
            self._said_task(message, frames)
        elif isinstance(message, Ack):
            self._said_ack(message)
        if isinstance(message, Task | Welcome) and client_id in self._out_until_s:
            until_s = self._out_until_s.pop(client_id)
            assert self._world.now_s >= until_s - _SAME_S, f"client {client_id} is let in too early"

    def _said_task(self, task: Task, frames: Frames) -> None:
        given = self.bookkeeping.given[task.task_id]
        assert given.version == task.version
        if task.checksum is None:
            assert bytes(frames[0]) == self._models[task.version], "a task carries another version's model"
        else:
            self._world.seen["models announced"] += 1
        client_id = given.client_id
        assert self._unheard[client_id] < UNHEARD_MAX, f"client {client_id} is sent one model after the other"
        assert task.task_id > self._newest_sent[client_id], "a task is sent again, or an older one"
        self._newest_sent[client_id] = task.task_id
        self._unheard[client_id] += 1

    def _said_ack(self, ack: Ack) -> None:
        task_id = ack.task_id
        if ack.first_outcome == "accepted":
            assert task_id in self.bookkeeping.accepted, f"task {task_id} is acknowledged, and not accepted"
        if task_id not in self.bookkeeping.given or ack.reason is Reason.UNKNOWN_TASK:
            return
        first = self._told.setdefault(task_id, ack)
        counts_and_is_told_else = task_id in self.bookkeeping.accepted and ack.first_outcome != "accepted"
        if counts_and_is_told_else or (first.first_outcome, first.reason) != (ack.first_outcome, ack.reason):
            self._check_forgotten_verdict(task_id, ack, first)

    def _check_forgotten_verdict(self, task_id: int, ack: Ack, first: Ack) -> None:
        """A verdict that is forgotten may be told wrong, but never counts twice."""
        clients = self._settings.clients
        newer = (max(self._given_to(self.bookkeeping.given[task_id].client_id)) - task_id) // clients
        assert newer >= REMEMBERED_VERDICTS and ack.reason in (Reason.EXPIRED_TASK, Reason.RUN_FINISHED), (
            f"of task {task_id} its client was told {said(first)}, and then {said(ack)}"
        )
        self._world.seen["verdicts forgotten"] += 1

    def _given_to(self, client_id: int) -> list[int]:
        return [task_id for task_id, given in self.bookkeeping.given.items() if given.client_id == client_id]

    # --- clients ---

    def made(self, process: Process, update: Update) -> None:
        """A client has an update that it did not have before."""
        key = process.client_id, update.task_id
        if not self._may_damage:
            assert self.bookkeeping.given[update.task_id].client_id == process.client_id
            assert self.bookkeeping.given[update.task_id].version == update.base_version
        self._made.add(key)

    def trains(self, train: Train) -> None:
        """A client begins to work on a task."""
        came = b"".join(bytes(frame) for frame in train.parcel)
        same = came == self._models.get(train.task.version)
        assert same or self._may_damage, f"task {train.task.task_id} comes with another model than its version's"

    def failed(self, task_id: int) -> None:
        """A client gives a task back, or says so."""
        self._held.pop(task_id, None)

    def client_heard(self, process: Process, message: object, frames: Frames) -> None:
        """Before the client takes it in."""
        held = len(process.unacknowledged)
        assert held < limits.HOLDING_MAX, f"{process.name} keeps {held} updates"
        if self._may_damage:
            return
        if isinstance(message, Task):
            if message.run_id != self.run_id:
                return  # of a run whose welcome was lost: nothing is to come of it
            assert self.bookkeeping.given[message.task_id].client_id == process.client_id
            self._held[message.task_id] = process
            called_lost = message.task_id in self.bookkeeping.lost and process.session.state is State.IN
            assert self._announces or not (self._down_in_order and called_lost), (
                f"task {message.task_id} comes, which is called lost"
            )
        elif isinstance(message, Ack):
            counts = message.task_id in self.bookkeeping.accepted
            assert counts or message.first_outcome == "rejected", "a client is told that its update counts"


class Order:
    """What comes out of the injector, against what went in: on each line in the same order, unless a toxic is to change
    it; nothing more than went in, unless a toxic repeats."""

    def __init__(self, toxics: frozenset[str]) -> None:
        self._strict = toxics.isdisjoint(OUT_OF_ORDER)
        self._conserves = toxics.isdisjoint({"duplicate", "corrupt"})
        self._entered: dict[tuple[int, Direction], list[bytes]] = {}

    def passed(self, link: Link, direction: Direction, header: bytes, out: bool) -> None:
        """A message enters, or goes on."""
        waiting = self._entered.setdefault((link.number, direction), [])
        if not out:
            waiting.append(header)
            return
        if not self._conserves or (direction is Direction.UP and b"unavailable" in header):
            return
        assert header in waiting, "the injector says what nobody said"
        place = waiting.index(header)
        del waiting[: place + 1 if self._strict else 0]
        if not self._strict:
            waiting.remove(header)


def _short(event: events.Event) -> str:
    fields = " ".join(
        f"{name}={getattr(event, name)}" for name in event.__dataclass_fields__ if name not in ("at_s", "handle")
    )
    return f"{type(event).__name__} {fields}"
