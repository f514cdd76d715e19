"""Preview of a scenario: simulated tasks and updates of its clients."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache

from unstale.toxics.blackout import Blackout
from unstale.toxics.client_filter import ClientInfo
from unstale.toxics.dropout import Dropout
from unstale.toxics.in_flight import Direction, InFlightMessage, MessageType
from unstale.toxics.link import ToxicLink
from unstale.toxics.scenario import Conditions, Scenario

PLAYED_MAX = 100  # simulated clients of a group
TASKS_MAX = 40  # of each client
BINS = 60  # of the time line
NO_GROUP = "in no group"
_HEADER_BYTES = 200  # of a task or an update, about


@dataclass(slots=True, kw_only=True)
class Seen:
    """Tasks and updates of some clients."""

    tasks: int = 0  # sent
    updates: int = 0
    declined: int = 0  # tasks
    down_s: list[float] = field(default_factory=list)  # transfer times of tasks that arrived, in seconds
    computing_s: list[float] = field(default_factory=list)  # their compute times
    up_s: list[float] = field(default_factory=list)  # transfer times of updates that arrived

    @property
    def tasks_lost(self) -> float:
        """Share of the tasks that were lost; declined tasks are not."""
        return (self.tasks - len(self.down_s) - self.declined) / self.tasks

    @property
    def updates_lost(self) -> float | None:
        """Share of the updates that were lost; None if there were no updates."""
        return None if not self.updates else (self.updates - len(self.up_s)) / self.updates

    @classmethod
    def of_all(cls, clients: "Iterable[Seen]") -> "Seen":
        total = cls()
        for one in clients:
            for column in fields(cls):
                setattr(total, column.name, getattr(total, column.name) + getattr(one, column.name))
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """Preview of a group."""

    name: str
    clients: int  # their number
    stale_rounds: int | None
    client_ids: tuple[int, ...]  # of the simulated clients, ascending
    seen: Seen
    available: tuple[tuple[bool, ...], ...]  # whether each of them is, in each of `BINS` parts of the time

    @property
    def share_available(self) -> tuple[float, ...]:
        """Share of the clients that are available, in each part of the time."""
        return tuple(sum(bin_) / len(bin_) for bin_ in zip(*self.available, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Preview of a scenario."""

    seconds: float  # simulated time
    by_time: bool  # whether availability changes over time
    by_rounds: bool  # whether it changes by rounds; a part of the time is a round
    groups: tuple[GroupSeen, ...]  # of the scenario, and the clients that are in none


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
    """Simulate a scenario.

    Args:
        conditions: the scenario, settled for these clients.
        payload_bytes: of a task, and of an update.
        steps: local steps of a task.
        seconds: simulated time.
    """
    members = {group.name: group.clients.resolve(client_info, seed, group.name) for group in scenario.groups}
    if rest := frozenset(range(client_info.clients)).difference(*members.values()):
        members[NO_GROUP] = rest
    stale_rounds = {group.name: group.stale_rounds for group in scenario.groups}
    gates = [one for one in conditions.toxics if isinstance(one.toxic, Dropout | Blackout)]
    by_rounds = [isinstance(one.toxic, Dropout) and one.toxic.by_rounds for one in gates]
    link, gate = ToxicLink(conditions.toxics, seed), ToxicLink(gates, seed)

    @cache  # a client of several groups is simulated once
    def simulated(client_id: int) -> tuple[Seen, tuple[bool, ...]]:
        seen = _simulated(link, conditions, payload_bytes + _HEADER_BYTES, steps, seconds, client_id)
        return seen, _available(gate, seconds, client_id)

    groups = []
    for name, clients in members.items():
        sample = _sample(sorted(clients))
        seen, available = zip(*map(simulated, sample), strict=True)
        groups.append(
            GroupSeen(
                name=name,
                clients=len(clients),
                stale_rounds=stale_rounds.get(name),
                client_ids=sample,
                seen=Seen.of_all(seen),
                available=available,
            )
        )
    return Preview(seconds=seconds, by_time=not all(by_rounds), by_rounds=any(by_rounds), groups=tuple(groups))


def _sample(clients: Sequence[int]) -> tuple[int, ...]:
    """At most `PLAYED_MAX` clients, evenly spread."""
    count = min(len(clients), PLAYED_MAX)
    return tuple(clients[index * len(clients) // count] for index in range(count))


def _simulated(
    link: ToxicLink, conditions: Conditions, size_bytes: int, steps: int, seconds: float, client_id: int
) -> Seen:
    """One task after the other until `seconds`, at most `TASKS_MAX`."""
    seen, now_s = Seen(), 0.0
    while now_s < seconds:
        sent_s, now_s = now_s, now_s + seconds / TASKS_MAX
        seen.tasks += 1
        task = _first(link, _flight(client_id, "task", seen.tasks, sent_s, sent_s, size_bytes))
        if task is None:
            continue
        if task.declined:
            seen.declined += 1
            continue
        computing_s = conditions.devices.duration_s(client_id, seen.tasks, steps)
        done_s = task.due_s + computing_s
        seen.down_s.append(task.due_s - sent_s)
        seen.computing_s.append(computing_s)
        seen.updates += 1
        update = _first(link, _flight(client_id, "update", seen.tasks, sent_s, done_s, size_bytes))
        now_s = max(now_s, done_s)
        if update is not None:
            seen.up_s.append(update.due_s - done_s)
            now_s = max(now_s, update.due_s)
    return seen


def _available(gate: ToxicLink, seconds: float, client_id: int) -> tuple[bool, ...]:
    """Whether a task passes without a delay, in each part of the time."""
    available = []
    for part in range(BINS):
        at_s = (part + 0.5) * seconds / BINS
        task = _first(gate, _flight(client_id, "task", part, at_s, at_s, _HEADER_BYTES))
        available.append(task is not None and not task.declined and task.due_s == at_s)
    return tuple(available)


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


def _first(link: ToxicLink, flight: InFlightMessage) -> InFlightMessage | None:
    """The message that comes out first; None if there is none but broken connections."""
    return min((one for one in link.send(flight) if not one.cuts), key=lambda one: one.due_s, default=None)
