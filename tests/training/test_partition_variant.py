"""Data that changes while clients train (docs/methods/partitions.md#changing-data)."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.parts_of_runs import partition_of
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.training.partition import VariantStream, split
from unstale_proto import limits

OLD_LABELS = np.arange(400) % 4
NEW_LABELS = np.arange(800)[::-1] // 2 % 4


def replaced_by(changing: VariantStream, client: int, epoch: int):
    count = changing.count(client, epoch)
    positions, new = changing.replacements(client)
    return positions[:count], new[:count]


def a_stream(rate=0.5, *, seed: int = 0, new_labels_m=NEW_LABELS) -> VariantStream:
    shares = split(partition_of("dirichlet"), OLD_LABELS, 6, stream(0, Stream.PARTITION))
    return VariantStream(shares, OLD_LABELS, new_labels_m, rate=rate, seed=seed)


@pytest.mark.parametrize(
    ("rate", "replaced"),
    [(1 / 4, [0, 0, 0, 0, 1, 1, 1, 1, 2]), (1 / 3, [0, 0, 0, 1, 1, 1, 2, 2, 2]), (0.5, [0, 0, 1, 1, 2, 2, 3, 3, 4])],
)
def test_at_epoch_t_the_floor_of_q_t_examples_are_replaced(rate, replaced):
    changing = a_stream(rate)
    assert [len(replaced_by(changing, 0, epoch)[0]) for epoch in range(9)] == replaced


def test_a_rate_is_the_fraction_that_is_meant():
    # In floats 49 * (1 / 49) is below 1.
    changing = a_stream(1 / 49)
    assert len(replaced_by(changing, 0, 49)[0]) == 1
    assert len(replaced_by(a_stream(Fraction(1, 49)), 0, 48)[0]) == 0


@settings(max_examples=30, deadline=None)
@given(client=st.integers(0, 5), epoch=st.integers(0, 600), seed=st.integers(0, 5))
def test_every_replacement_is_of_the_same_class_comes_once_and_stays(client, epoch, seed):
    changing = a_stream(seed=seed)
    before, after = changing.indices(client, epoch), changing.indices(client, epoch + 1)
    positions, new = replaced_by(changing, client, epoch)
    begin = changing.indices(client, 0)
    assert begin.max() < 400
    assert len(positions) == min(epoch // 2, len(begin))
    assert len(set(new.tolist())) == len(new)
    assert len(set(before.tolist())) == len(before)
    labels = np.concatenate([OLD_LABELS, NEW_LABELS])
    assert np.array_equal(labels[before], OLD_LABELS[begin])
    assert np.array_equal(before[positions], 400 + new)
    assert (np.delete(before, positions) < 400).all()
    is_new = before >= 400
    assert np.array_equal(before[is_new], after[is_new])
    assert (before != after).sum() <= 1


def test_no_two_clients_are_given_the_same_example_while_there_are_enough():
    changing = a_stream(1)
    given_out = np.concatenate([replaced_by(changing, client, 1000)[1] for client in range(6)])
    assert len(given_out) == 400
    assert len(set(given_out.tolist())) == 400


def test_a_class_with_fewer_new_examples_than_clients_hold_together_is_given_out_again():
    # 100 old examples a class, at most so many new ones as one client holds.
    shares = split(partition_of("iid"), OLD_LABELS, 4, stream(0, Stream.PARTITION))
    most = max(np.bincount(OLD_LABELS[share]).max() for share in shares)
    changing = VariantStream(shares, OLD_LABELS, np.arange(4 * most) % 4, rate=1, seed=0)
    for client in range(4):
        new = replaced_by(changing, client, 1000)[1]
        assert len(set(new.tolist())) == len(new) == 100
    with pytest.raises(UserError) as raised:
        VariantStream(shares, OLD_LABELS, np.arange(4 * (most - 1)) % 4, rate=1, seed=0)
    assert f"but there are only {most - 1} new ones to replace them" in str(raised.value)


def test_the_examples_depend_on_seed_client_and_epoch_only():
    changing, other = a_stream(), a_stream()
    changing.indices(3, 50)
    assert np.array_equal(changing.indices(1, 20), other.indices(1, 20))
    assert not np.array_equal(a_stream(seed=1).indices(1, 20), other.indices(1, 20))


def test_examples_go_in_a_random_order():
    positions, _ = replaced_by(a_stream(1), 0, 1000)
    assert positions.tolist() != sorted(positions.tolist())


def test_at_the_least_rate_of_the_wire_one_example_gives_way_in_a_million_epochs():
    changing = a_stream(limits.VARIANT_RATE_MIN)
    assert [len(replaced_by(changing, 0, epoch)[0]) for epoch in (999_999, 1_000_000)] == [0, 1]


def test_a_rate_over_the_largest_client_is_refused_with_one_sentence():
    shares = [np.arange(3), np.arange(3, 8)]
    labels = np.zeros(8, dtype=np.int64)
    VariantStream(shares, labels, labels, rate=5, seed=0)
    with pytest.raises(UserError) as raised:
        VariantStream(shares, labels, labels, rate=5.5, seed=0)
    assert str(raised.value) == (
        "data.variant.rate is 5.5, but no client holds more than 5 examples, so all would be replaced at once; "
        "expected at most 5"
    )
