"""Who takes part, and what each client is doing: the only place where a client changes state."""

from bisect import bisect_left, insort
from enum import IntEnum

from unstale.coordinator.admission import TaskHistory

SITS_OUT_FIRST, SITS_OUT_FACTOR, SITS_OUT_MAX = 2, 4, 1024  # rounds


class State(IntEnum):
    """What a client is doing. The numbers index `Membership.counts`."""

    ABSENT = 0  # has never joined
    WAITING = 1  # joined, and has nothing to do
    WORKING = 2  # has an open task
    CONTRIBUTED = 3  # its update is accepted, and it waits for the round to be applied
    UNAVAILABLE = (
        4  # declined its task, or sits out, and is not asked again before the next version or a later one
    )
    LOST = 5  # its lease ran out
    LEFT = 6  # said goodbye


ACTIVE = frozenset((State.WAITING, State.WORKING, State.CONTRIBUTED, State.UNAVAILABLE))


class Client:
    """What the coordinator knows of one client.

    base_version: of the open task; means nothing while there is none. unaggregated: accepted updates of this
    client that no applied round holds yet. consecutive_failures: its tasks in a row that made no update that counts.
    expired: its tasks in a row that expired.
    """

    __slots__ = (
        "base_version",
        "client_id",
        "consecutive_failures",
        "expired",
        "state",
        "tasks",
        "unaggregated",
    )

    def __init__(self, client_id: int, clients: int) -> None:
        self.client_id = client_id
        self.state = State.ABSENT
        self.tasks = TaskHistory(client_id, clients)
        self.base_version = 0
        self.unaggregated = 0
        self.consecutive_failures = 0
        self.expired = 0

    @property
    def is_known(self) -> bool:
        """Whether it has ever joined."""
        return self.state is not State.ABSENT


class Membership:
    """All clients by id, with what is asked of them as a group kept up to date.

    active, waiting, unavailable: ids in ascending order, so that a draw from them depends on who is in them and not
    on how they came there. sits_out: clients whose tasks expired, each with the version at which it is asked again.
    Ascending lists and not sets: adding and removing moves at most `clients` pointers, 2 us
    for 10,000.
    """

    def __init__(self, clients: int) -> None:
        self.clients = [Client(client_id, clients) for client_id in range(clients)]
        self.counts = [0] * len(State)
        self.counts[State.ABSENT] = clients
        self.active: list[int] = []
        self.waiting: list[int] = []
        self.unavailable: list[int] = []
        self.sits_out: dict[int, int] = {}

    def client(self, client_id: int) -> Client:
        """The client of an id that came from outside."""
        assert 0 <= client_id < len(self.clients), f"there is no client {client_id}"
        return self.clients[client_id]

    @property
    def outstanding(self) -> int:
        """Open tasks: a client has one exactly while it is working."""
        return self.counts[State.WORKING]

    @property
    def busy(self) -> int:
        """Clients that hold a place of a selector which limits how many may: working, or waiting for their
        round."""
        return self.counts[State.WORKING] + self.counts[State.CONTRIBUTED]

    @property
    def available(self) -> list[int]:
        """Ids of the active clients that have not declined a task of this version and do not sit out, ascending."""
        if not self.unavailable:
            return self.active
        return [
            client_id for client_id in self.active if self.clients[client_id].state is not State.UNAVAILABLE
        ]

    @property
    def is_sitting_out(self) -> bool:
        """Whether an active client sits out."""
        return bool(self.sits_out) and any(client_id in self.sits_out for client_id in self.unavailable)

    def ask_everyone_again(self, version: int) -> None:
        """There is a new version: those who declined a task of the last one wait for their next, and those who have sat
        out long enough."""
        for client_id in [one for one, until in self.sits_out.items() if until <= version]:
            del self.sits_out[client_id]
        for client_id in [one for one in self.unavailable if one not in self.sits_out]:
            self.move(self.clients[client_id], State.WAITING)

    def end_sitting_out(self) -> None:
        """Give tasks again to clients that sit out: no other client is left to close a round."""
        again = [client_id for client_id in self.unavailable if client_id in self.sits_out]
        self.sits_out.clear()
        for client_id in again:
            self.move(self.clients[client_id], State.WAITING)

    def sit_out(self, client: Client, version: int) -> None:
        """The task of a client has expired: it is asked again two versions later, and four times as late each time in a
        row, so that the time for which a round waits for it is soon small beside the time of the rounds without it."""
        rounds = min(SITS_OUT_FIRST * SITS_OUT_FACTOR ** min(client.expired, 16), SITS_OUT_MAX)
        client.expired += 1
        self.sits_out[client.client_id] = version + rounds

    def idle(self, client: Client) -> State:
        """The state of a client that has nothing to do."""
        return State.UNAVAILABLE if client.client_id in self.sits_out else State.WAITING

    def move(self, client: Client, state: State) -> None:
        """Put a client into a state."""
        before, counts = client.state, self.counts
        client.state = state
        counts[before] -= 1
        counts[state] += 1
        if before is State.WAITING:
            _remove(self.waiting, client.client_id)
        elif before is State.UNAVAILABLE:
            _remove(self.unavailable, client.client_id)
        if state is State.WAITING:
            insort(self.waiting, client.client_id)
        elif state is State.UNAVAILABLE:
            insort(self.unavailable, client.client_id)
        if before not in ACTIVE:
            if state in ACTIVE:
                insort(self.active, client.client_id)
        elif state not in ACTIVE:
            _remove(self.active, client.client_id)


def _remove(ascending: list[int], client_id: int) -> None:
    index = bisect_left(ascending, client_id)
    assert ascending[index] == client_id, f"client {client_id} is not in the list that its state puts it in"
    del ascending[index]
