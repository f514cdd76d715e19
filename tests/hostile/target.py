"""The target of an attack, and the attack's bounds."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from unstale.seeds import Generator
from unstale_client.net.clock import now_s
from unstale_client.net.keys import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under attack.

    Attributes:
        address: of the server, `tcp://127.0.0.1:PORT`.
        http_address: of its HTTP port, `127.0.0.1:PORT`.
        client_ids: ids that no honest client uses; with keys, a key owns each of them.
        identities: the keys of these ids, in their order; None in plain text.
        source: loopback address of raw connections; another one for each attack.
        until_s: the end of the attack, on the clock of `now_s`.
        strength: multiplies counts and sizes of an attack; 1 keeps the stated ones.
        draws: for randomised attacks.
        stopped: set to end the attack at once.
    """

    address: str
    http_address: str
    client_ids: Sequence[int]
    identities: Sequence[Identity | None]
    source: str
    until_s: float
    draws: Generator
    strength: float = 1.0
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def http_port(self) -> int:
        return int(self.http_address.rpartition(":")[2])

    @property
    def has_keys(self) -> bool:
        return any(identity is not None for identity in self.identities)

    def is_active(self) -> bool:
        """Whether the attack has time left."""
        return not self.stopped.is_set() and now_s() < self.until_s

    def wait(self, seconds: float) -> None:
        """Wait, at most until the end of the attack."""
        self.stopped.wait(max(0.0, min(seconds, self.until_s - now_s())))

    def count(self, stated: int) -> int:
        """A stated count at this strength, at least 1."""
        return max(1, round(stated * self.strength))
