"""Preview of a scenario: simulated tasks and updates of its clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from unstale.toxics.blackout import Blackout
from unstale.toxics.client_filter import ClientInfo
from unstale.toxics.device import Devices
from unstale.toxics.dropout import Dropout
from unstale.toxics.in_flight import Direction, InFlightMessage, MessageType
from unstale.toxics.link import ToxicLink
from unstale.toxics.scenario import Conditions, Scenario

PLAYED_MAX = 100  # simulated clients of a group
TASKS_MAX = 40  # of each client
BINS = 60  # of the time line
NO_GROUP = "in no group"
_HEADER_BYTES = 200  # of a task or an update, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Tasks and updates of some clients."""

    tasks: int  # sent
    updates: int
    down_s: tuple[float, ...]  # transfer times of tasks that arrived, in seconds
    computing_s: tuple[float, ...]  # their compute times
    up_s: tuple[float, ...]  # transfer times of updates that arrived
    declined: int  # tasks

    @property
    def tasks_lost(self) -> float:
        """Share of the tasks that were lost; declined tasks are not."""
        return (self.tasks - len(self.down_s) - self.declined) / self.tasks

    @property
    def updates_lost(self) -> float | None:
        """Share of the updates that were lost; None if there were no updates."""
        return None if not self.updates else (self.updates - len(self.up_s)) / self.updates

    @classmethod
    def of_all(cls, clients: "Sequence[Seen]") -> "Seen":
        """The sum over several clients."""
        return cls(
            tasks=sum(one.tasks for one in clients),
            updates=sum(one.updates for one in clients),
            down_s=tuple(second for one in clients for second in one.down_s),
            computing_s=tuple(second for one in clients for second in one.computing_s),
            up_s=tuple(second for one in clients for second in one.up_s),
            declined=sum(one.declined for one in clients),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """Preview of a group."""

    name: str
    clients: int  # their number
    stale_rounds: int | None
    played: tuple[int, ...]  # ids of the simulated clients, sorted
    seen: Seen
    there: tuple[tuple[bool, ...], ...]  # availability of each of them in each of `BINS` parts of the time

    @property
    def share_there(self) -> tuple[float, ...]:
        """Share of the clients that are available, in each part of the time."""
        return tuple(sum(bin_) / len(bin_) for bin_ in zip(*self.there, strict=True))


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
    link, size_bytes = ToxicLink(conditions.toxics, seed), payload_bytes + _HEADER_BYTES
    # A client of several groups is simulated once.
    simulated = cache(partial(_simulated, link, conditions.devices, size_bytes, steps, seconds))
    available = cache(partial(_available, ToxicLink(gates, seed), seconds))
    groups = []
    for name, clients in members.items():
        sample = _sample(sorted(clients))
        groups.append(
            GroupSeen(
                name=name,
                clients=len(clients),
                stale_rounds=stale_rounds.get(name),
                played=sample,
                seen=Seen.of_all([*map(simulated, sample)]),
                there=tuple(map(available, sample)),
            )
        )
    return Preview(seconds=seconds, by_time=not all(by_rounds), by_rounds=any(by_rounds), groups=tuple(groups))


def _sample(clients: Sequence[int]) -> tuple[int, ...]:
    """At most `PLAYED_MAX` clients, evenly spread."""
    count = min(len(clients), PLAYED_MAX)
    return tuple(clients[index * len(clients) // count] for index in range(count))


def _simulated(link: ToxicLink, devices: Devices, size_bytes: int, steps: int, seconds: float, client_id: int) -> Seen:
    """One task after the other until `seconds`, at most `TASKS_MAX`."""
    down_s, computing_s, up_s = [], [], []
    number = updates = declined = 0
    now_s = 0.0
    while now_s < seconds:
        sent_s, now_s = now_s, now_s + seconds / TASKS_MAX
        number += 1
        task = _first(link.send(_flight(client_id, "task", number, sent_s, sent_s, size_bytes)))
        if task is None:
            continue
        if task.declined:
            declined += 1
            continue
        down_s.append(task.due_s - sent_s)
        computing_s.append(devices.duration_s(client_id, number, steps))
        done_s = task.due_s + computing_s[-1]
        update = _first(link.send(_flight(client_id, "update", number, sent_s, done_s, size_bytes)))
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


def _available(gate: ToxicLink, seconds: float, client_id: int) -> tuple[bool, ...]:
    """Whether a task passes without a delay, in each part of the time."""
    available = []
    for part in range(BINS):
        at_s = (part + 0.5) * seconds / BINS
        task = _first(gate.send(_flight(client_id, "task", part, at_s, at_s, _HEADER_BYTES)))
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


def _first(flights: tuple[InFlightMessage, ...]) -> InFlightMessage | None:
    """The message that comes out first; None if there is none but broken connections."""
    return min((one for one in flights if not one.cuts), key=lambda one: one.due_s, default=None)
