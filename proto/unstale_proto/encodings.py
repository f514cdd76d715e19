"""How the numbers of a payload are encoded, with what error, and how they come back: PROTOCOL.md 9.1.

Of a payload the first d numbers are encoded: parameters, or their change. What lies behind them, buffers and the extra
vector, goes as it is: it is state and not a step, so that an error in it would never be made good.

Legend: d numbers that are encoded; B numbers of a block; k numbers that `top-k` keeps; D all numbers of a payload.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from math import ceil
from typing import Any, ClassVar, TypeAlias

import numpy as np
from typing_extensions import override

from unstale_proto import limits, payload, signature
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import EncodingPlan, Task, Welcome

FLOAT32 = "float32"

Vector: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"
Frames = Sequence[memoryview | bytes]

_STEP = 65_536  # numbers that are looked at together: as float32 256 KiB, which stay in the cache
_F4, _F2, _U4, _U2, _I1 = (np.dtype(code) for code in ("<f4", "<f2", "<u4", "<u2", "i1"))
_MAGNITUDE = np.uint32(0x7FFF_FFFF)  # all bits of a float32 but its sign
_INFINITY = np.uint32(0x7F80_0000)
_CODE_MAX = 127
_SCALE_MAX = np.nextafter(np.finfo(_F4).max / np.float32(_CODE_MAX), np.float32(0))  # 127 times it is finite


class Encoding(ABC):
    """One way to write d numbers, for payloads of one size. Valid because it exists.

    name: on the wire. feeds_back: what it leaves out is much, and is to be added to the next vector. payload_bytes: of
    every payload, known before one comes.
    """

    name: ClassVar[str]
    feeds_back: ClassVar[bool] = False

    def __init__(self, dimension: int, behind: int, head_bytes: int) -> None:
        """dimension: d, >= 1. behind: numbers behind them. head_bytes: of d numbers as encoded; a multiple of 4."""
        self.dimension = dimension
        self.behind = behind
        self.head_bytes = head_bytes
        self.payload_bytes = head_bytes + limits.FLOAT_BYTES * behind

    @abstractmethod
    def frames(self, parts: Sequence[memoryview]) -> list[memoryview]:
        """A payload. parts: as float32 bytes; the first are the d numbers."""

    @abstractmethod
    def decode(self, frames: Frames) -> Iterator[memoryview]:
        """The D numbers as float32 bytes, some at a time; each piece is gone when the next is asked for.

        frames: of `payload_bytes` together, which whoever receives has checked, each a multiple of 4. A number that was
        not finite is not finite again. Raises RemoteContractError(MALFORMED_PAYLOAD), perhaps after some pieces.
        """


class Float32(Encoding):
    """As they are: nothing is copied, and frames are the numbers.

    Source: proto/PROTOCOL.md#9-payload
    """

    name = FLOAT32

    def __init__(self, dimension: int, behind: int = 0) -> None:
        super().__init__(dimension, behind, limits.FLOAT_BYTES * dimension)

    @override
    def frames(self, parts: Sequence[memoryview]) -> list[memoryview]:
        return [frame for part in parts for frame in payload.split(part)]

    @override
    def decode(self, frames: Frames) -> Iterator[memoryview]:
        for place in range(len(frames)):  # not `in frames`, which would hold one while it asks for the next
            yield memoryview(frames[place])


class _Smaller(Encoding):
    """One that writes the d numbers anew."""

    def encode(self, vector_d: Vector) -> memoryview:
        """The numbers as bytes. vector_d: [d] float32, not written to."""
        head = np.zeros(self.head_bytes, np.uint8)
        with np.errstate(all="ignore"):
            self._fill(head, vector_d)
        return head.data

    @override
    def frames(self, parts: Sequence[memoryview]) -> list[memoryview]:
        head = self.encode(np.frombuffer(parts[0], _F4))
        return [frame for part in (head, *parts[1:]) for frame in payload.split(part)]

    @override
    def decode(self, frames: Frames) -> Iterator[memoryview]:
        source = _Bytes(frames)
        for numbers in self._read(source):
            yield numbers.data.cast("B")
        for start in range(self.head_bytes, self.payload_bytes, limits.FLOAT_BYTES * _STEP):
            yield source.read(start, min(start + limits.FLOAT_BYTES * _STEP, self.payload_bytes))

    @abstractmethod
    def _fill(self, head: Vector, vector_d: Vector) -> None:
        """Write the numbers into [head_bytes] uint8, which is zero."""

    @abstractmethod
    def _read(self, source: "_Bytes") -> Iterator[Vector]:
        """The d numbers, some at a time, in memory that is used again."""


class _TwoBytes(_Smaller):
    """Of 16 bits each, to the nearest, ties to even. What is finite stays so: beyond the range it is the last number
    there is."""

    def __init__(self, dimension: int, behind: int = 0) -> None:
        super().__init__(dimension, behind, _padded(2 * dimension))

    @override
    def _fill(self, head: Vector, vector_d: Vector) -> None:
        codes_d = head[: 2 * self.dimension].view(_U2)
        for start, end in _steps(self.dimension):
            codes_d[start:end] = self._codes(vector_d[start:end])

    @override
    def _read(self, source: "_Bytes") -> Iterator[Vector]:
        scratch = np.empty(min(_STEP, self.dimension), _F4)
        for start, end in _steps(self.dimension):
            numbers = scratch[: end - start]
            with np.errstate(all="ignore"):  # not where it yields: it would be the reader's, too
                self._widen(source.read(2 * start, 2 * end), numbers)
            yield numbers

    @abstractmethod
    def _codes(self, numbers: Vector) -> Vector:
        """Of float32 numbers, uint16."""

    @abstractmethod
    def _widen(self, codes: memoryview, numbers: Vector) -> None:
        """Write what the codes stand for into float32 numbers."""


class BFloat16(_TwoBytes):
    """The upper half of a float32: its range, with 8 significant bits. |error| <= 2^-8 |x|, or 2^-134."""

    name = "bfloat16"

    @override
    def _codes(self, numbers: Vector) -> Vector:
        bits = numbers.view(_U4)
        codes = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        magnitudes = bits & _MAGNITUDE
        beyond = magnitudes > np.uint32(0x7F7F_7FFF)  # rounds to infinity, is infinity, or is none
        if beyond.any():
            signs = (bits >> 16) & np.uint32(0x8000)
            codes = np.where(beyond, signs | np.uint32(0x7F7F), codes)
            codes = np.where(magnitudes == _INFINITY, signs | np.uint32(0x7F80), codes)
            codes = np.where(magnitudes > _INFINITY, signs | np.uint32(0x7FC0), codes)
        return codes

    @override
    def _widen(self, codes: memoryview, numbers: Vector) -> None:
        bits = numbers.view(_U4)
        bits[:] = np.frombuffer(codes, _U2)
        bits <<= np.uint32(16)


class Float16(_TwoBytes):
    """IEEE 754 binary16: 11 significant bits, to 65504. |error| <= 2^-11 |x|, or 2^-25 under 2^-14."""

    name = "float16"

    @override
    def _codes(self, numbers: Vector) -> Vector:
        halves = numbers.astype(_F2)
        codes = halves.view(_U2)
        beyond = (codes & np.uint16(0x7FFF)) >= np.uint16(0x7C00)
        if beyond.any():
            codes[beyond & np.isfinite(numbers)] = 0x7BFF  # 65504
            codes[np.isnan(numbers)] = 0x7E00
            np.copysign(halves, numbers, out=halves, where=beyond)
        return codes

    @override
    def _widen(self, codes: memoryview, numbers: Vector) -> None:
        numbers[:] = np.frombuffer(codes, _F2)


class Int8(_Smaller):
    """Whole numbers from -127 to 127 times a scale, one for B numbers in a row: the largest magnitude among them / 127.

    First the scales, ceil(d / B) float32, then d codes. |error| <= largest magnitude of the block / 253, or 2^-140. A
    block with a number that is not finite has a scale that is none, so none of it is finite again.
    """

    name = "int8"

    def __init__(self, dimension: int, behind: int = 0, *, block: int) -> None:
        self.block = block
        self._scales = -(-dimension // block)
        super().__init__(dimension, behind, limits.FLOAT_BYTES * self._scales + _padded(dimension))
        self._together = max(1, _STEP // block)  # blocks

    @override
    def _fill(self, head: Vector, vector_d: Vector) -> None:
        codes_from = limits.FLOAT_BYTES * self._scales
        scales = head[:codes_from].view(_F4)
        codes_d = head[codes_from : codes_from + self.dimension].view(_I1)
        for first, last, start, end in self._groups():
            for numbers_nB, at, count in self._rows(vector_d[start:end]):
                largest_n = np.abs(numbers_nB).max(axis=1)
                scales_n = np.minimum(largest_n / np.float32(_CODE_MAX), _SCALE_MAX)
                scales_n[~np.isfinite(largest_n)] = np.nan
                codes_nB = np.rint(numbers_nB / scales_n[:, None])
                codes_nB[~np.isfinite(codes_nB)] = 0  # all are zero, or one is not finite
                np.clip(codes_nB, -_CODE_MAX, _CODE_MAX, out=codes_nB)
                scales[first:last][at : at + len(scales_n)] = scales_n
                begin = start + at * self.block
                codes_d[begin : begin + count] = codes_nB.ravel()

    @override
    def _read(self, source: "_Bytes") -> Iterator[Vector]:
        codes_from = limits.FLOAT_BYTES * self._scales
        scratch = np.empty(min(self._together * self.block, self.dimension), _F4)
        for first, last, start, end in self._groups():
            scales = np.frombuffer(source.read(4 * first, 4 * last), _F4)
            if (scales < 0).any():
                raise _malformed("a scale is negative")
            numbers = scratch[: end - start]
            numbers[:] = np.frombuffer(source.read(codes_from + start, codes_from + end), _I1)
            with np.errstate(all="ignore"):
                for numbers_nB, at, _ in self._rows(numbers):
                    numbers_nB *= scales[at : at + len(numbers_nB), None]
            yield numbers

    def _groups(self) -> Iterator[tuple[int, int, int, int]]:
        """Blocks first to last, numbers start to end: some at a time."""
        for first in range(0, self._scales, self._together):
            last = min(first + self._together, self._scales)
            yield first, last, first * self.block, min(last * self.block, self.dimension)

    def _rows(self, numbers: Vector) -> Iterator[tuple[Any, int, int]]:
        """Views of whole blocks [n, B], and of the short one at the end [1, rest]; which block is the first, and how
        many numbers."""
        whole = len(numbers) // self.block
        even = whole * self.block
        if whole:
            yield numbers[:even].reshape(whole, self.block), 0, even
        if even < len(numbers):
            yield numbers[even:].reshape(1, -1), whole, len(numbers) - even


class TopK(_Smaller):
    """The k numbers of the largest magnitude, exactly, and zeros for the others; of equal ones that which comes first.

    First the k positions, ascending uint32 under d, then the k numbers, float32. What is left out is to be added to the
    next vector.
    Algorithm 1 of Stich et al.; algorithm 2 of Karimireddy et al., whose e_t is the sum of what was left out.
    Source: Sparsified SGD (Stich et al., NeurIPS 2018), docs/methods/training.md#error-feedback; Error feedback
    (Karimireddy et al., ICML 2019), docs/methods/training.md#error-feedback
    """

    name = "top-k"
    feeds_back = True

    def __init__(self, dimension: int, behind: int = 0, *, keep: int) -> None:
        """keep: k, 1 to d."""
        super().__init__(dimension, behind, 2 * limits.FLOAT_BYTES * keep)
        assert 1 <= keep <= dimension, (keep, dimension)
        self.keep = keep

    @override
    def _fill(self, head: Vector, vector_d: Vector) -> None:
        # As whole numbers magnitudes have the same order, and NaN is above infinity: what is not finite is sent.
        magnitudes_d = vector_d.view(_U4) & _MAGNITUDE
        least = np.partition(magnitudes_d, self.dimension - self.keep)[self.dimension - self.keep]
        chosen_d = magnitudes_d > least
        equal = np.flatnonzero(magnitudes_d == least)
        chosen_d[equal[: self.keep - np.count_nonzero(chosen_d)]] = True
        positions_k = np.flatnonzero(chosen_d)
        head.view(_U4)[: self.keep] = positions_k
        head.view(_F4)[self.keep :] = vector_d[positions_k]

    @override
    def _read(self, source: "_Bytes") -> Iterator[Vector]:
        middle = limits.FLOAT_BYTES * self.keep
        scratch = np.empty(min(_STEP, self.dimension), _F4)
        taken = 0
        for start, end in _steps(self.dimension):
            most = min(taken + end - start, self.keep)  # that can lie here
            coming = np.frombuffer(source.read(4 * taken, 4 * most), _U4)
            here = coming[: coming.searchsorted(np.uint32(end))]
            if len(here) and (here[0] < start or here[-1] >= end or (here[1:] <= here[:-1]).any()):
                raise self._disordered()
            numbers = scratch[: end - start]
            numbers.fill(0)
            sent = source.read(middle + 4 * taken, middle + 4 * (taken + len(here)))
            numbers[here - np.uint32(start)] = np.frombuffer(sent, _F4)
            taken += len(here)
            yield numbers
        if taken < self.keep:
            raise self._disordered()

    def _disordered(self) -> RemoteContractError:
        return _malformed(f"positions are not ascending numbers under {self.dimension}")


NAMES = (Float32.name, BFloat16.name, Float16.name, Int8.name, TopK.name)
"""All there are: what a client that has this module can take and make."""


def plan(*, updates: str, models: str, block: int, fraction: float, dimension: int) -> EncodingPlan | None:
    """What a run is to use; None where all goes as it is.

    block: B of int8. fraction: of the d numbers, that top-k keeps; of which ceil(fraction * d) become k.
    """
    return _plan(updates, models, block, min(dimension, ceil(fraction * dimension)))


def agreed(wanted: EncodingPlan | None, offered: Collection[str] | None) -> EncodingPlan | None:
    """What becomes of a run's plan with a client that offers these; None offers float32 alone."""
    if wanted is None or offered is None:
        return None
    updates, models = (name if name in offered else FLOAT32 for name in (wanted.updates, wanted.models))
    return _plan(updates, models, wanted.block, wanted.keep)


def _plan(updates: str, models: str, block: int | None, keep: int | None) -> EncodingPlan | None:
    """With what the two need of the rest. None where all goes as it is."""
    if updates == models == FLOAT32:
        return None
    return EncodingPlan.model_validate(
        {
            "updates": updates,
            "models": models,
            "block": block if Int8.name in (updates, models) else None,
            "keep": keep if updates == TopK.name else None,
        }
    )


def of_updates(told: EncodingPlan | None, dimension: int, behind: int = 0) -> Encoding:
    """That of updates. told: what was agreed. dimension: d. behind: numbers behind them."""
    return _make(FLOAT32 if told is None else told.updates, told, dimension, behind)


def of_models(told: EncodingPlan | None, dimension: int, behind: int = 0) -> Encoding:
    """That of models; as for `of_updates`."""
    return _make(FLOAT32 if told is None else told.models, told, dimension, behind)


def of_update(welcome: Welcome) -> Encoding:
    """That of the updates of the client that was told this."""
    return of_updates(welcome.encoding, *_numbers(welcome))


def of_task(welcome: Welcome, task: Task) -> Encoding:
    """That of the model of a task. Raises RemoteContractError for one that was not agreed; float32 always is."""
    told = None if task.encoding in (None, FLOAT32) else welcome.encoding
    encoding = of_models(told, *_numbers(welcome))
    if encoding.name != (task.encoding or FLOAT32):
        raise _malformed(f"a model as {task.encoding} was not agreed")
    return encoding


def _numbers(welcome: Welcome) -> tuple[int, int]:
    """d, and how many lie behind."""
    dimension = signature.dimension(welcome.tensors)
    return dimension, signature.dimension(welcome.buffers or ()) + dimension * bool(welcome.extra)


def _make(name: str, told: EncodingPlan | None, dimension: int, behind: int) -> Encoding:
    if told is None or name == FLOAT32:
        return Float32(dimension, behind)
    if name == Int8.name:
        assert told.block is not None
        return Int8(dimension, behind, block=told.block)
    if name == TopK.name:
        assert told.keep is not None
        return TopK(dimension, behind, keep=told.keep)
    return BFloat16(dimension, behind) if name == BFloat16.name else Float16(dimension, behind)


class _Bytes:
    """Frames as the one run of bytes that they are, read without a copy but where a piece lies in two of them.

    No frame is kept: one that is mapped when it is asked for takes memory as long as somebody looks at it."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._starts = [0, *accumulate(map(len, frames))]

    def read(self, start: int, end: int) -> memoryview:
        if start == end:
            return memoryview(b"")
        place = bisect_right(self._starts, start) - 1
        if end <= self._starts[place + 1]:
            offset = self._starts[place]
            return memoryview(self._frames[place])[start - offset : end - offset]
        pieces = []
        while start < end:
            offset, stop = self._starts[place], min(end, self._starts[place + 1])
            pieces.append(memoryview(self._frames[place])[start - offset : stop - offset])
            start, place = stop, place + 1
        return memoryview(b"".join(pieces))


def _steps(dimension: int) -> Iterator[tuple[int, int]]:
    for start in range(0, dimension, _STEP):
        yield start, min(start + _STEP, dimension)


def _padded(size_bytes: int) -> int:
    """With zeros behind it, so that it ends where a float32 may begin."""
    return -(-size_bytes // limits.FLOAT_BYTES) * limits.FLOAT_BYTES


def _malformed(what: str) -> RemoteContractError:
    return RemoteContractError(Reason.MALFORMED_PAYLOAD, what)
