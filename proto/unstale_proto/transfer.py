"""A payload in chunks, as its receiver and its sender see it: PROTOCOL.md 4.7. Pure; the bytes lie in a `PartialFile`.

The receiver says what it has and how far the sender may go; the sender does as the last credit says. So whatever is
lost, repeated or overtaken, and whichever side begins anew, one more credit puts things right.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import xxhash

from unstale_proto import limits
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Chunk, Credit

WINDOW_BYTES = 4 * limits.CHUNK_BYTES  # 16 MiB on their way: a link of 1 Gbit/s and 120 ms is never idle
CREDIT_CHUNKS = 2  # after so many, credit is said again: two of full size are half a window
AHEAD_CHUNKS = (
    16  # under way at once, however small: a socket's queue takes no more of them than it is good for
)
LEAST_CHUNK_BYTES = 64 * 1024  # a link that breaks more often than once in so many moves nothing
STEADY_CHUNKS = 16  # that should get through between two losses, so that little is sent twice
WRONG_MAX = 3  # so many wrong checksums, one after the other, are no accident of a link


class Part(Protocol):
    """As much of a payload as has come: a file, or what is played for one."""

    @property
    def have(self) -> int:
        """Bytes, from the first on."""
        ...

    def append(self, chunk: memoryview) -> None:
        """Behind what there is. Raises OSError, and then holds what it held."""
        ...

    def mapped(self) -> memoryview:
        """All that there is, which stays readable after `delete`."""
        ...

    def frames(self) -> Sequence[memoryview]:
        """The same in frames of at most FRAME_BYTES_MAX, for one who looks at one after the other: those that nobody
        looks at take no memory."""
        ...

    def clear(self) -> None:
        """Begin anew."""
        ...

    def delete(self) -> None:
        """It is not needed any more. Nothing else may be called after it."""
        ...


class Receiving:
    """One payload on its way in.

    task_id: whose messages carry it now. part: what is there of it already. has_place: whether it may come now; else it
    waits. window_bytes: on their way at once.
    """

    def __init__(
        self, task_id: int, payload_bytes: int, checksum: str, part: Part, *, window_bytes: int
    ) -> None:
        self.task_id = task_id
        self.payload_bytes = payload_bytes
        self.checksum = checksum
        self.part = part
        self.has_place = False
        self._window_bytes = window_bytes
        if part.have > payload_bytes:
            part.clear()
        self._until = part.have
        self._granted = part.have  # the most that ever was
        self._missed_at: int | None = None
        self._unsaid = 0  # chunks, since credit was last said
        self._wrong = 0

    @property
    def is_whole(self) -> bool:
        """Whether all of it is there."""
        return self.part.have == self.payload_bytes

    @property
    def is_hopeless(self) -> bool:
        """Whether it came so often with a wrong checksum that it is not asked for again."""
        return self._wrong >= WRONG_MAX

    def ask(self) -> Credit:
        """What the sender is to be told whenever it may not know how things stand."""
        have = self.part.have
        self._missed_at = None
        self._unsaid = 0
        self._until = min(have + self._window_bytes, self.payload_bytes) if self.has_place else have
        self._granted = max(self._granted, self._until)
        return Credit(task_id=self.task_id, have=have, until=self._until, again=True)

    def take(self, offset: int, frames: Sequence[memoryview]) -> Credit | None:
        """A chunk came; what to answer, if anything. Raises RemoteContractError for one that may not be, OSError when
        it cannot be kept."""
        if len(frames) != 1 or not 0 < len(frames[0]) <= limits.FRAME_BYTES_MAX:
            raise RemoteContractError(Reason.WRONG_SIZE, "a chunk is one frame, and not an empty one")
        end = offset + len(frames[0])
        if end > self.payload_bytes:
            raise RemoteContractError(
                Reason.WRONG_SIZE, f"a chunk ends at {end}, the payload at {self.payload_bytes}"
            )
        if end > self._granted:
            raise RemoteContractError(
                Reason.NO_CREDIT, f"a chunk ends at {end}, credit at {self._granted}: wait for more"
            )
        have = self.part.have
        if offset < have:
            return None  # a copy
        if offset > have:
            if self._missed_at == have or not self.has_place:
                return None  # it is asked for already, or will be
            credit = self.ask()
            self._missed_at = have
            return credit
        self.part.append(frames[0])
        if not self.has_place:
            return None  # it was under way when the place was lost
        self._unsaid += 1
        if (self._unsaid < CREDIT_CHUNKS and self.part.have < self._until) or self.is_whole:
            return None
        return self.ask().model_copy(update={"again": None})

    def is_right(self) -> bool:
        """Whether what has come is what was announced; asked once it is whole. If not, it begins anew."""
        assert self.is_whole
        if checksum(self.part.frames()) == self.checksum:
            return True
        self._wrong += 1
        self.part.clear()
        self._until = 0
        return False


class Sending:
    """One payload on its way out. frames: of which it is made, in any cut. chunk_bytes: of a chunk, at most.

    A chunk that does not get through whole is lost. So they become shorter where little gets through between two
    losses, and longer again where much does. is_whole: the receiver has all of it.
    """

    def __init__(
        self, task_id: int, frames: Sequence[memoryview], *, chunk_bytes: int, begin_bytes: int | None = None
    ) -> None:
        """begin_bytes: of the first chunks; None for as long as they may be."""
        self.task_id = task_id
        self.is_whole = False
        self.frames = frames
        self._chunk_bytes_max = chunk_bytes
        self._chunk_bytes = begin_bytes or chunk_bytes
        self._sized_at = 0  # what the receiver had when that was last changed, or something was lost
        self._starts = [0, *accumulate(map(len, frames))]
        self._next = 0
        self._known = 0  # what the receiver was heard to have

    @property
    def payload_bytes(self) -> int:
        return self._starts[-1]

    @property
    def next_chunk_bytes(self) -> int:
        """How long chunks should be on another connection, when this one has ended."""
        return self._steady if self._next > self._known else self._chunk_bytes

    def credited(self, credit: Credit) -> list[tuple[Chunk, memoryview]]:
        """The receiver says how far to go; what to send."""
        if credit.have < self._known and not credit.again:
            return []  # it was overtaken
        self._known = credit.have
        if credit.again:
            if credit.have < self._next:
                self._chunk_bytes, self._sized_at = self._steady, self._known
            self._next = min(credit.have, self.payload_bytes)
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
        """How long chunks should be, given what got through since something was lost."""
        through_bytes = (self._known - self._sized_at) // STEADY_CHUNKS
        least = min(LEAST_CHUNK_BYTES, self._chunk_bytes_max)
        return max(least, min(through_bytes, self._chunk_bytes))

    def _piece(self, until: int) -> memoryview:
        """From where we are, at most to the end of a frame, so that nothing is copied."""
        place = bisect_right(self._starts, self._next) - 1
        start = self._starts[place]
        end = min(self._starts[place + 1], self._next + self._chunk_bytes, until)
        return self.frames[place][self._next - start : end - start]


def checksum(frames: Sequence[memoryview]) -> str:
    """Of a payload, as messages carry it: xxh3_64, seed 0, in 16 lower-case hex digits."""
    state = xxhash.xxh3_64()
    for frame in frames:
        state.update(frame)
    return state.hexdigest()
