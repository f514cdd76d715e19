"""Clients, their states and leases. Only `Membership` changes the state of a client."""

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from unstale.coordinator.admission import TaskHistory
from unstale.coordinator.settings import CoordinatorSettings

SITS_OUT_FIRST, SITS_OUT_FACTOR, SITS_OUT_MAX = 2, 4, 1024  # rounds


class State(IntEnum):
    """The state of a client. The numbers index `Membership.counts`."""

    ABSENT = 0  # has never joined
    WAITING = 1  # has no task
    WORKING = 2  # has an open task
    CONTRIBUTED = 3  # its accepted update is in no applied round yet
    UNAVAILABLE = 4  # declined its task or sits out: gets no task before the next version, or a later one
    LOST = 5  # its lease expired
    LEFT = 6


ACTIVE = frozenset((State.WAITING, State.WORKING, State.CONTRIBUTED, State.UNAVAILABLE))

_INACTIVE_AGAIN = {State.LOST: "lease expired", State.LEFT: "left"}
_JOINS_AGAIN = {
    State.WAITING: "joined",
    State.CONTRIBUTED: "joined, its update is not aggregated",
    State.UNAVAILABLE: "joined, sits out",
}
TRANSITIONS: Mapping[State, Mapping[State, str]] = {
    State.ABSENT: {State.WAITING: "joined"},
    State.WAITING: {State.WORKING: "task given", **_INACTIVE_AGAIN},
    State.WORKING: {
        State.CONTRIBUTED: "update accepted",
        State.WAITING: "update accepted and sender freed, or task failed, rejected, lost or cut off",
        State.UNAVAILABLE: "task declined or expired",
        **_INACTIVE_AGAIN,
    },
    State.CONTRIBUTED: {State.WAITING: "round applied", **_INACTIVE_AGAIN},
    State.UNAVAILABLE: {State.WAITING: "new version, or the round has stalled", **_INACTIVE_AGAIN},
    State.LOST: {**_JOINS_AGAIN, State.LEFT: "left"},
    State.LEFT: _JOINS_AGAIN,
}
"""Reason of each transition of a client, by state and next state; others are not allowed."""


@dataclass(slots=True, eq=False)
class Client:
    """One client."""

    client_id: int
    tasks: TaskHistory
    state: State = State.ABSENT
    base_version: int = 0  # of the open task; meaningless without one
    unaggregated: int = 0  # accepted updates that are in no applied round yet
    consecutive_failures: int = 0  # tasks in a row that failed or whose update was rejected
    code_errors: int = 0  # of these, tasks in which code of the client's own user raised
    expired: int = 0  # tasks in a row that expired


class Membership:
    """All clients by id, and groups of them.

    The groups are ascending lists, so that a draw depends on the members alone and not on the order in which they came.
    Insertion and removal move at most `clients` pointers: 2 us for 10,000.
    """

    def __init__(self, clients: int) -> None:
        self.clients = [Client(client_id, TaskHistory(client_id, clients)) for client_id in range(clients)]
        self.counts = [0] * len(State)  # clients by state
        self.counts[State.ABSENT] = clients
        self.contributed: set[int] = set()  # in this cycle; empty where clients contribute as often as they can
        self.awaited = 0  # working clients that are not in `contributed`
        self.active: list[int] = []
        self.waiting: list[int] = []
        self.unavailable: list[int] = []
        self.sits_out: dict[int, int] = {}  # version at which a client whose task expired gets tasks again, by id
        groups = {State.WAITING: [self.waiting], State.UNAVAILABLE: [self.unavailable]}
        self._groups = {state: [self.active, *groups.get(state, [])] if state in ACTIVE else [] for state in State}
        self._changes = [[self._change(before, after) for after in State] for before in State]

    def client(self, client_id: int) -> Client:
        """The client of an id that came from outside."""
        assert 0 <= client_id < len(self.clients), f"there is no client {client_id}"
        return self.clients[client_id]

    @property
    def outstanding(self) -> int:
        """Number of open tasks: a client has one exactly while it is working."""
        return self.counts[State.WORKING]

    @property
    def busy(self) -> int:
        """Number of clients that occupy a place of the selector."""
        return self.counts[State.WORKING] + self.counts[State.CONTRIBUTED]

    @property
    def available(self) -> list[int]:
        """Ids of the active clients that may get tasks on this version, ascending."""
        if not self.unavailable:
            return self.active
        return [client_id for client_id in self.active if self.clients[client_id].state is not State.UNAVAILABLE]

    def on_version(self, version: int) -> None:
        """Make clients that declined, or have sat out long enough, available for a new version."""
        for client_id in [client_id for client_id, until in self.sits_out.items() if until <= version]:
            del self.sits_out[client_id]
        for client_id in [client_id for client_id in self.unavailable if client_id not in self.sits_out]:
            self.move(self.clients[client_id], State.WAITING)

    def end_sitting_out(self) -> None:
        """Make clients that sit out available: no other client is left to close a round."""
        again = [client_id for client_id in self.unavailable if client_id in self.sits_out]
        self.sits_out.clear()
        for client_id in again:
            self.move(self.clients[client_id], State.WAITING)

    def sit_out(self, client: Client, version: int) -> None:
        """Exclude a client whose task expired for 2 versions, then 4 times as many: rounds seldom wait for it."""
        rounds = min(SITS_OUT_FIRST * SITS_OUT_FACTOR ** min(client.expired, 16), SITS_OUT_MAX)
        client.expired += 1
        self.sits_out[client.client_id] = version + rounds

    def move(self, client: Client, state: State) -> None:
        """Change the state of a client. Raises AssertionError where `TRANSITIONS` does not allow it."""
        before, client_id = client.state, client.client_id
        change = self._changes[before][state]
        assert change is not None, f"client {client_id} is {before.name}, and may not become {state.name}"
        client.state = state
        self.counts[before] -= 1
        self.counts[state] += 1
        left, entered, working = change
        if working and client_id not in self.contributed:
            self.awaited += working
        for ids in left:
            index = bisect_left(ids, client_id)
            assert ids[index] == client_id, f"client {client_id} is {before.name}, and not in that group"
            del ids[index]
        for ids in entered:
            insort(ids, client_id)

    def contribute(self, client_ids: Iterable[int]) -> None:
        """Add clients whose update a round of this cycle has taken."""
        for client_id in client_ids:
            if client_id not in self.contributed:
                self.contributed.add(client_id)
                self.awaited -= self.clients[client_id].state is State.WORKING

    def end_cycle(self) -> None:
        """Let all clients contribute again."""
        self.contributed.clear()
        self.awaited = self.counts[State.WORKING]

    def restore(self, client: Client, state: State) -> None:
        """Put a client that has never joined into any state."""
        self.counts[State.ABSENT] -= 1
        self.counts[state] += 1
        client.state = state
        self.awaited += state is State.WORKING and client.client_id not in self.contributed
        for ids in self._groups[state]:
            insort(ids, client.client_id)

    def _change(self, before: State, after: State) -> tuple[list[list[int]], list[list[int]], int] | None:
        """Groups that a client leaves and enters by a transition, and by how much more clients work; None for one that
        is not allowed.
        """
        if after not in TRANSITIONS[before]:
            return None
        left, entered = self._groups[before], self._groups[after]
        if left and entered:  # stays active
            left, entered = left[1:], entered[1:]
        return left, entered, (after is State.WORKING) - (before is State.WORKING)


@dataclass(slots=True, eq=False)
class Leases:
    """Time of the last message of each active client, oldest first: an event costs O(1)."""

    settings: CoordinatorSettings
    last_seen_s: OrderedDict[int, float] = field(default_factory=OrderedDict)  # time of the last event by client

    def renew(self, client_id: int, at_s: float) -> None:
        """Start or renew the lease of a client."""
        self.last_seen_s[client_id] = at_s
        self.last_seen_s.move_to_end(client_id)

    def settle(self, expired: Container[int], at_s: float) -> None:
        """Expire the leases of exactly these clients; the others count as renewed now: a replay has no heartbeats."""
        seen = [(client_id, -math.inf if client_id in expired else at_s) for client_id in self.last_seen_s]
        self.last_seen_s = OrderedDict(sorted(seen, key=lambda item: item[1]))

    def next_expiry_s(self) -> float:
        """When the oldest lease expires; infinity for never."""
        return next(iter(self.last_seen_s.values()), math.inf) + self.settings.lease_s

    def expired(self, at_s: float) -> list[int]:
        """Clients whose lease has expired, longest silent first."""
        expired: list[int] = []
        for client_id, seen_s in self.last_seen_s.items():
            if seen_s + self.settings.lease_s > at_s:
                break
            expired.append(client_id)
        return expired
