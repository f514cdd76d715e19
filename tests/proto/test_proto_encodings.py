"""Encodings of payloads: each keeps its bound and all non-finite values. Source: PROTOCOL.md 9.1."""

import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from typing_extensions import override

from support.wire import welcome
from unstale_proto import encodings, payload
from unstale_proto.encodings import BFloat16, Encoding, Float16, Float32, Int8, TopK
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.limits import FRAME_BYTES_MAX
from unstale_proto.messages import EncodingPlan, Task, TensorSpec

Vector = np.ndarray[Any, Any]
MAKE: dict[str, Callable[[int, int], Encoding]] = {
    "float32": Float32,
    "bfloat16": BFloat16,
    "float16": Float16,
    "int8": lambda dimension, behind: Int8(dimension, behind, block=8),
    "int8 in one block": lambda dimension, behind: Int8(dimension, behind, block=65_536),
    "top-k": lambda dimension, behind: TopK(dimension, behind, keep=(dimension + 1) // 2),
    "top-k of all": lambda dimension, behind: TopK(dimension, behind, keep=dimension),
}
ALL = pytest.mark.parametrize("name", MAKE)
FINITE = arrays.arrays(
    np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)
ORDINARY = arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-100, 100, width=32))


def through(encoding: Encoding, vector_d: Vector, behind: Vector | None = None) -> Vector:
    """The decoded vector of an encoded one."""
    parts = [memoryview(vector_d.tobytes())]
    if behind is not None:
        parts.append(memoryview(behind.tobytes()))
    return decoded(encoding, b"".join(encoding.frames(parts)))


def decoded(encoding: Encoding, *frames: bytes | memoryview) -> Vector:
    assert sum(map(len, frames)) == encoding.payload_bytes
    return np.frombuffer(b"".join(map(bytes, encoding.decode(frames))), "<f4")


# -------------------------------------------------------------------------------------------------------------- by hand


def test_sizes_are_those_of_the_document() -> None:
    # d = 1000, with 10 numbers behind; int8: 4 scales of 256; top-k: 1 % is 10
    sizes = {
        Float32(1000, 10): 4000 + 40,
        BFloat16(1000, 10): 2000 + 40,
        Float16(1001, 10): 2004 + 40,  # 2002, padded
        Int8(1000, 10, block=256): 4 * 4 + 1000 + 40,
        Int8(1021, 10, block=256): 4 * 4 + 1024 + 40,  # padded
        TopK(1000, 10, keep=10): 80 + 40,
    }
    assert [encoding.payload_bytes for encoding in sizes] == list(sizes.values())


def test_int8_by_hand() -> None:
    # the largest magnitude is 254, so the scale is 2; 5 / 2 = 2.5 goes to the even code 2, 7 / 2 = 3.5 to 4
    vector_d = np.array([254, -254, 5, 7, 0.9], np.float32)
    head = Int8(5, block=8).encode(vector_d)
    assert np.frombuffer(head[:4], "<f4") == 2
    assert list(np.frombuffer(head[4:], "i1")) == [127, -127, 2, 4, 0, 0, 0, 0]
    assert list(through(Int8(5, block=8), vector_d)) == [254, -254, 4, 8, 0]


def test_top_k_by_hand() -> None:
    vector_d = np.array([1, -4, 3, 0, -3], np.float32)
    assert list(through(TopK(5, keep=2), vector_d)) == [0, -4, 3, 0, 0]  # 3 comes before -3


@pytest.mark.parametrize(
    ("encoding", "number", "comes_out"),
    [
        (BFloat16(1), 1 + 2**-8, 1.0),  # half way between 1 and 1 + 2^-7: the even one
        (BFloat16(1), 1 + 3 * 2**-8, 1 + 2**-6),
        (BFloat16(1), np.finfo("f4").max, np.ldexp(255.0, 120)),  # not infinity
        (Float16(1), 1 + 2**-11, 1.0),
        (Float16(1), 70_000.0, 65_504.0),
        (Float16(1), -1e30, -65_504.0),
        (Float16(1), 2.0**-25, 0.0),
    ],
)
def test_sixteen_bits_by_hand(encoding: Encoding, number: float, comes_out: float) -> None:
    assert through(encoding, np.array([number], np.float32))[0] == comes_out


# --------------------------------------------------------------------------------------------------------------- by law


@given(FINITE)
def test_bfloat16_keeps_its_bound(vector_d: Vector) -> None:
    largest = np.float64(np.ldexp(255.0, 120))
    expected = np.clip(vector_d.astype(np.float64), -largest, largest)
    error = np.abs(through(BFloat16(len(vector_d)), vector_d).astype(np.float64) - expected)
    assert (error <= np.maximum(2.0**-8 * np.abs(expected), 2.0**-134)).all()


@given(FINITE)
def test_float16_keeps_its_bound(vector_d: Vector) -> None:
    expected = np.clip(vector_d.astype(np.float64), -65504, 65504)
    error = np.abs(through(Float16(len(vector_d)), vector_d).astype(np.float64) - expected)
    assert (error <= np.maximum(2.0**-11 * np.abs(expected), 2.0**-25)).all()


@given(FINITE, st.sampled_from([8, 9, 64]))
def test_int8_keeps_its_bound(vector_d: Vector, block: int) -> None:
    exact = vector_d.astype(np.float64)
    error = np.abs(through(Int8(len(vector_d), block=block), vector_d).astype(np.float64) - exact)
    for start in range(0, len(vector_d), block):
        largest = np.abs(exact[start : start + block]).max()
        assert (error[start : start + block] <= largest / 253 + 2.0**-140).all()


@given(FINITE, st.data())
def test_top_k_sends_the_largest_values_exactly(vector_d: Vector, data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, len(vector_d)))
    out_d = through(TopK(len(vector_d), keep=keep), vector_d)
    by_magnitude = sorted(range(len(vector_d)), key=lambda place: (-abs(float(vector_d[place])), place))
    expected = np.zeros_like(vector_d)
    expected[by_magnitude[:keep]] = vector_d[by_magnitude[:keep]]
    assert np.array_equal(out_d, expected)


@given(FINITE)
def test_float32_is_the_same_to_the_bit(vector_d: Vector) -> None:
    assert through(Float32(len(vector_d)), vector_d).tobytes() == vector_d.tobytes()


@ALL
@given(vector_d=FINITE)
def test_finite_values_stay_finite_and_zeros_stay_zeros(name: str, vector_d: Vector) -> None:
    encoding = MAKE[name](len(vector_d), 0)
    out_d = through(encoding, vector_d)
    assert np.isfinite(out_d).all()
    assert not out_d[vector_d == 0].any()


@ALL
@given(vector_d=FINITE, data=st.data())
def test_non_finite_values_are_preserved(name: str, vector_d: Vector, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(vector_d) - 1))
    vector_d[place] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    assert not np.isfinite(through(MAKE[name](len(vector_d), 0), vector_d)).all()


@ALL
@given(vector_d=ORDINARY, behind=FINITE)
def test_numbers_behind_the_update_are_unchanged_to_the_bit(name: str, vector_d: Vector, behind: Vector) -> None:
    out_D = through(MAKE[name](len(vector_d), len(behind)), vector_d, behind)
    assert out_D[len(vector_d) :].tobytes() == behind.tobytes()


@ALL
@given(vector_d=ORDINARY)
def test_a_decoded_payload_is_encoded_without_further_loss(name: str, vector_d: Vector) -> None:
    if name.startswith("int8"):
        return  # its scales change by rounding
    encoding = MAKE[name](len(vector_d), 0)
    once = through(encoding, vector_d)
    assert np.array_equal(through(encoding, once), once)


@ALL
@given(vector_d=ORDINARY, data=st.data())
def test_a_payload_may_be_split_between_any_two_words(name: str, vector_d: Vector, data: st.DataObject) -> None:
    encoding = MAKE[name](len(vector_d), 1)
    content = b"".join(encoding.frames([memoryview(vector_d.tobytes()), memoryview(b"\0\0\0\0")]))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(content) // 4 - 1)), max_size=5)))
    edges = [0, *(4 * cut for cut in cuts if 4 * cut < len(content)), len(content)]
    frames = [content[start:end] for start, end in pairwise(edges)]
    assert np.array_equal(decoded(encoding, *frames), decoded(encoding, content))


@ALL
def test_many_numbers_are_encoded_like_few(name: str) -> None:
    # More than the encoder reads at a time, and more than a frame of 4 MiB contains.
    dimension = 3 * 2**20 + 17
    vector_d = (np.arange(dimension, dtype=np.float32) % 1009 - 500) / 7
    encoding = MAKE[name](dimension, 0)
    frames = encoding.frames([memoryview(vector_d).cast("B")])
    payload.check(list(map(len, frames)), encoding.payload_bytes)
    assert all(len(frame) == FRAME_BYTES_MAX for frame in frames[:-1])
    whole = decoded(encoding, *frames)
    kept = whole != 0 if name == "top-k" else np.ones(dimension, dtype=bool)
    assert np.abs(whole - vector_d)[kept].max() <= np.abs(vector_d).max() / 253


@ALL
def test_few_frames_of_a_payload_are_in_memory_at_a_time(name: str) -> None:
    encoding = MAKE[name](2**20 + 17, 0)
    vector_d = (np.arange(encoding.dimension, dtype=np.float32) % 1009 - 500) / 7
    content = b"".join(encoding.frames([memoryview(vector_d).cast("B")]))
    frames = Mapped(content, 128 * 1024 + 4)
    assert np.array_equal(decoded(encoding, *frames), decoded(encoding, content))
    frames.at_once = 0
    for _ in encoding.decode(frames):
        pass
    assert len(frames) > 8
    assert frames.at_once <= 6  # two pieces, each in at most three frames


def test_float32_frames_are_the_numbers_and_each_is_released_before_the_next() -> None:
    content = np.arange(6, dtype="<f4").tobytes()
    frames = Mapped(content, 8)
    pieces = Float32(5, 1).decode(frames)
    assert [next(pieces).tobytes() for _ in frames.starts] == [content[:8], content[8:16], content[16:]]
    assert frames.at_once == 1
    (piece,) = Float32(6).decode([content])
    assert piece.obj is content  # no copy


class Mapped(Sequence[memoryview]):
    """Frames that use memory from their request until their last reference. at_once: maximum number of live
    frames."""

    def __init__(self, content: bytes, frame_bytes: int) -> None:
        self._content = np.frombuffer(content, np.uint8)
        self.starts = range(0, len(content), frame_bytes)
        self._there = self.at_once = 0

    @override
    def __len__(self) -> int:
        return len(self.starts)

    @override
    def __getitem__(self, index: Any) -> Any:
        start = self.starts[index]
        frame = self._content[start : start + self.starts.step].copy()
        weakref.finalize(frame, self._forget)
        self._there += 1
        self.at_once = max(self.at_once, self._there)
        return memoryview(frame)

    def _forget(self) -> None:
        self._there -= 1


@ALL
@given(noise=st.data())
def test_random_bytes_of_the_right_size_decode_or_are_malformed(name: str, noise: st.DataObject) -> None:
    encoding = MAKE[name](9, 2)
    content = noise.draw(st.binary(min_size=encoding.payload_bytes, max_size=encoding.payload_bytes))
    refused, numbers = None, 11
    try:
        numbers = len(decoded(encoding, content))
    except RemoteContractError as error:
        refused = error.reason
    assert (refused, numbers) in ((None, 11), (Reason.MALFORMED_PAYLOAD, 11))


# ------------------------------------------------------------------------------------------------------------ agreement


def plan(updates: str = "float32", models: str = "float32", fraction: float = 0.01) -> EncodingPlan | None:
    return encodings.plan(updates=updates, models=models, block=256, fraction=fraction, dimension=650)


def test_a_plan_has_exactly_the_settings_of_its_encodings() -> None:
    assert plan() is None
    assert plan("bfloat16") == EncodingPlan(updates="bfloat16", models="float32")
    assert plan("bfloat16", "int8") == EncodingPlan(updates="bfloat16", models="int8", block=256)
    assert plan("top-k") == EncodingPlan(updates="top-k", models="float32", keep=7)  # ceil(6.5)
    assert plan("top-k", fraction=1e-9) == EncodingPlan(updates="top-k", models="float32", keep=1)


@pytest.mark.parametrize("updates", encodings.NAMES)
@pytest.mark.parametrize("models", encodings.NAMES[:-1])
def test_an_encoding_that_a_client_does_not_offer_is_not_agreed(updates: str, models: str) -> None:
    wanted = plan(updates, models)
    assert encodings.agreed(wanted, None) is None
    assert encodings.agreed(wanted, ("float32", "of the future")) is None
    assert encodings.agreed(wanted, encodings.NAMES) == wanted
    for left_out in encodings.NAMES:
        agreed = encodings.agreed(wanted, [name for name in encodings.NAMES if name != left_out])
        expected = ("float32" if name == left_out else name for name in (updates, models))
        assert ((agreed.updates, agreed.models) if agreed else ("float32", "float32")) == tuple(expected)


def test_the_encodings_of_a_welcome_fit_its_model() -> None:
    # w has 6 numbers; behind it a buffer of 2, and an extra vector of 6
    tensors = (TensorSpec(name="w", shape=(2, 3), dtype="float32"),)
    plain = welcome().model_copy(update={"tensors": tensors})
    buffers = (TensorSpec(name="mean", shape=(2,), dtype="float32"),)
    agreed = plain.model_copy(update={"buffers": buffers, "extra": True, "encoding": plan("int8")})
    encoding = encodings.of_update(agreed)
    assert (encoding.name, encoding.dimension, encoding.behind) == ("int8", 6, 8)
    assert encodings.of_update(plain).name == "float32"


@pytest.mark.parametrize("named", [None, "float32", "int8"])
def test_a_model_has_the_agreed_encoding_or_float32(named: str | None) -> None:
    agreed = welcome().model_copy(update={"encoding": plan(models="int8")})
    assert encodings.of_task(agreed, task(named)).name == (named or "float32")


@pytest.mark.parametrize("agreed", [None, plan(models="bfloat16"), plan("int8")])
def test_a_model_in_another_encoding_is_refused(agreed: EncodingPlan | None) -> None:
    with pytest.raises(RemoteContractError) as caught:
        encodings.of_task(welcome().model_copy(update={"encoding": agreed}), task("int8"))
    assert caught.value.reason is Reason.MALFORMED_PAYLOAD


def task(encoding: Any) -> Task:
    return Task(
        task_id=1, number=0, version=0, learning_rate=0.1, signature="0" * 64, payload_bytes=8, encoding=encoding
    )
