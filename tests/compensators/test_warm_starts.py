"""Warm starts: the reconstructions that are kept, and their memory."""

from dataclasses import replace

import pytest
import torch

from support.compensation import (
    context,
    inversion,
    received,
    reconstructed,
    reconstruction,
    settings,
    stale_round,
    tensors_of,
)
from unstale.compensators.inversion.inversions import Inversions
from unstale.compensators.inversion.reconstruction import WarmStarts

BYTES = 4 * (4 * 16 + 4 * 3)  # of four examples and their labels


def clients(warm: WarmStarts) -> list[int]:
    return [one["client"] for one in warm.state_dict()]


def test_the_last_reconstruction_of_a_client_is_stored():
    warm = WarmStarts(10 * BYTES)
    first, second = reconstruction(seed=1), reconstruction(seed=2)
    warm.put(3, first)
    warm.put(3, second)
    assert warm.get(3) is second
    assert warm.get(4) is None
    assert (len(warm), warm.size_bytes) == (1, BYTES)


def test_beyond_the_bound_the_client_that_was_inverted_longest_ago_goes():
    warm = WarmStarts(3 * BYTES)
    for client_id in (0, 1, 2, 0, 3):
        warm.put(client_id, reconstruction())
    assert clients(warm) == [2, 0, 3]
    assert warm.size_bytes == 3 * BYTES


def test_several_go_for_one_that_is_large():
    warm = WarmStarts(3 * BYTES)
    for client_id in (0, 1, 2):
        warm.put(client_id, reconstruction())
    warm.put(3, reconstruction(8))
    assert clients(warm) == [2, 3]
    assert warm.size_bytes == 3 * BYTES


def test_a_reconstruction_over_the_limit_removes_the_earlier_one():
    warm = WarmStarts(BYTES)
    warm.put(0, reconstruction())
    warm.put(0, reconstruction(8))
    assert (len(warm), warm.size_bytes) == (0, 0)


def test_without_memory_nothing_is_stored():
    warm = WarmStarts(0)
    warm.put(0, reconstruction())
    assert warm.get(0) is None


def test_the_state_replaces_all_and_keeps_the_order():
    warm, other = WarmStarts(3 * BYTES), WarmStarts(3 * BYTES)
    for client_id in (2, 0, 1):
        warm.put(client_id, reconstruction(seed=client_id))
    other.put(7, reconstruction())
    other.load_state_dict(warm.state_dict())
    assert clients(other) == [2, 0, 1]
    assert other.size_bytes == 3 * BYTES
    other.put(3, reconstruction())
    assert clients(other) == [0, 1, 3]


def test_a_client_begins_where_its_last_inversion_ended_and_takes_fewer_iterations():
    subject = Inversions(settings(iterations=10, warm_share=0.57), context())
    kept = reconstruction(seed=9)
    subject.remember(0, kept)
    warm, cold = subject.begin(received(0)), subject.begin(received(1))
    assert torch.equal(warm.now.inputs_rX, kept.inputs_rX)
    assert torch.equal(warm.now.labels_rC, kept.labels_rC)
    assert (warm.iterations, cold.iterations) == (6, 10)  # round(5.7)
    assert (warm.is_warm, cold.is_warm) == (True, False)


@pytest.mark.parametrize(
    ("given", "num_examples"), [({"warm_start": False}, 8), ({}, 6)], ids=["switched off", "another size"]
)
def test_a_client_begins_anew_without_a_warm_start_that_fits(given, num_examples):
    subject, other = (Inversions(settings(**given), context()) for _ in range(2))
    subject.remember(0, reconstruction(4))
    update = received(0, num_examples=num_examples)
    warm, cold = subject.begin(update), other.begin(update)
    assert torch.equal(warm.now.inputs_rX, cold.now.inputs_rX)
    assert warm.iterations == cold.iterations == 6


def test_even_the_smallest_share_is_one_iteration():
    subject = Inversions(settings(warm_share=0.01), context())
    subject.remember(0, reconstruction(4))
    assert subject.begin(received(0)).iterations == 1


def test_a_warm_inversion_shorter_than_the_least_is_used_when_it_is_done():
    # iterations_min is 2, and a warm start is planned with 1, so the budget has not ended it early.
    subject = Inversions(settings(warm_share=0.01), context())
    subject.remember(0, reconstruction(4))
    result = subject.finish({0: received(0)})
    assert (list(result.inverted_rows), sum(result.fallbacks.values())) == ([0], 0)


def test_a_compensator_resumes_from_its_own_reconstruction():
    subject = inversion(warm_share=0.5)
    first = stale_round(received(0))
    made = subject.make(first)
    subject.take(first, made)
    second = stale_round(received(0, base_version=4), version=7)
    begun = subject.inversions.begin(second.updates[0])
    assert torch.equal(begun.now.inputs_rX, reconstructed(made["estimates"][0])["inputs"])
    outcome = subject.take(second, subject.make(second))
    assert [one.iterations for one in outcome.updates] == [3]


def test_a_stored_reconstruction_shares_no_memory_with_its_group():
    subject = inversion()
    round_ = stale_round(*(received(client_id) for client_id in range(4)))
    made = subject.make(round_)
    subject.take(round_, made)
    for one in tensors_of([subject.state_dict()["inversions"]["warm"], made]):
        assert one.untyped_storage().nbytes() == one.nbytes


def test_a_reconstruction_is_remembered_when_its_round_is_taken():
    # The result of `make` may be lost; `take` remembers it.
    subject = inversion()
    round_ = stale_round(received(0))
    subject.make(round_)
    assert subject.state_dict()["inversions"]["warm"] == []


def test_a_client_that_was_fresh_leaves_nothing_behind():
    subject = inversion()
    round_ = stale_round(replace(received(0), staleness=0))
    subject.take(round_, subject.make(round_))
    assert subject.state_dict()["inversions"]["warm"] == []
