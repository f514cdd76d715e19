"""Assigns slots for transfers fairly to the owners of clients. No I/O and no clock: callers pass the time.

    waits --assign--> has a slot --leave--> done
      ^                    |
      +--------------------+  other clients wait, and the transfer is behind the minimum rate, or its owner has used
                              slots longer than the owner of a waiting client

A slot holds one transfer: the upload of one client, or the download of one version, which any number of clients share.
An owner is a public key with all of its clients, or one client in plain text. Its use is the time for which its
transfers had slots, exponentially decayed, in seconds, less half of an equal share of the time for which it waited. The
owner with the least use is next, so each owner gets an equal share of the slots while others wait, for any number of
clients and any rate; and one that has used them long is not overtaken for ever by others whose transfers take no time.
"""

from collections.abc import Callable, Hashable
from dataclasses import KW_ONLY, dataclass, field
from math import exp, inf

Owner = Hashable
Transfer = Hashable
Counts = tuple[int, int, int]
"""Numbers of transfers: active, waiting, resumed since."""
OwnerOf = Callable[[str | None, int], Owner]
"""Returns the owner of a client, by the public key of its connection; None in plain text."""


def key_or_client(key: str | None, client_id: int) -> Owner:
    """An `OwnerOf` for keys that belong to clients, and for plain text."""
    return client_id if key is None else key


DECAY_TRANSFERS = 4  # time constant of the decay, in times of the longest transfer at the minimum rate
CHECKS = 8  # checks per `grace_s` while others wait
WAITED_SHARE = 0.5  # of an equal share of the slots, that an owner's wait takes off its use
HALVINGS_MAX = 5  # of the minimum rate of an owner's slow transfers


@dataclass(slots=True)
class _Use:
    """Use of slots by one owner."""

    used_s: float = 0.0  # value at time at_s
    at_s: float = 0.0
    transfers: dict[Transfer, int] = field(default_factory=dict)  # number of its clients by transfer
    waiting: int = 0  # number of its clients that wait
    share_s: float = 0.0  # `SlotScheduler._share_s` when it began to wait, or last got a slot
    halvings: int = 0  # of the minimum rate of its slow transfers


@dataclass(frozen=True, slots=True)
class _Wait:
    """A client in the queue."""

    owner: Owner
    transfer: Transfer


@dataclass(slots=True)
class _Turn:
    """The turn of a client."""

    owner: Owner
    transfer: Transfer
    due_s: float  # time at which it falls behind its minimum rate
    moved_bytes: int = 0  # bytes moved in this turn


@dataclass(slots=True, eq=False)
class SlotScheduler:
    """Assigns slots to clients that wait. One thread."""

    owner_of: Callable[[int], Owner]
    _: KW_ONLY
    slots: int  # transfers at a time
    grace_s: float  # longest pause of a transfer while others wait; the minimum rate is chunk_bytes / grace_s
    chunk_bytes: int  # bytes that a transfer must move in grace_s
    payload_bytes: int  # size of the longest transfer
    slow_slots: int = 0
    """Slots, of `slots`, for transfers behind the minimum rate. Each halves the rate of its owner's slow transfers."""
    _s_per_byte: float = field(init=False)
    _memory_s: float = field(init=False)
    _waiting: dict[int, _Wait] = field(init=False, default_factory=dict)  # by client, first come is first
    _turns: dict[int, _Turn] = field(init=False, default_factory=dict)  # by client
    _transfers: dict[Transfer, dict[int, None]] = field(init=False, default_factory=dict)  # clients in each
    _slow: set[Transfer] = field(init=False, default_factory=set)
    _uses: dict[Owner, _Use] = field(init=False, default_factory=dict)
    _check_s: float = field(init=False, default=-inf)
    _share_s: float = field(init=False, default=0.0)  # the share until `_share_at_s` of an owner that always waits
    _share_at_s: float = field(init=False, default=0.0)
    _contending: int = field(init=False, default=0)  # owners that wait or have slots

    def __post_init__(self) -> None:
        self._s_per_byte = self.grace_s / self.chunk_bytes
        self._memory_s = DECAY_TRANSFERS * (self.grace_s + self.payload_bytes * self._s_per_byte)

    @property
    def waiting(self) -> int:
        """Number of clients that wait for a turn."""
        return len(self._waiting)

    def goes_on(self, client_id: int, at_s: float) -> bool:
        """Whether a client waits for a turn, or has one and is not behind its minimum rate."""
        turn = self._turns.get(client_id)
        return client_id in self._waiting or (turn is not None and at_s < turn.due_s)

    def due_s(self) -> float | None:
        """Time at which `assign` is due; None for never."""
        return self._check_s if self._waiting else None

    def wait(self, client_id: int, transfer: Transfer, at_s: float) -> None:
        """Add a client without a slot to the queue; one that waits for the same transfer keeps its position."""
        assert client_id not in self._turns
        owner = self.owner_of(client_id)
        if self._waiting.get(client_id) == _Wait(owner, transfer):
            return
        self._dequeue(client_id, at_s)
        self._enqueue(client_id, _Wait(owner, transfer), at_s)
        used_s = self._used_s(owner, at_s)
        is_free = len(self._transfers) < self.slots or transfer in self._transfers
        if is_free or any(self._may_lose_slot(each, owner, used_s, at_s) for each in self._transfers):
            self._check_s = -inf  # otherwise each new client in the queue would cost a check of all

    def leave(self, client_id: int, at_s: float, *, finished: bool = False) -> None:
        """Take a client out of the queue, or end its turn. finished: Its transfer is complete."""
        self._dequeue(client_id, at_s)
        turn = self._turns.get(client_id)
        if turn is not None:
            if finished and turn.transfer not in self._slow:
                use = self._uses[turn.owner]
                use.halvings = max(0, use.halvings - 1)
            self._stop(client_id, turn, at_s)
            self._check_s = -inf

    def on_bytes(self, client_id: int, count_bytes: int, at_s: float) -> None:
        """Count bytes of a client's transfer."""
        turn = self._turns.get(client_id)
        if turn is not None:
            turn.moved_bytes += count_bytes
            factor = self._factor(turn)
            later_s = max(turn.due_s, at_s) + count_bytes * self._s_per_byte * factor
            turn.due_s = min(later_s, at_s + self.grace_s * factor)

    def assign(self, at_s: float) -> tuple[list[int], list[int]]:
        """Assign slots; returns the clients that lost their turn and wait again, and those that got one."""
        lost: list[int] = []
        got: list[int] = []
        if not self._waiting or at_s < self._check_s:
            return lost, got
        got += self._join(at_s)
        while self._waiting:
            client_id = min(self._waiting, key=lambda each: self._owed_s(self._waiting[each].owner, at_s))
            if len(self._transfers) >= self.slots:
                transfer = self._to_free(client_id, at_s)
                if transfer is None:
                    break
                lost += self._free(transfer, client_id, at_s)
            self._begin(client_id, at_s)
            got += [client_id, *self._join(at_s)]
        self._check_s = at_s + self.grace_s / CHECKS
        return lost, got

    # --- order ---

    def _join(self, at_s: float) -> list[int]:
        """Let clients join transfers that have a slot, except slow ones, which would never end."""
        open_transfers = self._transfers.keys() - self._slow
        joining = [client_id for client_id, wait in self._waiting.items() if wait.transfer in open_transfers]
        for client_id in joining:
            self._begin(client_id, at_s)
        return joining

    def _to_free(self, client_id: int, at_s: float) -> Transfer | None:
        """The transfer that gives its slot to a client; None if all keep theirs."""

        def most_used_s(transfer: Transfer) -> float:
            return max(self._used_s(self._turns[each].owner, at_s) for each in self._transfers[transfer])

        owner = self._waiting[client_id].owner
        used_s = self._used_s(owner, at_s)
        yielding = [transfer for transfer in self._transfers if self._may_lose_slot(transfer, owner, used_s, at_s)]
        yielding.sort(key=most_used_s)
        while yielding and len(self._slow) < self.slow_slots and yielding[0] not in self._slow:
            self._keep_slow(yielding.pop(0), at_s)
        return yielding[-1] if yielding else None

    def _may_lose_slot(self, transfer: Transfer, owner: Owner, used_s: float, at_s: float) -> bool:
        """Whether all clients of a transfer are behind, or their owners have used slots much longer."""
        return all(
            turn.due_s <= at_s
            or (
                transfer not in self._slow
                and turn.owner != owner
                and self._used_s(turn.owner, at_s) - used_s >= self.grace_s + turn.moved_bytes * self._s_per_byte
            )
            for turn in map(self._turns.__getitem__, self._transfers[transfer])
        )

    def _keep_slow(self, transfer: Transfer, at_s: float) -> None:
        self._slow.add(transfer)
        turns = [self._turns[client_id] for client_id in self._transfers[transfer]]
        for owner in {turn.owner: None for turn in turns}:
            use = self._uses[owner]
            use.halvings = min(use.halvings + 1, HALVINGS_MAX)
        for turn in turns:
            turn.due_s = at_s + self.grace_s * self._factor(turn)

    def _free(self, transfer: Transfer, client_id: int, at_s: float) -> list[int]:
        """Take a slot from its clients. Their use becomes at least that of the next client: they are not next again."""
        used_s = self._used_s(self._waiting[client_id].owner, at_s)
        lost = list(self._transfers[transfer])
        for one in lost:
            turn = self._turns[one]
            self._stop(one, turn, at_s)
            use = self._uses[turn.owner]
            use.used_s = max(use.used_s, used_s)
            self._enqueue(one, _Wait(turn.owner, transfer), at_s)
        return lost

    # --- turns and use ---

    def _begin(self, client_id: int, at_s: float) -> None:
        owner, transfer = self._waiting[client_id].owner, self._waiting[client_id].transfer
        use = self._settled(owner, at_s)
        use.used_s, use.share_s = max(0.0, self._owed_s(owner, at_s)), self._share_s
        use.transfers[transfer] = use.transfers.get(transfer, 0) + 1
        self._turns[client_id] = _Turn(owner, transfer, at_s + self.grace_s)
        self._transfers.setdefault(transfer, {})[client_id] = None
        self._dequeue(client_id, at_s)

    def _enqueue(self, client_id: int, wait: _Wait, at_s: float) -> None:
        use = self._settled(wait.owner, at_s)
        self._advance_share(at_s)
        if not use.waiting:
            use.share_s = self._share_s
            self._contending += not use.transfers
        use.waiting += 1
        self._waiting[client_id] = wait

    def _dequeue(self, client_id: int, at_s: float) -> None:
        wait = self._waiting.pop(client_id, None)
        if wait is not None:
            self._advance_share(at_s)
            use = self._uses[wait.owner]
            use.waiting -= 1
            self._contending -= not use.waiting and not use.transfers

    def _advance_share(self, at_s: float) -> None:
        if self._contending:
            self._share_s += (at_s - self._share_at_s) * WAITED_SHARE * min(1.0, self.slots / self._contending)
        self._share_at_s = at_s

    def _owed_s(self, owner: Owner, at_s: float) -> float:
        """Use of an owner that waits, less its share of the time since it began to."""
        self._advance_share(at_s)
        return self._used_s(owner, at_s) - (self._share_s - self._uses[owner].share_s)

    def _stop(self, client_id: int, turn: _Turn, at_s: float) -> None:
        del self._turns[client_id]
        clients = self._transfers[turn.transfer]
        del clients[client_id]
        if not clients:
            del self._transfers[turn.transfer]
            self._slow.discard(turn.transfer)
        use = self._settled(turn.owner, at_s)
        use.transfers[turn.transfer] -= 1
        if not use.transfers[turn.transfer]:
            del use.transfers[turn.transfer]
            self._advance_share(at_s)
            self._contending -= not use.waiting and not use.transfers

    def _factor(self, turn: _Turn) -> int:
        """Factor by which a client may stay below the minimum rate."""
        return 2 ** self._uses[turn.owner].halvings if turn.transfer in self._slow else 1

    def _settled(self, owner: Owner, at_s: float) -> _Use:
        use = self._uses.setdefault(owner, _Use(at_s=at_s))
        use.used_s, use.at_s = self._used_s(owner, at_s), at_s
        return use

    def _used_s(self, owner: Owner, at_s: float) -> float:
        use = self._uses.get(owner)
        if use is None:
            return 0.0
        most_s = len(use.transfers) * self._memory_s  # the limit for an owner that keeps these slots
        return most_s + (use.used_s - most_s) * exp(-(at_s - use.at_s) / self._memory_s)
