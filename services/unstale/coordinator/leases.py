"""Leases of the active clients."""

import math
from collections import OrderedDict
from collections.abc import Container


class Leases:
    """When each active client was last heard from, oldest first; the cost of an event does not grow with their number.

    Any event of a client renews its lease.

    Attributes:
        lease_s: Silence, in seconds, after which a client counts as lost; infinity for never.
        last_seen_s: Time of the last event by client.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.last_seen_s: OrderedDict[int, float] = OrderedDict()

    def renew(self, client_id: int, at_s: float) -> None:
        """Start or renew the lease of a client."""
        self.last_seen_s[client_id] = at_s
        self.last_seen_s.move_to_end(client_id)

    def end(self, client_id: int) -> None:
        """Remove the lease of a client that is no longer active."""
        del self.last_seen_s[client_id]

    def settle(self, expired: Container[int], at_s: float) -> None:
        """Expire the leases of exactly these clients; the others count as renewed now: a replay has no heartbeats."""
        seen = [(client_id, -math.inf if client_id in expired else at_s) for client_id in self.last_seen_s]
        self.last_seen_s = OrderedDict(sorted(seen, key=lambda item: item[1]))

    def next_expiry_s(self) -> float:
        """When the oldest lease expires; infinity for never."""
        return next(iter(self.last_seen_s.values()), math.inf) + self.lease_s

    def expired(self, at_s: float) -> list[int]:
        """Clients whose lease has expired, longest silent first."""
        expired: list[int] = []
        for client_id, seen_s in self.last_seen_s.items():
            if seen_s + self.lease_s > at_s:
                break
            expired.append(client_id)
        return expired
