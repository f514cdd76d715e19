"""Virtual time, its scheduled calls, and a transcript of all events."""

import hashlib
import heapq
from collections import Counter, deque
from collections.abc import Callable
from zlib import crc32

from unstale.seeds import Generator, Stream, stream

LINES_REMEMBERED = 60  # of the transcript, for a seed that fails


class World:
    """The clock and the queue of one seed.

    now_s: virtual seconds. verbose: write every line of the transcript. seen: the number of events by kind.
    """

    def __init__(self, seed: int, *, verbose: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.seen: Counter[str] = Counter()
        self.events = 0
        self.transcript: deque[str] = deque(maxlen=LINES_REMEMBERED)
        self._verbose = verbose
        self._trace = hashlib.sha256()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def clock(self) -> float:
        """The clock of the server."""
        return self.now_s

    def draws(self, purpose: str) -> Generator:
        """Random numbers of one part of the world only."""
        # The draws of a toxic have 0 or 1 in the second place.
        return stream(self.seed, Stream.TOXICS, crc32(purpose.encode()), 2)

    def at(self, due_s: float, call: Callable[[], None]) -> None:
        """Schedule a call; calls at equal times run in the order of scheduling."""
        heapq.heappush(self._queue, (max(due_s, self.now_s), self._planned, call))
        self._planned += 1

    def after(self, wait_s: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + wait_s, call)

    def step(self) -> None:
        """Run the next scheduled call."""
        assert self._queue, "no call is scheduled, and the run is not over"
        self.now_s, _, call = heapq.heappop(self._queue)
        self.events += 1
        call()

    def note(self, who: str, what: str) -> None:
        """A line of the transcript."""
        line = f"{self.now_s:12.6f}  {who:<12} {what}"
        self._trace.update(line.encode())
        self.transcript.append(line)
        if self._verbose is not None:
            self._verbose(line)

    @property
    def digest(self) -> str:
        """Of the transcript, in hex."""
        return self._trace.hexdigest()
