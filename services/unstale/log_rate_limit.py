"""One rate limit for log lines about other processes, so that none of them fills the disk with what it sends.

A line about a peer names it: `log.warning("...", extra=about_peer(client_id))`. A peer has a few lines at once and one
in ten seconds after that; all together have more. The next line that is written tells how many were left out.
"""

import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from typing_extensions import override

PEER_LINES, PEER_S = 5, 10.0  # lines at once about one peer, and seconds until there is another one
TOTAL_LINES, TOTAL_S = 100, 0.1  # the same about all peers together: 10 lines a second
PEERS_KEPT = 4096  # that are remembered; one that is forgotten has its lines at once again
_KEY = "peer"


def about_peer(peer: Hashable) -> Mapping[str, object]:
    """The argument `extra` of a log line about a peer, such as a client id."""
    return {_KEY: peer}


@dataclass(slots=True)
class _Lines:
    """left: lines that may be written as of at_s, seconds. left_out: lines that were not written since the last."""

    left: float
    at_s: float
    left_out: int = 0

    def fill(self, at_s: float, most: int, each_s: float) -> None:
        self.left = min(most, self.left + max(0.0, at_s - self.at_s) / each_s)
        self.at_s = at_s


class PeerRateLimit(logging.Filter):
    """Leaves out log lines about a peer that had too many. Time is the record's own. Lines without a peer pass."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Every peer has its lines at once again."""
        self._total = _Lines(TOTAL_LINES, 0.0)
        self._peers: dict[Hashable, _Lines] = {}  # the last one that was used is last

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
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
            self._total.left_out += 1
            return False
        lines.left -= 1
        self._total.left -= 1
        if self._total.left_out:
            record.msg = (
                f"{record.getMessage()} ({self._total.left_out} lines about clients were left out before)"
            )
            record.args = None
            self._total.left_out = 0
        return True


def logger(name: str) -> logging.Logger:
    """The logger of this name, with the process's one filter for lines about peers."""
    result = logging.getLogger(name)
    result.addFilter(OF_PROCESS)
    return result


OF_PROCESS = PeerRateLimit()
