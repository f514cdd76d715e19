"""A rate limit for log lines about other processes, so that no peer fills the disk.

A line about a peer names it: `log.warning("...", extra=about_peer(client_id))`. A peer has a burst of lines and then
one line per ten seconds; all peers together have a higher limit. The next written line has the number of omitted ones.
"""

import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from typing_extensions import override

PEER_LINES, PEER_S = 5, 10.0  # burst about one peer, and seconds until another line
TOTAL_LINES, TOTAL_S = 100, 0.1  # the same about all peers together: 10 lines a second
PEERS_KEPT = 4096  # a forgotten peer has a new burst
_KEY = "peer"


def about_peer(peer: Hashable) -> Mapping[str, object]:
    """The argument `extra` of a log line about a peer, such as a client id."""
    return {_KEY: peer}


@dataclass(slots=True)
class _Lines:
    """left: lines that may be written at at_s, seconds. omitted: lines since the last written one."""

    left: float
    at_s: float
    omitted: int = 0

    def fill(self, at_s: float, most: int, each_s: float) -> None:
        self.left = min(most, self.left + max(0.0, at_s - self.at_s) / each_s)
        self.at_s = at_s


class PeerRateLimit(logging.Filter):
    """Omits log lines of peers over the limit, by the time of the record. Lines without a peer pass."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Reset all limits."""
        self._total = _Lines(TOTAL_LINES, 0.0)
        self._peers: dict[Hashable, _Lines] = {}  # least recently used first

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, _KEY):
            return True
        peer: Hashable = getattr(record, _KEY)
        lines = self._peers.pop(peer, None) or _Lines(PEER_LINES, record.created)
        self._peers[peer] = lines
        if len(self._peers) > PEERS_KEPT:
            del self._peers[next(iter(self._peers))]
        lines.fill(record.created, PEER_LINES, PEER_S)
        self._total.fill(record.created, TOTAL_LINES, TOTAL_S)
        if lines.left < 1 or self._total.left < 1:
            self._total.omitted += 1
            return False
        lines.left -= 1
        self._total.left -= 1
        if self._total.omitted:
            omitted = self._total.omitted
            lines_were = "lines were" if omitted > 1 else "line was"
            record.msg = f"{record.getMessage()} ({omitted} {lines_were} left out before, about clients)"
            record.args = None
            self._total.omitted = 0
        return True


def logger(name: str) -> logging.Logger:
    """The logger of this name, with the process's filter for lines about peers."""
    named = logging.getLogger(name)
    named.addFilter(OF_PROCESS)
    return named


OF_PROCESS = PeerRateLimit()
