"""Properties of every partition: valid shares, or an error of one sentence."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from support.parts_of_runs import partition_of
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.settings.learning import PartitionSettings
from unstale.training.partition import PARTITIONS, check, split

MNIST = Path(__file__).parents[2].parent / "shared" / "data" / "mnist.npz"

COMPLETE = {"blocks", "column", "dirichlet", "iid", "slow-class"}  # some client holds each example
OVERLAPPING = {"label-count", "natural-synthetic"}  # several clients may hold an example

over_all_partitions = pytest.mark.parametrize("name", PARTITIONS)


def rng(seed: int = 0):
    return stream(seed, Stream.PARTITION)


ALPHAS = st.sampled_from([1e-3, 0.1, 1.0, 1e6, float("inf")])
VALUES = {
    "alpha": ALPHAS,
    "budget": st.integers(4, 12),
    "classes": st.integers(1, 3),
    "largest": st.integers(3, 6),
    "min_examples": st.integers(1, 4),
    "pool": st.sampled_from([None, 4, 100]),
    "slow_class": st.sampled_from([None, 0]),
    "slow_share": st.sampled_from([0.1, 0.5, 1.0]),
    "smallest": st.integers(1, 3),
}


@st.composite
def partitions(draw: st.DrawFn, name: str):
    return partition_of(name, **{key: draw(VALUES[key]) for key in PARTITIONS[name].model_fields})


@st.composite
def cases(draw: st.DrawFn, name: str):
    """A partition, labels, groups and a number of clients: often one that can be made."""
    classes = draw(st.integers(1, 4))
    labels_n = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=80)))
    whose = draw(st.integers(1, 5))
    groups_n = np.array(draw(st.lists(st.integers(0, whose), min_size=len(labels_n), max_size=len(labels_n))))
    values = len(np.unique(groups_n))
    clients = draw(st.sampled_from([values, classes]) | st.integers(1, 10))
    return draw(partitions(name)), labels_n, groups_n, clients


def refused(*arguments) -> str | None:
    try:
        check(*arguments)
    except UserError as refusal:
        return str(refusal)
    return None


@over_all_partitions
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 3))
def test_shares_have_the_properties_of_the_partition_or_are_refused(name, data, seed):
    partition, labels_n, groups_n, clients = data.draw(cases(name))
    given_labels_n, given_groups_n = labels_n.copy(), groups_n.copy()
    refusal = refused(partition, labels_n, clients, groups_n)
    if refusal is not None:
        with pytest.raises(UserError) as raised:
            split(partition, labels_n, clients, rng(seed), groups_n)
        assert str(raised.value) == refusal
        return
    shares = split(partition, labels_n, clients, rng(seed), groups_n)
    assert len(shares) == clients
    assert all(share.dtype == np.int64 for share in shares)
    least = getattr(partition, "min_examples", getattr(partition, "smallest", 1))
    assert min(len(share) for share in shares) >= least
    for share in shares:
        assert len(set(share.tolist())) == len(share)
        assert share.min() >= 0 and share.max() < len(labels_n)
    held = np.concatenate(shares).tolist()
    if name not in OVERLAPPING:
        assert len(set(held)) == len(held)
    if name in COMPLETE:
        assert set(held) == set(range(len(labels_n)))
    if partition.by_group:
        assert all(len(set(groups_n[share].tolist())) == 1 for share in shares)
    assert np.array_equal(labels_n, given_labels_n) and np.array_equal(groups_n, given_groups_n)
    again = split(partition, labels_n, clients, rng(seed), groups_n)
    assert all(np.array_equal(share, same) for share, same in zip(shares, again, strict=True))


@over_all_partitions
def test_every_partition_can_be_chosen_by_its_name_alone(name):
    labels_n, groups_n = np.arange(6000) % 10, np.arange(6000) % 12
    shares = split(partition_of(name), labels_n, 10 if name != "column" else 12, rng(), groups_n)
    assert min(len(share) for share in shares) >= 8


@over_all_partitions
def test_the_seed_decides(name):
    labels_n, groups_n = np.arange(6000) % 10, np.arange(6000) % 10
    one, other = (split(partition_of(name), labels_n, 10, rng(seed), groups_n) for seed in (0, 1))
    assert any(share.tolist() != another.tolist() for share, another in zip(one, other, strict=True))


@over_all_partitions
def test_every_share_is_shuffled(name):
    labels_n, groups_n = np.arange(6000) % 10, np.arange(6000) % 10
    shares = split(partition_of(name), labels_n, 10, rng(), groups_n)
    assert all(share.tolist() != sorted(share.tolist()) for share in shares)


@pytest.mark.skipif(not MNIST.is_file(), reason="needs mnist.npz in ../shared/data beside the checkout")
def test_the_published_partitions_of_mnist_have_the_published_sizes():
    with np.load(MNIST) as stored:
        labels_n = stored["y_train"].astype(np.int64)

    def sizes(name: str, clients: int, **chosen) -> set[int]:
        return {len(share) for share in split(partition_of(name, **chosen), labels_n, clients, rng())}

    # The rarest class has 5,421 examples: floor(5421 / 20) = 271 a shard.
    assert sizes("classes", 100) == {542}
    assert sizes("blocks", 100) == {600}
    assert sizes("label-count", 3000, classes=5) == set(range(10, 50))
    assert min(sizes("dirichlet", 1000)) == 8
    # The floors of 10 classes take less than 10 of the budget of 450; mixtures so alike exhaust no class.
    budgets = sizes("dirichlet-client", 100, alpha=100)
    assert min(budgets) > 440 and max(budgets) <= 450


REFUSED = [
    ("dirichle", 2, {}, "unknown partition 'dirichle'; did you mean 'dirichlet'?"),
    ("iid", 2, {"alpha": 0.5}, "partition 'iid' takes no partition.alpha, got 0.5; leave it out"),
    ("iid", 13, {}, "100 examples cannot give 13 clients 8 each; take at most 12 clients or lower min_examples"),
    ("iid", 0, {}, "clients is 0, expected 1 or more"),
    (
        "dirichlet-client",
        2,
        {"budget": 51},
        "partition.budget is 51, but 100 examples cannot give 2 clients so many each; lower it to at most 50, or take "
        "fewer clients",
    ),
    ("dirichlet-client", 2, {"budget": 5}, "partition.min_examples is 8, expected at most partition.budget, 5"),
    ("label-count", 2, {"classes": 11}, "partition.classes is 11, but the data has 10 classes; expected 1 to 10"),
    (
        "label-count",
        2,
        {},
        "partition.largest is 49, but only 10 examples of class 0 can be drawn from, and a client may need so many of "
        "one class; expected at most 10",
    ),
    (
        "label-count",
        2,
        {"smallest": 3, "largest": 9, "pool": 8},
        "partition.largest is 9, but only 8 examples of class 0 can be drawn from, and a client may need so many of "
        "one class; expected at most 8",
    ),
    ("label-count", 2, {"smallest": 50}, "partition.smallest is 50, expected at most partition.largest, 49"),
    ("classes", 10, {"classes": 11}, "partition.classes is 11, but the data has 10 classes; expected 1 to 10"),
    (
        "classes",
        7,
        {"classes": 4},
        "partition 'classes' needs clients * partition.classes to be a multiple of the 10 classes, got 7 * 4 = 28; "
        "take a multiple of 5 clients",
    ),
    (
        "classes",
        15,
        {},
        "class 0 has 10 examples, which gives 15 clients with 2 classes each 6 examples, expected 8 or more; take "
        "fewer clients or lower min_examples",
    ),
    (
        "natural",
        2,
        {},
        "partition 'natural' needs data that says whose each example is, and this data does not; take partition "
        "'natural-synthetic', whose clients are drawn to be like writers",
    ),
    (
        "column",
        2,
        {},
        "partition 'column' needs a column of the data that names each example's client, and none is there; set "
        "data.column",
    ),
    ("slow-class", 2, {"slow_class": 10}, "partition.slow_class is 10, but the data has 10 classes; expected 0 to 9"),
    ("slow-class", 12, {}, "90 examples cannot give 12 clients 8 each; take at most 11 clients or lower min_examples"),
]


@pytest.mark.parametrize(("name", "clients", "chosen", "sentence"), REFUSED)
def test_a_partition_that_cannot_be_made_is_refused_in_one_sentence(name, clients, chosen, sentence):
    with pytest.raises(UserError) as caught:
        check(partition_of(name, **chosen), np.arange(100) % 10, clients)
    assert str(caught.value) == sentence


def test_data_without_an_example_is_refused():
    with pytest.raises(UserError, match="no training examples"):
        check(partition_of("iid"), np.empty(0, dtype=np.int64), 1)


@pytest.mark.parametrize(
    ("name", "clients", "sentence"),
    [
        (
            "natural",
            3,
            "2 groups of the data have 8 or more examples, expected one for each of the 3 clients; take at most 2 "
            "clients or lower min_examples",
        ),
        ("column", 2, "clients is 2, but the column that names the client has 3 values; expected clients 3"),
    ],
)
def test_too_few_or_too_many_groups_are_refused(name, clients, sentence):
    groups_n = np.repeat([4, 5, 9], [8, 7, 9])
    with pytest.raises(UserError) as caught:
        check(partition_of(name), np.zeros(24, dtype=np.int64), clients, groups_n)
    assert str(caught.value) == sentence


def test_a_setting_that_is_null_was_not_given():
    assert partition_of("classes", classes=None, budget=None) == partition_of("classes")


@pytest.mark.parametrize("wrong", [{"alhpa": 0.5}, {"alpha": 0.0}, {"alpha": float("nan")}, {"min_examples": 0}])
def test_values_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValidationError):
        PartitionSettings(**wrong)
