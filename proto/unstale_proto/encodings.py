"""Encodings of payloads (PROTOCOL.md 9.1).

Only the first d numbers of a payload are encoded: parameters or their change. The numbers behind them, buffers and
the extra vector, are sent as float32: they are state, in which errors would persist.

Legend: d encoded numbers; B numbers of a block; k numbers that `top-k` sends; D all numbers of a payload.
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

_STEP = 65_536  # numbers per step: 256 KiB of float32 fit in the processor's cache
_F4, _F2, _U4, _U2, _I1 = (np.dtype(code) for code in ("<f4", "<f2", "<u4", "<u2", "i1"))
_MAGNITUDE = np.uint32(0x7FFF_FFFF)  # all bits of a float32 but its sign
_INFINITY = np.uint32(0x7F80_0000)
_CODE_MAX = 127
_SCALE_MAX = np.nextafter(np.finfo(_F4).max / np.float32(_CODE_MAX), np.float32(0))  # 127-fold still finite


class Encoding(ABC):
    """Encodes payloads of one size."""

    name: ClassVar[str]  # on the wire
    feeds_back: ClassVar[bool] = False  # the client adds the numbers not sent to its next update (error feedback)

    def __init__(self, dimension: int, behind: int, head_bytes: int) -> None:
        """dimension: d. behind: D - d. head_bytes: of the d encoded numbers, a multiple of 4."""
        self.dimension = dimension
        self.behind = behind
        self.head_bytes = head_bytes
        self.payload_bytes = head_bytes + limits.FLOAT_BYTES * behind  # the same for every payload

    @abstractmethod
    def frames(self, parts: Sequence[memoryview]) -> list[memoryview]:
        """Encode a payload. parts: float32 bytes; the first part is the d numbers."""

    @abstractmethod
    def decode(self, frames: Frames) -> Iterator[memoryview]:
        """Decode the D numbers as float32 bytes, in pieces that are valid until the next one.

        A number that is not finite decodes to one that is not finite. Raises RemoteContractError(MALFORMED_PAYLOAD),
        perhaps after some pieces. frames: each a multiple of 4 bytes, `payload_bytes` in all.
        """


class Float32(Encoding):
    """No encoding, and no copy.

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
        for index in range(len(frames)):  # a loop over the frames would reference one while it maps the next
            yield memoryview(frames[index])


class _Compressed(Encoding):
    """An encoding of the d numbers in fewer bytes than float32."""

    def encode(self, vector_d: Vector) -> memoryview:
        """Encode [d] float32."""
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
        source = _FrameReader(frames)
        for numbers in self._read(source):
            yield numbers.data.cast("B")
        for start in range(self.head_bytes, self.payload_bytes, limits.FLOAT_BYTES * _STEP):
            yield source.read(start, min(start + limits.FLOAT_BYTES * _STEP, self.payload_bytes))

    @abstractmethod
    def _fill(self, head: Vector, vector_d: Vector) -> None:
        """Encode [d] float32 into `head`: [head_bytes] uint8, zeros at first."""

    @abstractmethod
    def _read(self, source: "_FrameReader") -> Iterator[Vector]:
        """Decode the d numbers in pieces, in reused memory."""


class _TwoBytes(_Compressed):
    """16 bits per number, rounded to nearest, ties to even. Finite numbers beyond the range are clipped to it."""

    def __init__(self, dimension: int, behind: int = 0) -> None:
        super().__init__(dimension, behind, _padded(2 * dimension))

    @override
    def _fill(self, head: Vector, vector_d: Vector) -> None:
        codes_d = head[: 2 * self.dimension].view(_U2)
        for start, end in _steps(self.dimension):
            codes_d[start:end] = self._codes(vector_d[start:end])

    @override
    def _read(self, source: "_FrameReader") -> Iterator[Vector]:
        scratch = np.empty(min(_STEP, self.dimension), _F4)
        for start, end in _steps(self.dimension):
            numbers = scratch[: end - start]
            with np.errstate(all="ignore"):  # not around the yield, where it would also apply to the caller
                self._widen(source.read(2 * start, 2 * end), numbers)
            yield numbers

    @abstractmethod
    def _codes(self, numbers: Vector) -> Vector:
        """Encode float32 as uint16."""

    @abstractmethod
    def _widen(self, codes: memoryview, numbers: Vector) -> None:
        """Decode into float32 numbers."""


class BFloat16(_TwoBytes):
    """The upper half of a float32: 8 significant bits. |error| <= max(2^-8 |x|, 2^-134)."""

    name = "bfloat16"

    @override
    def _codes(self, numbers: Vector) -> Vector:
        bits = numbers.view(_U4)
        codes = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        magnitudes = bits & _MAGNITUDE
        beyond = magnitudes > np.uint32(0x7F7F_7FFF)  # overflows by rounding, is infinity or is NaN
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
    """IEEE 754 binary16: 11 significant bits, to 65504. |error| <= max(2^-11 |x|, 2^-25) up to there."""

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


class Int8(_Compressed):
    """Integers from -127 to 127 times a scale per block of B numbers: its largest magnitude / 127.

    Layout: ceil(d / B) float32 scales, then d codes. |error| <= max(largest magnitude / 253, 2^-140). A block with a
    number that is not finite has a NaN scale, so all its numbers become NaN.
    """

    name = "int8"

    def __init__(self, dimension: int, behind: int = 0, *, block: int) -> None:
        self.block = block
        self._scales = -(-dimension // block)
        super().__init__(dimension, behind, limits.FLOAT_BYTES * self._scales + _padded(dimension))
        self._blocks_per_step = max(1, _STEP // block)

    @override
    def _fill(self, head: Vector, vector_d: Vector) -> None:
        codes_from = limits.FLOAT_BYTES * self._scales
        scales = head[:codes_from].view(_F4)
        codes_d = head[codes_from : codes_from + self.dimension].view(_I1)
        for first, last, start, end in self._groups():
            for numbers_nB, row, count in self._rows(vector_d[start:end]):
                largest_n = np.abs(numbers_nB).max(axis=1)
                scales_n = np.minimum(largest_n / np.float32(_CODE_MAX), _SCALE_MAX)
                scales_n[~np.isfinite(largest_n)] = np.nan
                codes_nB = np.rint(numbers_nB / scales_n[:, None])
                codes_nB[~np.isfinite(codes_nB)] = 0  # the block is all zeros, or has a number that is not finite
                np.clip(codes_nB, -_CODE_MAX, _CODE_MAX, out=codes_nB)
                scales[first:last][row : row + len(scales_n)] = scales_n
                begin = start + row * self.block
                codes_d[begin : begin + count] = codes_nB.ravel()

    @override
    def _read(self, source: "_FrameReader") -> Iterator[Vector]:
        codes_from = limits.FLOAT_BYTES * self._scales
        scratch = np.empty(min(self._blocks_per_step * self.block, self.dimension), _F4)
        for first, last, start, end in self._groups():
            scales = np.frombuffer(source.read(4 * first, 4 * last), _F4)
            if (scales < 0).any():
                raise _malformed("a scale is negative")
            numbers = scratch[: end - start]
            numbers[:] = np.frombuffer(source.read(codes_from + start, codes_from + end), _I1)
            with np.errstate(all="ignore"):
                for numbers_nB, row, _ in self._rows(numbers):
                    numbers_nB *= scales[row : row + len(numbers_nB), None]
            yield numbers

    def _groups(self) -> Iterator[tuple[int, int, int, int]]:
        """Steps of the work: block indices `first` to before `last`, number indices `start` to before `end`."""
        for first in range(0, self._scales, self._blocks_per_step):
            last = min(first + self._blocks_per_step, self._scales)
            yield first, last, first * self.block, min(last * self.block, self.dimension)

    def _rows(self, numbers: Vector) -> Iterator[tuple[Any, int, int]]:
        """Views of the full blocks [n, B] and of a shorter last one, each with its first block and count of numbers."""
        full_blocks = len(numbers) // self.block
        end = full_blocks * self.block
        if full_blocks:
            yield numbers[:end].reshape(full_blocks, self.block), 0, end
        if end < len(numbers):
            yield numbers[end:].reshape(1, -1), full_blocks, len(numbers) - end


class TopK(_Compressed):
    """The k numbers of the largest magnitude, exactly; the others become zero. Of equal ones, those at lower positions.

    Layout: k positions, strictly ascending uint32 below d, then k float32 numbers.
    Algorithm 1 of Stich et al.; algorithm 2 of Karimireddy et al., whose e_t is the client's residual.
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
        # As integers, magnitudes have the same order, with NaN above infinity: numbers that are not finite are sent.
        magnitudes_d = vector_d.view(_U4) & _MAGNITUDE
        least = np.partition(magnitudes_d, self.dimension - self.keep)[self.dimension - self.keep]
        chosen_d = magnitudes_d > least
        equal = np.flatnonzero(magnitudes_d == least)
        chosen_d[equal[: self.keep - np.count_nonzero(chosen_d)]] = True
        positions_k = np.flatnonzero(chosen_d)
        head.view(_U4)[: self.keep] = positions_k
        head.view(_F4)[self.keep :] = vector_d[positions_k]

    @override
    def _read(self, source: "_FrameReader") -> Iterator[Vector]:
        middle = limits.FLOAT_BYTES * self.keep
        scratch = np.empty(min(_STEP, self.dimension), _F4)
        read = 0  # positions and numbers so far
        for start, end in _steps(self.dimension):
            last = min(read + end - start, self.keep)  # a step has at most as many positions as numbers
            candidates = np.frombuffer(source.read(4 * read, 4 * last), _U4)
            positions = candidates[: candidates.searchsorted(np.uint32(end))]
            if len(positions) and (
                positions[0] < start or positions[-1] >= end or (positions[1:] <= positions[:-1]).any()
            ):
                raise self._bad_positions()
            numbers = scratch[: end - start]
            numbers.fill(0)
            sent = source.read(middle + 4 * read, middle + 4 * (read + len(positions)))
            numbers[positions - np.uint32(start)] = np.frombuffer(sent, _F4)
            read += len(positions)
            yield numbers
        if read < self.keep:
            raise self._bad_positions()

    def _bad_positions(self) -> RemoteContractError:
        return _malformed(f"positions are not ascending numbers under {self.dimension}")


NAMES = (Float32.name, BFloat16.name, Float16.name, Int8.name, TopK.name)


def plan(*, updates: str, models: str, block: int, fraction: float, dimension: int) -> EncodingPlan | None:
    """The encodings of a run; None for float32 alone. block: B of int8. fraction: k / d of top-k, k rounded up."""
    return _plan(updates, models, block, min(dimension, ceil(fraction * dimension)))


def agreed(run_plan: EncodingPlan | None, offered: Collection[str] | None) -> EncodingPlan | None:
    """The encodings for a client: those of the run, or float32 where the client does not offer one."""
    if run_plan is None or offered is None:
        return None
    updates, models = (name if name in offered else FLOAT32 for name in (run_plan.updates, run_plan.models))
    return _plan(updates, models, run_plan.block, run_plan.keep)


def _plan(updates: str, models: str, block: int | None, keep: int | None) -> EncodingPlan | None:
    """A plan with only the fields that the two encodings need; None for float32 alone."""
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


def of_updates(agreed_plan: EncodingPlan | None, dimension: int, behind: int = 0) -> Encoding:
    """The encoding of updates by a plan. dimension: d. behind: D - d."""
    return _make(FLOAT32 if agreed_plan is None else agreed_plan.updates, agreed_plan, dimension, behind)


def of_models(agreed_plan: EncodingPlan | None, dimension: int, behind: int = 0) -> Encoding:
    """The encoding of models by a plan. Arguments as for `of_updates`."""
    return _make(FLOAT32 if agreed_plan is None else agreed_plan.models, agreed_plan, dimension, behind)


def of_update(welcome: Welcome) -> Encoding:
    """The encoding of the updates of a client with this welcome."""
    return of_updates(welcome.encoding, *_numbers(welcome))


def of_task(welcome: Welcome, task: Task) -> Encoding:
    """The encoding of a task's model. Raises RemoteContractError if it is neither float32 nor that of the welcome."""
    agreed_plan = None if task.encoding in (None, FLOAT32) else welcome.encoding
    encoding = of_models(agreed_plan, *_numbers(welcome))
    if encoding.name != (task.encoding or FLOAT32):
        raise _malformed(f"the model's encoding is {task.encoding}, expected {FLOAT32} or that of the welcome")
    return encoding


def _numbers(welcome: Welcome) -> tuple[int, int]:
    """d and D - d. The extra vector is as long as the parameters."""
    dimension = signature.dimension(welcome.tensors)
    return dimension, signature.dimension(welcome.buffers or ()) + dimension * bool(welcome.extra)


def _make(name: str, plan: EncodingPlan | None, dimension: int, behind: int) -> Encoding:
    if plan is None or name == FLOAT32:
        return Float32(dimension, behind)
    if name == Int8.name:
        assert plan.block is not None
        return Int8(dimension, behind, block=plan.block)
    if name == TopK.name:
        assert plan.keep is not None
        return TopK(dimension, behind, keep=plan.keep)
    return BFloat16(dimension, behind) if name == BFloat16.name else Float16(dimension, behind)


class _FrameReader:
    """Reads ranges of bytes of a payload, with a copy only where a range spans several frames.

    It references no single frame: `frames` may map a file for each access, until the last reference ends.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._starts = [0, *accumulate(map(len, frames))]

    def read(self, start: int, end: int) -> memoryview:
        if start == end:
            return memoryview(b"")
        index = bisect_right(self._starts, start) - 1
        if end <= self._starts[index + 1]:
            offset = self._starts[index]
            return memoryview(self._frames[index])[start - offset : end - offset]
        pieces = []
        while start < end:
            offset, stop = self._starts[index], min(end, self._starts[index + 1])
            pieces.append(memoryview(self._frames[index])[start - offset : stop - offset])
            start, index = stop, index + 1
        return memoryview(b"".join(pieces))


def _steps(dimension: int) -> Iterator[tuple[int, int]]:
    for start in range(0, dimension, _STEP):
        yield start, min(start + _STEP, dimension)


def _padded(size_bytes: int) -> int:
    """The size, rounded up to a multiple of FLOAT_BYTES."""
    return -(-size_bytes // limits.FLOAT_BYTES) * limits.FLOAT_BYTES


def _malformed(message: str) -> RemoteContractError:
    return RemoteContractError(Reason.MALFORMED_PAYLOAD, message)
