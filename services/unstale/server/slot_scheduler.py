"""Who may use one of a few places now: the owner that has used places least, at a least rate. Pure.

    waits --give--> has a turn --leave--> out
      ^                  |
      +------------------+  others wait, and it is behind the least rate or its owner has used places much longer

A place holds one room: the upload of one client, or one version of the model, which any number of clients are sent at
once. An owner is a key with all of its clients, or one client in plain text. What an owner has used is the time for
which its clients had rooms, in seconds; older use counts less. So however many clients an owner has, and however slowly
they send, it has no more than its share while others wait. Who has not used places lately comes first.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import exp, inf

Owner = Hashable
Transfer = Hashable
OwnerOf = Callable[[str | None, int], Owner]
"""The owner of a client that said hello over a connection with this public key; None in plain text."""


def key_or_client(key: str | None, client_id: int) -> Owner:
    """An `OwnerOf` for keys that belong to clients, and for plain text."""
    return client_id if key is None else key


MEMORY = 4  # use is forgotten over this many times the time that the longest payload takes at the least rate
CHECKS = 8  # looks at those that have a turn while others wait, in the time in which a turn can end
SLACK_MAX = 5  # halvings of the least rate of an owner that has lost its turn in a slow place


@dataclass(slots=True)
class _Use:
    """Use of places by one owner.

    used_s: as of at_s. rooms: that its clients have, with the number of them in each. slack: halvings of its least
    rate where it may be slow.
    """

    used_s: float = 0.0
    at_s: float = 0.0
    rooms: dict[Transfer, int] = field(default_factory=dict)
    slack: int = 0


@dataclass(slots=True)
class _Turn:
    """A client that has a room. due_s: when it falls behind its least rate. gained: bytes moved in this turn."""

    owner: Owner
    room: Transfer
    due_s: float
    gained: int = 0


class SlotScheduler:
    """One thread.

    owner_of: the owner of a client. slots: rooms at a time. grace_s: longest stand-still in a turn, while others wait.
    chunk_bytes: moved in grace_s at the least rate. payload_bytes: of the longest transfer. slow_slots: rooms that
    their clients keep though they are behind the least rate, in turn, each time at half of the rate before.
    """

    def __init__(
        self,
        owner_of: Callable[[int], Owner],
        *,
        slots: int,
        grace_s: float,
        chunk_bytes: int,
        payload_bytes: int,
        slow_slots: int = 0,
    ) -> None:
        self._owner_of = owner_of
        self._slots = slots
        self._slow_slots = slow_slots
        self._grace_s = grace_s
        self._s_per_byte = grace_s / chunk_bytes
        self._memory_s = MEMORY * (grace_s + payload_bytes * self._s_per_byte)
        self._waiting: dict[int, Transfer] = {}  # by client, first come is first
        self._turns: dict[int, _Turn] = {}  # by client
        self._rooms: dict[Transfer, dict[int, None]] = {}  # clients in each
        self._slow: set[Transfer] = set()
        self._uses: dict[Owner, _Use] = {}
        self._check_s = -inf

    @property
    def waiting(self) -> int:
        """Number of clients that wait for a turn."""
        return len(self._waiting)

    def has_slot(self, client_id: int) -> bool:
        """Whether a client has a room now."""
        return client_id in self._turns

    def waits(self, client_id: int) -> bool:
        """Whether a client waits for a turn."""
        return client_id in self._waiting

    def keeps_pace(self, client_id: int, at_s: float) -> bool:
        """Whether a client has a turn and is not behind its least rate."""
        turn = self._turns.get(client_id)
        return turn is not None and at_s < turn.due_s

    def due_s(self) -> float | None:
        """When `assign` has something to look at; None for never."""
        return self._check_s if self._waiting else None

    def wait(self, client_id: int, room: Transfer, at_s: float) -> None:
        """A client wants a room, and has none. Said again it keeps its place in the queue."""
        assert client_id not in self._turns
        if self._waiting.get(client_id) == room:
            return
        self._waiting.pop(client_id, None)
        self._waiting[client_id] = room
        owner = self._owner_of(client_id)
        used_s = self._used_s(owner, at_s)
        is_room = len(self._rooms) < self._slots or room in self._rooms
        if is_room or any(self._yields(each, owner, used_s, at_s) for each in self._rooms):
            self._check_s = -inf  # else it would look at all that wait, each time that one more does

    def leave(self, client_id: int, at_s: float, *, finished: bool = False) -> None:
        """A client wants no room any more. finished: all of its payload has moved."""
        self._waiting.pop(client_id, None)
        turn = self._turns.get(client_id)
        if turn is not None:
            if finished and turn.room not in self._slow:
                use = self._uses[turn.owner]
                use.slack = max(0, use.slack - 1)
            self._stop(client_id, turn, at_s)
            self._check_s = -inf

    def on_bytes(self, client_id: int, count_bytes: int, at_s: float) -> None:
        """Bytes of a client's payload have moved."""
        turn = self._turns.get(client_id)
        if turn is not None:
            turn.gained += count_bytes
            factor = self._factor(turn)
            later_s = max(turn.due_s, at_s) + count_bytes * self._s_per_byte * factor
            turn.due_s = min(later_s, at_s + self._grace_s * factor)

    def assign(self, at_s: float) -> tuple[list[int], list[int]]:
        """Clients that lose their turn now, which wait again, and clients that have one from now on."""
        lost: list[int] = []
        got: list[int] = []
        if not self._waiting or at_s < self._check_s:
            return lost, got
        got += self._join(at_s)
        while self._waiting:
            client_id = self._next(at_s)
            if len(self._rooms) >= self._slots:
                room = self._to_free(client_id, at_s)
                if room is None:
                    break
                lost += self._free(room, client_id, at_s)
            self._begin(client_id, at_s)
            got += [client_id, *self._join(at_s)]
        self._check_s = at_s + self._grace_s / CHECKS
        return lost, got

    # --- who is next, and who gives way ---

    def _join(self, at_s: float) -> list[int]:
        """Let clients in to rooms that others have. A room that is kept though it is slow takes no more of them: it
        would never end.
        """
        joining = [
            client_id
            for client_id, room in self._waiting.items()
            if room in self._rooms and room not in self._slow
        ]
        for client_id in joining:
            self._begin(client_id, at_s)
        return joining

    def _next(self, at_s: float) -> int:
        return min(self._waiting, key=lambda client_id: self._used_s(self._owner_of(client_id), at_s))

    def _to_free(self, client_id: int, at_s: float) -> Transfer | None:
        """The room that gives way to a client; None when all are kept."""
        owner = self._owner_of(client_id)
        used_s = self._used_s(owner, at_s)
        yielding = [room for room in self._rooms if self._yields(room, owner, used_s, at_s)]
        yielding.sort(key=lambda room: self._used_in_s(room, at_s))
        while yielding and len(self._slow) < self._slow_slots and yielding[0] not in self._slow:
            self._keep_slow(yielding.pop(0), at_s)
        return yielding[-1] if yielding else None

    def _yields(self, room: Transfer, owner: Owner, used_s: float, at_s: float) -> bool:
        """Whether all clients in a room are behind, or those of owners that have used places much longer."""
        return all(
            turn.due_s <= at_s
            or (
                room not in self._slow
                and turn.owner != owner
                and self._used_s(turn.owner, at_s) - used_s >= self._grace_s + turn.gained * self._s_per_byte
            )
            for turn in map(self._turns.__getitem__, self._rooms[room])
        )

    def _keep_slow(self, room: Transfer, at_s: float) -> None:
        self._slow.add(room)
        turns = [self._turns[client_id] for client_id in self._rooms[room]]
        for owner in {turn.owner: None for turn in turns}:
            use = self._uses[owner]
            use.slack = min(use.slack + 1, SLACK_MAX)
        for turn in turns:
            turn.due_s = at_s + self._grace_s * self._factor(turn)

    def _free(self, room: Transfer, client_id: int, at_s: float) -> list[int]:
        """Take a room from its clients, for another one. They have used no less than that one has, or they would be the
        next again.
        """
        used_s = self._used_s(self._owner_of(client_id), at_s)
        lost = list(self._rooms[room])
        for one in lost:
            turn = self._turns[one]
            self._stop(one, turn, at_s)
            use = self._uses[turn.owner]
            use.used_s = max(use.used_s, used_s)
            self._waiting[one] = room
        return lost

    # --- turns and use ---

    def _begin(self, client_id: int, at_s: float) -> None:
        room, owner = self._waiting.pop(client_id), self._owner_of(client_id)
        self._turns[client_id] = _Turn(owner, room, at_s + self._grace_s)
        self._rooms.setdefault(room, {})[client_id] = None
        use = self._settled(owner, at_s)
        use.rooms[room] = use.rooms.get(room, 0) + 1

    def _stop(self, client_id: int, turn: _Turn, at_s: float) -> None:
        del self._turns[client_id]
        clients = self._rooms[turn.room]
        del clients[client_id]
        if not clients:
            del self._rooms[turn.room]
            self._slow.discard(turn.room)
        use = self._settled(turn.owner, at_s)
        use.rooms[turn.room] -= 1
        if not use.rooms[turn.room]:
            del use.rooms[turn.room]

    def _factor(self, turn: _Turn) -> int:
        """How many times less than the least rate a client may move."""
        return 2 ** self._uses[turn.owner].slack if turn.room in self._slow else 1

    def _settled(self, owner: Owner, at_s: float) -> _Use:
        use = self._uses.setdefault(owner, _Use(at_s=at_s))
        use.used_s, use.at_s = self._used_s(owner, at_s), at_s
        return use

    def _used_s(self, owner: Owner, at_s: float) -> float:
        use = self._uses.get(owner)
        if use is None:
            return 0.0
        most_s = len(use.rooms) * self._memory_s  # of an owner that has had these rooms for ever
        return most_s + (use.used_s - most_s) * exp(-(at_s - use.at_s) / self._memory_s)

    def _used_in_s(self, room: Transfer, at_s: float) -> float:
        """Use by the owner in a room that has used most."""
        return max(self._used_s(self._turns[client_id].owner, at_s) for client_id in self._rooms[room])
