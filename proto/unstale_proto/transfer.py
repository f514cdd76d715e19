"""Receiver and sender of a payload in chunks (PROTOCOL.md 4.7). Pure, except for the `Part` with the bytes.

A credit names the bytes that the receiver has, and how far the sender may continue; the sender follows the latest. So
one more credit recovers from any loss, repetition, reordering or restart.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import xxhash

from unstale_proto import limits
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Chunk, Credit

WINDOW_BYTES = 4 * limits.CHUNK_BYTES  # 16 MiB in flight: a link of 1 Gbit/s and 120 ms is never idle
CREDIT_CHUNKS = 2  # chunks per credit: two of full size are half a window
AHEAD_CHUNKS = 16  # in flight, however small, because the queue of a socket is counted in messages
LEAST_CHUNK_BYTES = 64 * 1024  # a link that breaks more often than once per chunk of this size is useless
STEADY_CHUNKS = 16  # aimed at between two losses, so that little is sent twice
WRONG_MAX = 3  # wrong checksums in a row, which are no accident of a link


class Part(Protocol):
    """The received start of a payload, in a file or in memory."""

    @property
    def have(self) -> int:
        """Number of bytes."""
        ...

    def append(self, chunk: memoryview) -> None:
        """Append, or raise OSError and change nothing."""
        ...

    def mapped(self) -> memoryview:
        """All bytes, also after `delete`. Writing to them changes no file."""
        ...

    def frames(self) -> Sequence[memoryview]:
        """All bytes in frames of at most FRAME_BYTES_MAX, each of which takes memory only while it is in use."""
        ...

    def clear(self) -> None:
        """Drop all bytes."""
        ...

    def delete(self) -> None:
        """The last call."""
        ...


class Receiving:
    """Receiver of one payload."""

    def __init__(self, task_id: int, payload_bytes: int, checksum: str, part: Part, *, window_bytes: int) -> None:
        self.task_id = task_id  # of its messages; it may change
        self.payload_bytes = payload_bytes
        self.checksum = checksum
        self.part = part
        self.has_place = False  # the sender gets credit now
        self._window_bytes = window_bytes
        if part.have > payload_bytes:
            part.clear()
        self._until = part.have
        self._granted = part.have  # the highest `_until` so far
        self._missed_at: int | None = None
        self._uncredited = 0  # chunks since the latest credit
        self._wrong = 0

    @property
    def is_whole(self) -> bool:
        """Whether it is complete."""
        return self.part.have == self.payload_bytes

    @property
    def is_unusable(self) -> bool:
        """Whether it came too often with a wrong checksum."""
        return self._wrong >= WRONG_MAX

    def ask(self) -> Credit:
        """The credit that (re)starts the sender."""
        have = self.part.have
        self._missed_at = None
        self._uncredited = 0
        self._until = min(have + self._window_bytes, self.payload_bytes) if self.has_place else have
        self._granted = max(self._granted, self._until)
        return Credit(task_id=self.task_id, have=have, until=self._until, again=True)

    def take(self, offset: int, frames: Sequence[memoryview]) -> Credit | None:
        """Take a chunk; returns the answer. Raises RemoteContractError for an invalid chunk, OSError if it cannot be
        stored.
        """
        self._check(offset, frames)
        have = self.part.have
        if offset < have:
            return None  # a copy
        if offset > have:
            if self._missed_at == have or not self.has_place:
                return None  # requested already, or later
            credit = self.ask()
            self._missed_at = have
            return credit
        self.part.append(frames[0])
        if not self.has_place:
            return None  # sent before the place was lost
        self._uncredited += 1
        if (self._uncredited < CREDIT_CHUNKS and self.part.have < self._until) or self.is_whole:
            return None
        return self.ask().model_copy(update={"again": None})

    def _check(self, offset: int, frames: Sequence[memoryview]) -> None:
        if len(frames) != 1 or not 0 < len(frames[0]) <= limits.FRAME_BYTES_MAX:
            raise RemoteContractError(Reason.WRONG_SIZE, f"a chunk is one frame of 1 to {limits.FRAME_BYTES_MAX} bytes")
        end = offset + len(frames[0])
        if end > self.payload_bytes:
            raise RemoteContractError(Reason.WRONG_SIZE, f"a chunk ends at {end}, the payload at {self.payload_bytes}")
        if end > self._granted:
            raise RemoteContractError(
                Reason.NO_CREDIT, f"a chunk ends at {end}, credit at {self._granted}: wait for more"
            )

    def is_right(self) -> bool:
        """Check a complete payload against its checksum; a wrong one is dropped."""
        assert self.is_whole
        if checksum(self.part.frames()) == self.checksum:
            return True
        self._wrong += 1
        self.part.clear()
        self._until = 0
        return False


class Sending:
    """Sender of one payload, whose frames may have any size. is_whole: the receiver has all of it.

    A chunk that does not arrive whole is lost. So chunks are shorter while few bytes arrive between two losses.
    """

    def __init__(
        self, task_id: int, frames: Sequence[memoryview], *, chunk_bytes: int, begin_bytes: int | None = None
    ) -> None:
        """chunk_bytes: longest chunk. begin_bytes: length of the first chunks; None for `chunk_bytes`."""
        self.task_id = task_id
        self.is_whole = False
        self.frames = frames
        self._chunk_bytes_max = chunk_bytes
        self._chunk_bytes = begin_bytes or chunk_bytes
        self._sized_at = 0  # value of `_known` at its last change, or at a loss
        self._starts = [0, *accumulate(map(len, frames))]
        self._next = 0
        self._known = 0  # bytes that the receiver has, by its latest credit

    @property
    def payload_bytes(self) -> int:
        return self._starts[-1]

    @property
    def next_chunk_bytes(self) -> int:
        """Length of chunks on the next connection."""
        return self._steady if self._next > self._known else self._chunk_bytes

    def credited(self, credit: Credit) -> list[tuple[Chunk, memoryview]]:
        """Returns the chunks that a credit allows."""
        if credit.have < self._known and not credit.again:
            return []  # overtaken
        self._known = credit.have
        have = min(credit.have, self.payload_bytes)
        if credit.again and have < self._next:
            self._chunk_bytes, self._sized_at = self._steady, self._known
        self._next = have if credit.again else max(self._next, have)  # the receiver has the bytes before `have`
        if self._known >= self._sized_at + STEADY_CHUNKS * self._chunk_bytes:
            self._chunk_bytes = min(2 * self._chunk_bytes, self._chunk_bytes_max)
            self._sized_at = self._known
        until = min(credit.until, self.payload_bytes, credit.have + AHEAD_CHUNKS * self._chunk_bytes)
        self.is_whole = credit.have >= self.payload_bytes
        chunks = []
        while self._next < until:
            piece = self._piece(until)
            chunks.append((Chunk(task_id=self.task_id, offset=self._next), piece))
            self._next += len(piece)
        return chunks

    @property
    def _steady(self) -> int:
        """Length of chunks after a loss, given the bytes that arrived since the previous one."""
        steady_bytes = (self._known - self._sized_at) // STEADY_CHUNKS
        least_bytes = min(LEAST_CHUNK_BYTES, self._chunk_bytes_max)
        return max(least_bytes, min(steady_bytes, self._chunk_bytes))

    def _piece(self, until: int) -> memoryview:
        """The next chunk, at most to the end of a frame, so that it is no copy."""
        index = bisect_right(self._starts, self._next) - 1
        start = self._starts[index]
        end = min(self._starts[index + 1], self._next + self._chunk_bytes, until)
        return self.frames[index][self._next - start : end - start]


def checksum(frames: Sequence[memoryview]) -> str:
    """xxh3_64 of a payload, seed 0, in 16 lower-case hex digits."""
    state = xxhash.xxh3_64()
    for frame in frames:
        state.update(frame)
    return state.hexdigest()
