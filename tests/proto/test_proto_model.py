"""Signatures and payload frames, by hand and by law."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unstale_proto import limits, payload, signature
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import TensorSpec


def tensor(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype="float32")


def test_the_signature_covers_lengths_names_shapes_and_dtypes() -> None:
    # Two bytes of UTF-8 for one character, a name length of 2, rank 1, dimension 5 = 2 * 2 + 1.
    by_hand = b"\x02\x00\x00\x00\xc3\xa9\x01\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00float32"
    assert signature.digest([tensor("é", 5)]) == hashlib.sha256(by_hand).hexdigest()
    scalar = b"\x01\x00\x00\x00s" + b"\x00\x00\x00\x00" + b"\x07\x00\x00\x00float32"
    assert signature.digest([tensor("é", 5), tensor("s")]) == hashlib.sha256(by_hand + scalar).hexdigest()


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=3)
shapes = st.lists(st.integers(1, 3), max_size=3)
models = st.lists(st.builds(lambda name, shape: tensor(name, *shape), names, shapes), max_size=3)


@settings(deadline=None)
@given(models, models)
def test_models_have_equal_signatures_exactly_when_equal(first: list[TensorSpec], second: list[TensorSpec]) -> None:
    assert (signature.digest(first) == signature.digest(second)) == (first == second)


def test_adjacent_names_and_shapes_are_distinguished() -> None:
    models = [
        [tensor("ab", 2, 3)],
        [tensor("a", 2, 3), tensor("b", 2, 3)],
        [tensor("b", 2, 3), tensor("a", 2, 3)],
        [tensor("ab", 3, 2)],
        [tensor("ab", 6)],
        [tensor("ab", 2, 3, 1)],
    ]
    assert len({signature.digest(model) for model in models}) == len(models)


def test_a_payload_has_four_bytes_for_each_number() -> None:
    # (2 * 3 + 2 + 1) * 4 = 36; a tensor without dimensions is one number.
    assert signature.payload_bytes([tensor("weight", 2, 3), tensor("bias", 2), tensor("scale")]) == 36


def test_frames_share_the_memory_of_the_payload() -> None:
    content = bytearray(limits.FRAME_BYTES_MAX + 8)
    frames = payload.split(memoryview(content))
    content[-1] = 7
    assert [len(frame) for frame in frames] == [limits.FRAME_BYTES_MAX, 8]
    assert frames[1][7] == 7


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 3 * limits.FRAME_BYTES_MAX // 4))
def test_joined_frames_are_the_payload_and_pass_the_check(numbers: int) -> None:
    content = memoryview(bytes(4 * numbers))
    frames = payload.split(content)
    assert b"".join(frames) == content
    payload.check([len(frame) for frame in frames], len(content))


@pytest.mark.parametrize(
    ("frame_bytes", "payload_bytes", "sentence"),
    [
        ([4] * 4097, 4 * 4097, "4097 payload frames, expected at most 4096"),
        ([4, 0], 4, "payload frame 1 is 0 bytes, expected a multiple of 4 up to 4194304"),
        ([4194308], 4194308, "payload frame 0 is 4194308 bytes, expected a multiple of 4 up to 4194304"),
        ([6, 6], 12, "payload frame 0 is 6 bytes, expected a multiple of 4 up to 4194304"),
        ([8, 8], 20, "the payload is 16 bytes, the header says 20"),
        ([], 4, "the payload is 0 bytes, the header says 4"),
    ],
)
def test_wrong_frames_are_refused_in_one_sentence(frame_bytes: list[int], payload_bytes: int, sentence: str) -> None:
    with pytest.raises(RemoteContractError) as caught:
        payload.check(frame_bytes, payload_bytes)
    assert (caught.value.reason, str(caught.value)) == (Reason.WRONG_SIZE, sentence)


def test_the_maximum_number_of_frames_is_accepted() -> None:
    payload.check([limits.FRAME_BYTES_MAX] * limits.FRAMES_MAX, limits.PAYLOAD_BYTES_MAX)


@pytest.mark.parametrize("size", [0, 6])
def test_a_payload_that_is_not_a_vector_is_a_programming_error(size: int) -> None:
    with pytest.raises(AssertionError):
        payload.split(memoryview(bytes(size)))
