"""Error feedback: only rejected parts of updates are lost. Source: PROTOCOL.md 9.1."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale_client import vectors
from unstale_client.residuals import KEY, Residuals, without
from unstale_proto.encodings import BFloat16, Encoding, TopK, Vector

TOP_1_OF_3 = TopK(3, keep=1)
CLIENT = 7


def vector(*numbers: float) -> Vector:
    return np.array(numbers, np.float32)


def sent(residuals: Residuals, number: int, update_d: Vector, encoding: Encoding = TOP_1_OF_3) -> Vector:
    """An update as the server decodes it."""
    frames, _ = residuals.encode(CLIENT, number, [update_d], encoding)
    return vectors.from_bytes(encoding.decode(frames), len(update_d))


def residual(residuals: Residuals) -> list[float]:
    return residuals.kept(CLIENT).get(KEY, np.zeros(3, np.float32)).tolist()


def test_the_omitted_part_of_an_accepted_update_is_added_to_the_next() -> None:
    residuals = Residuals()
    assert sent(residuals, 0, vector(3, 2, 1)).tolist() == [3, 0, 0]
    assert residuals.settle(CLIENT, 0, accepted=True)
    assert residual(residuals) == [0, 2, 1]
    assert sent(residuals, 1, vector(2, 1, 1)).tolist() == [0, 3, 0]  # of [2, 3, 2]
    assert residuals.settle(CLIENT, 1, accepted=True)
    assert residual(residuals) == [2, 0, 2]


def test_a_rejected_update_leaves_the_residual_unchanged() -> None:
    residuals = Residuals()
    sent(residuals, 0, vector(3, 2, 1))
    residuals.settle(CLIENT, 0, accepted=True)
    assert sent(residuals, 1, vector(2, 1, 1)).tolist() == [0, 3, 0]
    assert not residuals.settle(CLIENT, 1, accepted=False)
    assert residual(residuals) == [0, 2, 1]
    assert sent(residuals, 2, vector(0, 0, 0)).tolist() == [0, 2, 0]


def test_an_open_update_counts_as_accepted_until_its_rejection() -> None:
    residuals = Residuals()
    sent(residuals, 0, vector(3, 2, 1))
    assert sent(residuals, 1, vector(0, 0, 0)).tolist() == [0, 2, 0]
    residuals.settle(CLIENT, 0, accepted=False)
    residuals.settle(CLIENT, 1, accepted=True)
    # The accepted updates made 0 and sent 2: the next update subtracts it.
    assert residual(residuals) == [0, -2, 0]


def test_a_verdict_counts_once() -> None:
    residuals = Residuals()
    sent(residuals, 0, vector(3, 2, 1))
    assert residuals.settle(CLIENT, 0, accepted=True)
    assert not residuals.settle(CLIENT, 0, accepted=True)
    assert residual(residuals) == [0, 2, 1]


def test_encoding_an_update_again_gives_the_same_result() -> None:
    residuals = Residuals()
    first = sent(residuals, 0, vector(3, 2, 1))
    assert np.array_equal(sent(residuals, 0, vector(3, 2, 1)), first)
    residuals.settle(CLIENT, 0, accepted=True)
    assert residual(residuals) == [0, 2, 1]


def test_each_client_has_a_residual_of_its_own() -> None:
    residuals = Residuals()
    residuals.encode(1, 0, [vector(3, 2, 1)], TOP_1_OF_3)
    residuals.settle(1, 0, accepted=True)
    assert sent(residuals, 0, vector(0, 0, 1)).tolist() == [0, 0, 1]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_an_update_that_is_not_finite_is_sent_as_such_and_leaves_no_residual(wrong: float) -> None:
    residuals = Residuals()
    sent(residuals, 0, vector(3, 2, 1))
    residuals.settle(CLIENT, 0, accepted=True)
    assert not vectors.is_finite(sent(residuals, 1, vector(wrong, wrong, 1)))
    residuals.settle(CLIENT, 1, accepted=True)
    assert residual(residuals) == [0, 2, 1]


def test_an_encoding_with_small_omissions_has_no_residual() -> None:
    residuals = Residuals()
    frames, left_out = residuals.encode(CLIENT, 0, [vector(0.1, 0.2, 0.3)], BFloat16(3))
    assert left_out == {} and sum(map(len, frames)) == 8
    assert not residuals.settle(CLIENT, 0, accepted=True)
    assert residuals.kept(CLIENT) == {}


def test_the_second_vector_has_no_residual() -> None:
    residuals, encoding = Residuals(), TopK(3, 2, keep=1)
    frames, left_out = residuals.encode(CLIENT, 0, [vector(3, 2, 1), vector(5, 6)], encoding)
    assert vectors.from_bytes(encoding.decode(frames), 5).tolist() == [3, 0, 0, 5, 6]
    assert left_out[KEY].tolist() == [0, 2, 1]


def test_another_process_resumes_with_the_stored_residual() -> None:
    before, after = Residuals(), Residuals()
    sent(before, 0, vector(3, 2, 1))
    before.settle(CLIENT, 0, accepted=True)
    _, left_out = before.encode(CLIENT, 1, [vector(2, 1, 1)], TOP_1_OF_3)
    other = {"control": vector(9, 9, 9)}
    after.restore(CLIENT, {**other, **before.kept(CLIENT)}, {1: {**other, **left_out}})
    for residuals in (before, after):
        residuals.settle(CLIENT, 1, accepted=True)
    assert residual(after) == residual(before) == [2, 0, 2]
    assert without({**other, **left_out}) == other
    after.clear()
    assert residual(after) == [0, 0, 0]


@given(
    st.lists(st.tuples(st.lists(st.integers(-99, 99), min_size=5, max_size=5), st.booleans()), max_size=12),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_sent_and_residual_parts_add_up_to_the_update(
    updates: list[tuple[list[int], bool]], keep: int, late: int
) -> None:
    # Integers, so that no sum is rounded. late: number of open verdicts.
    residuals, encoding = Residuals(), TopK(5, keep=keep)
    made_d, sent_d = np.zeros(5, np.float32), np.zeros(5, np.float32)
    for number, (numbers, accepted) in enumerate(updates):
        came_d = sent(residuals, number, np.array(numbers, np.float32), encoding)
        if accepted:
            made_d += np.array(numbers, np.float32)
            sent_d += came_d
        if number >= late:
            residuals.settle(CLIENT, number - late, accepted=updates[number - late][1])
    for number in range(max(0, len(updates) - late), len(updates)):
        residuals.settle(CLIENT, number, accepted=updates[number][1])
    left_d = residuals.kept(CLIENT).get(KEY, np.zeros(5, np.float32))
    assert np.array_equal(sent_d + left_d, made_d)


def test_every_part_is_eventually_sent() -> None:
    # Training changes nothing, and each update sends one of three numbers.
    residuals = Residuals()
    sent_d = np.zeros(3, np.float32)
    for number in range(3):
        sent_d += sent(residuals, number, vector(3, 2, 1) if number == 0 else np.zeros(3, np.float32))
        residuals.settle(CLIENT, number, accepted=True)
    assert sent_d.tolist() == [3, 2, 1]


def test_payloads_and_residuals_are_those_of_version_0_1_to_the_bit() -> None:
    residuals, sha256 = Residuals(), hashlib.sha256()
    for number in range(4):
        update_d = ((np.arange(1000) * 7919 + number * 31) % 1009 - 504).astype(np.float32) / np.float32(7)
        frames, left_out = residuals.encode(CLIENT, number, [update_d], TopK(1000, keep=50))
        for frame in frames:
            sha256.update(frame)
        sha256.update(vectors.to_bytes(left_out[KEY]))
        residuals.settle(CLIENT, number, accepted=number != 1)
    # Computed with PyTorch, by the code of that version.
    assert sha256.hexdigest() == "2260e7cfd81e3326dd87cd3419dd94de9cc92b8e17fb308727ec91912b370588"
