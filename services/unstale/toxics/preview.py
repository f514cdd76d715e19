"""What the clients of a scenario would see: tasks and updates played through it, without a server or a clock."""

from collections.abc import Sequence
from dataclasses import dataclass

from unstale.toxics.blackout import Blackout
from unstale.toxics.client_info import ClientInfo
from unstale.toxics.device import Devices
from unstale.toxics.dropout import Dropout
from unstale.toxics.in_flight import Direction, InFlightMessage, MessageType
from unstale.toxics.link import ToxicLink
from unstale.toxics.scenario import Conditions, Scenario

PLAYED_MAX = (
    100  # clients of a group that are played; more do not change a distribution that anybody looks at
)
TASKS_MAX = 40  # that each of them is given
BINS = 60  # of the time line
NO_GROUP = "in no group"
_HEADER_BYTES = 200  # of a task or an update, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What some clients saw of their tasks. Seconds, one a message that came through.

    tasks, updates: how many were sent. computing_s: of every task that arrived. declined: tasks that were given back.
    """

    tasks: int
    updates: int
    down_s: tuple[float, ...]
    computing_s: tuple[float, ...]
    up_s: tuple[float, ...]
    declined: int

    @property
    def tasks_lost(self) -> float:
        """Share of the tasks that went astray, declined ones not counted."""
        return (self.tasks - len(self.down_s) - self.declined) / self.tasks

    @property
    def updates_lost(self) -> float | None:
        """Share of the updates that went astray; None if there were none."""
        return None if not self.updates else (self.updates - len(self.up_s)) / self.updates

    @classmethod
    def of_all(cls, seen: "Sequence[Seen]") -> "Seen":
        """What several clients saw."""
        return cls(
            tasks=sum(one.tasks for one in seen),
            updates=sum(one.updates for one in seen),
            down_s=tuple(second for one in seen for second in one.down_s),
            computing_s=tuple(second for one in seen for second in one.computing_s),
            up_s=tuple(second for one in seen for second in one.up_s),
            declined=sum(one.declined for one in seen),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """clients: how many are in it. played: those that were played, ascending. there: of each of them, in each of `BINS`
    parts of the time, whether it was."""

    name: str
    clients: int
    stale_rounds: int | None
    played: tuple[int, ...]
    seen: Seen
    there: tuple[tuple[bool, ...], ...]

    @property
    def share_there(self) -> tuple[float, ...]:
        """Of the clients, in each part of the time."""
        return tuple(sum(bin_) / len(bin_) for bin_ in zip(*self.there, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """seconds: of the scenario that were played. by_time, by_rounds: by which of them clients come and go; a part of
    the time line is a round, too. groups: those that were named, and whoever is in none."""

    seconds: float
    by_time: bool
    by_rounds: bool
    groups: tuple[GroupSeen, ...]


def preview(
    scenario: Scenario,
    conditions: Conditions,
    client_info: ClientInfo,
    *,
    seed: int,
    payload_bytes: int,
    steps: int,
    seconds: float,
) -> Preview:
    """Play a scenario that was settled for these clients.

    payload_bytes: of a task, and of an update. steps: local steps of a task. seconds: how long to play.
    """
    members = {group.name: group.clients.resolve(client_info, seed, group.name) for group in scenario.groups}
    others = frozenset(range(client_info.clients)).difference(*members.values())
    if others:
        members[NO_GROUP] = others
    size_bytes = payload_bytes + _HEADER_BYTES
    player = _Player(conditions, seed, size_bytes=size_bytes, steps=steps, seconds=seconds)
    comes_and_goes = [one for one in conditions.toxics if isinstance(one.toxic, Dropout | Blackout)]
    gate = ToxicLink(comes_and_goes, seed)
    said = {group.name: group.stale_rounds for group in scenario.groups}
    there: dict[int, tuple[bool, ...]] = {}
    groups = []
    for name, clients in members.items():
        played = _some(sorted(clients))
        for client in played:
            if client not in there:
                there[client] = _there(gate, client, seconds)
        groups.append(
            GroupSeen(
                name=name,
                clients=len(clients),
                stale_rounds=said.get(name),
                played=played,
                seen=Seen.of_all([player.seen(client) for client in played]),
                there=tuple(there[client] for client in played),
            )
        )
    by_rounds = [isinstance(one.toxic, Dropout) and one.toxic.by_rounds for one in comes_and_goes]
    return Preview(
        seconds=seconds, by_time=not all(by_rounds), by_rounds=any(by_rounds), groups=tuple(groups)
    )


def _some(clients: Sequence[int]) -> tuple[int, ...]:
    """At most `PLAYED_MAX` of them, evenly spread."""
    count = min(len(clients), PLAYED_MAX)
    return tuple(clients[place * len(clients) // count] for place in range(count))


class _Player:
    """Gives a client one task after the other until the time is over, the next when its update is there, but at most
    `TASKS_MAX`. A client of several groups is played once."""

    def __init__(
        self, conditions: Conditions, seed: int, *, size_bytes: int, steps: int, seconds: float
    ) -> None:
        self._link = ToxicLink(conditions.toxics, seed)
        self._devices: Devices = conditions.devices
        self._size_bytes = size_bytes
        self._steps = steps
        self._seconds = seconds
        self._known: dict[int, Seen] = {}

    def seen(self, client_id: int) -> Seen:
        """What a client sees of its tasks."""
        if client_id not in self._known:
            self._known[client_id] = self._play(client_id)
        return self._known[client_id]

    def _play(self, client_id: int) -> Seen:
        down_s, computing_s, up_s = [], [], []
        number = updates = declined = 0
        now_s = 0.0
        while now_s < self._seconds:
            sent_s, now_s = now_s, now_s + self._seconds / TASKS_MAX
            number += 1
            task = _first(self._link.send(self._flight(client_id, "task", number, sent_s, sent_s)))
            if task is not None and task.declined:
                declined += 1
                continue
            if task is None:
                continue
            down_s.append(task.due_s - sent_s)
            computing_s.append(self._devices.duration_s(client_id, number, self._steps))
            done_s = task.due_s + computing_s[-1]
            update = _first(self._link.send(self._flight(client_id, "update", number, sent_s, done_s)))
            updates += 1
            now_s = max(now_s, done_s)
            if update is not None:
                up_s.append(update.due_s - done_s)
                now_s = max(now_s, update.due_s)
        return Seen(
            tasks=number,
            updates=updates,
            down_s=tuple(down_s),
            computing_s=tuple(computing_s),
            up_s=tuple(up_s),
            declined=declined,
        )

    def _flight(
        self, client_id: int, type_: MessageType, number: int, began_s: float, sent_s: float
    ) -> InFlightMessage:
        return _flight(client_id, type_, number, began_s, sent_s, self._size_bytes)


def _flight(
    client_id: int, type_: MessageType, number: int, began_s: float, sent_s: float, size_bytes: int
) -> InFlightMessage:
    return InFlightMessage(
        client_id=client_id,
        direction=Direction.DOWN if type_ == "task" else Direction.UP,
        type=type_,
        number=number,
        sent_s=sent_s,
        due_s=sent_s,
        began_s=began_s,
        size_bytes=size_bytes,
        header_bytes=_HEADER_BYTES,
        version=number if type_ == "task" else None,
    )


def _first(flights: tuple[InFlightMessage, ...]) -> InFlightMessage | None:
    """What comes out first and is no broken connection."""
    return min((one for one in flights if not one.cuts), key=lambda one: one.due_s, default=None)


def _there(gate: ToxicLink, client_id: int, seconds: float) -> tuple[bool, ...]:
    """Whether a client is there, in each part of the time: a task comes through at once."""
    there = []
    for part in range(BINS):
        at_s = (part + 0.5) * seconds / BINS
        out = _first(gate.send(_flight(client_id, "task", part, at_s, at_s, _HEADER_BYTES)))
        there.append(out is not None and not out.declined and out.due_s == at_s)
    return tuple(there)
