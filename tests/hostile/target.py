"""What an attack knows of its target, and the bounds that it keeps."""

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
        client_ids: ids that no honest client uses; a key owns each of them, where there are keys.
        identities: the keys of these ids, in their order; None in plain text.
        source: address of loopback from which raw connections come; another one for each attack.
        until_s: when the attack is to be over, on the clock of `now_s`.
        strength: multiplies counts and sizes of an attack, 1 for those that it states.
        draws: for attacks that vary.
        stopped: set when the attack is to end at once.
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

    def goes_on(self) -> bool:
        """Whether the attack has time left."""
        return not self.stopped.is_set() and now_s() < self.until_s

    def wait(self, seconds: float) -> None:
        """Let time pass, but not beyond the end of the attack."""
        self.stopped.wait(max(0.0, min(seconds, self.until_s - now_s())))

    def count(self, stated: int) -> int:
        """A stated count at this strength, at least 1."""
        return max(1, round(stated * self.strength))
