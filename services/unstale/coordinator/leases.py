"""Which clients have been silent for too long."""

import math
from collections import OrderedDict
from collections.abc import Container


class Leases:
    """When each active client was last heard of, oldest first; no event costs more with more of them.

    Any event of a client renews its lease: silence is what ends it, not slowness.

    lease_s: silence, in seconds, after which a client counts as lost; infinity for never.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.last_seen_s: OrderedDict[int, float] = OrderedDict()

    def renew(self, client_id: int, at_s: float) -> None:
        """Note a sign of life; starts the lease of a client that has none."""
        self.last_seen_s[client_id] = at_s
        self.last_seen_s.move_to_end(client_id)

    def end(self, client_id: int) -> None:
        """Forget a client that is active no more. It must have a lease."""
        del self.last_seen_s[client_id]

    def settle(self, silent: Container[int], at_s: float) -> None:
        """Let the leases of these clients, and of no others, have run out by now: when the others were heard of is not
        known any more."""
        seen = [(one, -math.inf if one in silent else at_s) for one in self.last_seen_s]
        self.last_seen_s = OrderedDict(sorted(seen, key=lambda one: one[1]))

    def next_expiry_s(self) -> float:
        """When the oldest lease runs out; infinity for never."""
        return next(iter(self.last_seen_s.values()), math.inf) + self.lease_s

    def expired(self, at_s: float) -> list[int]:
        """Clients whose lease has run out, longest silent first. Their leases go on until `end`."""
        silent: list[int] = []
        for client_id, seen_s in self.last_seen_s.items():
            if seen_s + self.lease_s > at_s:
                break
            silent.append(client_id)
        return silent
