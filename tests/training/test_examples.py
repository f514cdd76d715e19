"""The examples of a client: tensors, a data set that is read when needed, and an iterable."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from support.parts_of_runs import gradient, sgd
from unstale.errors import UserError
from unstale.training.datasets import OwnData
from unstale.training.examples import Examples, LazyExamples, OrderedExamples, TensorExamples

CPU = torch.device("cpu")


class Numbers(Dataset[Any]):
    """Example i: a dict of i and (i, -i), and the target 10 i. read: the indices that were read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return {"one": float(index), "two": (np.array([index]), -index)}, 10 * index


class Counting(IterableDataset[Any]):
    """Numbers from 0, each with its tenfold. begun: how often it was read from the beginning."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.begun = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        for number in range(self.count):
            yield float(number), 10 * number


def test_a_lazy_data_set_is_read_when_a_batch_needs_it() -> None:
    dataset = Numbers(9)
    examples = LazyExamples(dataset, np.array([8, 3, 5]), CPU)
    assert len(examples) == 3
    assert dataset.read == []
    inputs, targets = examples.batch(torch.tensor([2, 0]))
    assert dataset.read == [5, 8]
    assert inputs["one"].tolist() == [5, 8]
    first, second = inputs["two"]
    assert (first.tolist(), second.tolist()) == ([[5], [8]], [-5, -8])
    assert targets.tolist() == [50, 80]


@pytest.mark.parametrize(
    "examples",
    [
        TensorExamples(torch.arange(5.0), 10 * torch.arange(5)),
        LazyExamples(TensorDataset(torch.arange(5.0), 10 * torch.arange(5)), np.arange(5), CPU),
        OrderedExamples(Counting(5), CPU),
    ],
    ids=["tensors", "lazy", "ordered"],
)
def test_all_examples_come_in_order_and_again(examples: Examples) -> None:
    for _ in range(2):
        batches = list(examples.batches(2))
        assert [inputs.tolist() for inputs, _ in batches] == [[0, 1], [2, 3], [4]]
        assert [targets.tolist() for _, targets in batches] == [[0, 10], [20, 30], [40]]


def test_nests_of_tensors_are_selected_together() -> None:
    examples = TensorExamples({"a": torch.arange(4), "b": (torch.arange(4) * 2,)}, torch.arange(4) * 3)
    inputs, targets = examples.batch(torch.tensor([3, 1]))
    assert (inputs["a"].tolist(), inputs["b"][0].tolist(), targets.tolist()) == ([3, 1], [6, 2], [9, 3])


def test_an_iterable_is_read_in_order_and_each_task_continues_where_the_one_before_ended() -> None:
    dataset = Counting(7)
    examples = OrderedExamples(dataset, CPU)
    assert len(examples) == 7
    training = sgd(steps=2, batch_size=2)
    seen = [
        [examples.batch(batch)[0].tolist() for batch in training.batches_in_order(7, number)] for number in range(3)
    ]
    assert seen == [[[0, 1], [2, 3]], [[4, 5], [6, 0]], [[1, 2], [3, 4]]]
    assert dataset.begun == 3  # to count, and twice to read


def test_a_task_of_an_iterable_depends_on_its_number_alone() -> None:
    training = gradient(batch_size=3)
    for number, expected in ((5, [1, 2, 3]), (0, [0, 1, 2]), (5, [1, 2, 3])):
        examples = OrderedExamples(Counting(7), CPU)
        (batch,) = training.batches_in_order(7, number)
        assert examples.batch(batch)[0].tolist() == expected
    assert [batch.tolist() for batch in sgd(epochs=2, batch_size=4).batches_in_order(7, 9)] == [
        [0, 1, 2, 3],
        [4, 5, 6],
    ] * 2


def test_an_iterable_that_ends_early_and_one_without_examples_are_refused() -> None:
    dataset = Counting(3)
    examples = OrderedExamples(dataset, CPU)
    dataset.count = 2
    with pytest.raises(UserError, match="ended after 2 examples, expected 3"):
        examples.batch(torch.tensor([2]))
    with pytest.raises(UserError, match="has no examples"):
        OrderedExamples(Counting(0), CPU)


def test_examples_that_make_no_batch_are_refused() -> None:
    ragged = [(torch.zeros(2), 0), (torch.zeros(3), 0)]
    for examples in (ragged, [1, 2, 3], [("text", object())] * 2):
        with pytest.raises(UserError, match="the examples of the data set make no batch"):
            LazyExamples(examples, np.arange(len(examples)), CPU).batch(torch.arange(len(examples)))  # type: ignore[arg-type]


def test_own_data_is_tensors_where_it_can_be() -> None:
    tensors = TensorDataset(torch.arange(4.0), torch.arange(4.0) * 2, torch.arange(4) * 3)
    data = OwnData("mine", tensors, Numbers(3))
    made = data.examples("train", np.array([2, 0]), CPU)
    assert isinstance(made, TensorExamples)
    inputs, targets = made.batch(torch.tensor([0, 1]))
    assert ([part.tolist() for part in inputs], targets.tolist()) == ([[2, 0], [4, 0]], [6, 0])
    assert isinstance(data.examples("test", None, CPU), LazyExamples)
    assert data.has("test") and not OwnData("mine", tensors).has("test")
    assert data.labels("train").tolist() == [0, 0, 0, 0]


def test_own_data_names_its_groups_and_labels() -> None:
    dataset = Numbers(3)
    dataset.groups, dataset.labels = [5, 5, 7], torch.tensor([0, 1, 1])  # type: ignore[attr-defined]
    data = OwnData("mine", dataset)
    groups = data.groups("train")
    assert groups is not None
    assert (groups.tolist(), data.labels("train").tolist()) == ([5, 5, 7], [0, 1, 1])
    dataset.groups = [1.5, 2, 3]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"has groups of float64 \[3\] for its train examples, expected 3 integers"):
        data.groups("train")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Numbers(0), "has no train examples"),
        (TensorDataset(torch.zeros(3)), "has one tensor of train examples, expected inputs and targets"),
        (7, "has train examples in a int, expected one with __getitem__ and __len__"),
    ],
)
def test_what_is_no_data_set_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        OwnData("mine", dataset)
