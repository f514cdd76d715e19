"""What holds after every event, from outside: counted by what was said and done, not by the parts' own books."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from swarm.client import NUMBERS, Process, model, said, vector
from swarm.network import Frames, Link
from swarm.options import OUT_OF_ORDER
from swarm.world import World
from unstale.client.instructions import Train
from unstale.client.session import State
from unstale.coordinator import actions, events, invariants
from unstale.coordinator.admission import REMEMBERED_VERDICTS
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.server.commands import ApplyCommand
from unstale.toxics.flight import Direction
from unstale_proto import codec, limits
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Ack, Hello, Task, Update

UNHEARD_MAX = 1


class Watched(Coordinator):
    """The real coordinator, looked at after every event."""

    def __init__(self, settings: CoordinatorSettings, ledger: "Ledger") -> None:
        super().__init__(settings)
        self._ledger = ledger

    def handle(self, event: events.Event) -> list[actions.Action]:
        done = super().handle(event)
        invariants.check(self)
        self._ledger.happened(self, event, done)
        return done


class Ledger:
    """One run's account.

    may_damage: messages may change on the way, so that what arrives is anybody's guess. in_order: none overtakes
    another. down_in_order: none that goes down does. announces: payloads go in chunks.
    """

    def __init__(
        self,
        run_id: str,
        settings: CoordinatorSettings,
        world: World,
        *,
        may_damage: bool,
        in_order: bool,
        down_in_order: bool,
        announces: bool,
    ) -> None:
        self.run_id = run_id
        self.clients = settings.clients
        self._world = world
        self._may_damage = may_damage
        self._in_order = in_order
        self._down_in_order = down_in_order
        self._announces = announces
        self._lost: set[int] = set()  # tasks that were called so
        self._given: dict[int, actions.SendTask] = {}
        self._given_s: dict[int, float] = {}
        self._held: dict[int, Process] = {}  # tasks that came, and were not given back
        self._made: set[tuple[int, int]] = set()  # client and task
        self._accepted: dict[int, events.UpdateArrived] = {}
        self._refused: set[int] = set()
        self._aggregated: set[int] = set()
        self._forgotten: set[int] = set()
        self._round: tuple[actions.Contribution, ...] = ()
        self._unheard: Counter[int] = Counter()  # models that a client was sent since it was last heard of
        self._client_of: dict[bytes, int] = {}
        self._newest_sent: Counter[int] = Counter()

    def given_s(self, task_id: int) -> float:
        """When a task was given; long ago, if it was not."""
        return self._given_s.get(task_id, 0.0)

    # --- the coordinator ---

    def happened(self, coordinator: Coordinator, event: events.Event, done: Sequence[actions.Action]) -> None:
        """An event, and what came of it."""
        self._world.seen[type(event).__name__] += 1
        self._world.note("coordinator", _short(event))
        if isinstance(event, events.TaskLost) and self._in_order:
            holder = self._held.get(event.task_id)
            # The model of another version than the current one may be held no more.
            is_old = self._announces and self._given[event.task_id].version != coordinator.version
            assert is_old or holder is None or not holder.alive, (
                f"{holder.name} has task {event.task_id}, which is called lost"
            )
        if isinstance(event, events.TaskLost):
            self._lost.add(event.task_id)
        for action in done:
            match action:
                case actions.SendTask():
                    self._send_task(coordinator, action)
                case actions.Acknowledge():
                    self._acknowledge(event, action)
                case actions.ApplyRound():
                    self._apply_round(coordinator, action)
                case actions.ForgetVersion(version=version):
                    assert version not in self._forgotten, f"version {version} is forgotten twice"
                    assert version < coordinator.version
                    self._forgotten.add(version)
                case _:
                    pass
        assert coordinator.accepted == len(self._accepted)
        making = coordinator.making or ()
        assert len(self._aggregated) == coordinator.aggregated + len(making)
        unaggregated = {update.task_id for update in coordinator.pending}
        assert self._aggregated.isdisjoint(unaggregated), "an update waits that a round holds already"
        assert self._aggregated | unaggregated == self._accepted.keys(), (
            "what was accepted is not what rounds hold and what waits for one"
        )

    def _send_task(self, coordinator: Coordinator, action: actions.SendTask) -> None:
        assert action.task_id not in self._given, f"task {action.task_id} is given twice"
        assert action.version <= coordinator.version
        assert action.version not in self._forgotten, (
            f"a task on version {action.version}, which is forgotten"
        )
        self._given[action.task_id] = action
        self._given_s[action.task_id] = self._world.now_s

    def _acknowledge(self, event: events.Event, action: actions.Acknowledge) -> None:
        assert isinstance(event, events.UpdateArrived)
        task_id = action.task_id
        if action.outcome is actions.Outcome.ACCEPTED:
            given = self._given[task_id]
            assert given.client_id == action.client_id, "an update counts for a task of another client"
            assert given.version == event.base_version, "an update counts that was made of another version"
            assert task_id not in self._accepted, f"the update of task {task_id} counts twice"
            assert task_id not in self._refused, f"the update of task {task_id} was refused, and counts"
            assert self._may_damage or (action.client_id, task_id) in self._made, (
                f"an update of task {task_id} counts that client {action.client_id} did not make"
            )
            self._accepted[task_id] = event
        elif action.outcome is actions.Outcome.REJECTED and task_id in self._given:
            self._refused.add(task_id)

    def _apply_round(self, coordinator: Coordinator, action: actions.ApplyRound) -> None:
        self._world.seen["rounds"] += 1
        self._world.seen["updates in rounds"] += len(action.contributions)
        for contribution in action.contributions:
            task_id = contribution.task_id
            assert task_id in self._accepted, f"a round holds task {task_id}, which was not accepted"
            assert task_id not in self._aggregated, f"two rounds hold task {task_id}"
            assert contribution.base_version not in self._forgotten
            assert contribution.base_version == self._given[task_id].version
            assert contribution.staleness == coordinator.version - contribution.base_version
            self._aggregated.add(task_id)
        self._round = action.contributions

    def check_rows(self, command: ApplyCommand) -> None:
        """The staged rows are those of the round's updates, in order."""
        assert [update.client_id for update in command.updates] == [one.client_id for one in self._round]
        assert command.round.rows.shape == (len(self._round), NUMBERS)
        for row_D, one in zip(command.round.rows, self._round, strict=True):
            expected = np.frombuffer(vector(one.client_id, one.task_id, one.base_version)[0], dtype="<f4")
            same = np.array_equal(row_D.numpy(), expected)
            assert same or self._may_damage, f"the row of task {one.task_id} holds {row_D.tolist()}"

    # --- what the server hears and says ---

    def server_heard(self, link: Link, header: bytes) -> None:
        """Before the server takes it in."""
        try:
            message = codec.decode(header)
        except RemoteContractError as error:
            self._world.note("server", f"hears {error.reason.value} on {link.number}")
            return
        self._world.note("server", f"hears {said(message)} on {link.number}")
        if isinstance(message, Hello):
            self._client_of[link.route] = message.client_id
        client_id = self._client_of.get(link.route)
        if client_id is not None:
            self._unheard[client_id] = 0

    def server_said(self, link: Link, header: bytes, frames: Frames) -> None:
        """A message is on its way."""
        message = codec.decode(header)
        self._world.note("server", f"says {said(message)} on {link.number}")
        if isinstance(message, Task):
            given = self._given[message.task_id]
            assert given.version == message.version
            if message.checksum is None:
                assert bytes(frames[0]) == bytes(model(message.version)[0]), (
                    "a task carries another version's model"
                )
            else:
                self._world.seen["models announced"] += 1
            client_id = given.client_id
            assert self._unheard[client_id] < UNHEARD_MAX, (
                f"client {client_id} is sent one model after the other"
            )
            assert message.task_id > self._newest_sent[client_id], "a task is sent again, or an older one"
            self._newest_sent[client_id] = message.task_id
            self._unheard[client_id] += 1
        if isinstance(message, Ack):
            task_id = message.task_id
            if message.first_outcome == "accepted":
                assert task_id in self._accepted, f"task {task_id} is acknowledged, and not accepted"
            elif task_id in self._accepted:
                self._check_forgotten_verdict(task_id, message)

    def _check_forgotten_verdict(self, task_id: int, ack: Ack) -> None:
        """A verdict that is forgotten may be told wrong, but never counts twice."""
        newer = (max(self._given_to(self._given[task_id].client_id)) - task_id) // self.clients
        assert newer >= REMEMBERED_VERDICTS and ack.reason in (Reason.EXPIRED_TASK, Reason.RUN_FINISHED), (
            f"task {task_id} is accepted, and its client is told {said(ack)}"
        )
        self._world.seen["verdicts forgotten"] += 1

    def _given_to(self, client_id: int) -> list[int]:
        return [task_id for task_id, given in self._given.items() if given.client_id == client_id]

    # --- clients ---

    def made(self, process: Process, update: Update) -> None:
        """A client has an update that it did not have before."""
        key = process.client_id, update.task_id
        if not self._may_damage:
            assert self._given[update.task_id].client_id == process.client_id
            assert self._given[update.task_id].version == update.base_version
        self._made.add(key)

    def trains(self, train: Train) -> None:
        """A client begins to work on a task."""
        came = b"".join(bytes(frame) for frame in train.parcel)
        same = came == bytes(model(train.task.version)[0])
        assert same or self._may_damage, (
            f"task {train.task.task_id} comes with another model than its version's"
        )

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
            assert self._given[message.task_id].client_id == process.client_id
            self._held[message.task_id] = process
            called_lost = message.task_id in self._lost and process.session.state is State.IN
            assert self._announces or not (self._down_in_order and called_lost), (
                f"task {message.task_id} comes, which is called lost"
            )
        elif isinstance(message, Ack):
            counts = message.task_id in self._accepted
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
        f"{name}={getattr(event, name)}"
        for name in event.__dataclass_fields__
        if name not in ("at_s", "handle")
    )
    return f"{type(event).__name__} {fields}"
