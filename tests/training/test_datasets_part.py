"""Parts of a data set: the first of each class, and training examples that are measured on."""

import pytest
import torch

from unstale.config import Settings
from unstale.config.data import read_dataset
from unstale.errors import UserError
from unstale.training.datasets import Dataset, Split, part, with_validation

TRAIN = [2, 0, 1, 0, 0, 1, 2, 0, 0, 2]  # five of class 0, two of 1, three of 2


def data_of(train: list[int], test: list[int]) -> Dataset:
    """Example i of the training set is (i,), and of the test set (100 + i,); each has its number as its group."""
    return Dataset(name="counted", classes=3, train=split_of(train), test=split_of(test, first=100))


def split_of(labels: list[int], first: int = 0) -> Split:
    numbers_N = first + torch.arange(len(labels))
    return Split(stored_NX=numbers_N.float().unsqueeze(1), labels_N=torch.tensor(labels), groups_N=numbers_N)


def held(data: Dataset) -> tuple[list[int], list[int]]:
    """The remaining examples of both splits, by stored value; labels and groups must match."""
    train, test = ([int(x) for x in stored.flatten()] for stored in (data.train.stored_NX, data.test.stored_NX))
    assert data.train.labels_N.tolist() == [TRAIN[i] for i in train]
    assert data.train.groups_N is not None
    assert data.train.groups_N.tolist() == train
    return train, test


def test_the_whole_is_the_data_set_itself() -> None:
    data = data_of(TRAIN, [0, 1, 2])
    assert part(data, share=1.0) is data


def test_the_first_of_each_class_are_taken_in_their_order_and_no_class_is_lost() -> None:
    half = part(data_of(TRAIN, [2, 1, 1, 0]), share=0.5)
    assert held(half) == ([0, 1, 2, 3, 4, 6], [100, 101, 103])  # 3 of 5, 1 of 2, 2 of 3; 1 of 1, 1 of 2, 1 of 1
    assert half.test.labels_N.tolist() == [2, 1, 0]
    assert held(part(data_of(TRAIN, [2, 1, 0]), share=0.01))[0] == [0, 1, 2]


def test_a_share_that_comes_to_a_whole_number_is_not_rounded_up() -> None:
    classes = [0] * 100 + [1] * 100 + [2] * 100
    assert len(part(data_of(classes, classes), share=0.07).train.labels_N) == 21  # 0.07 * 100 > 7 in floats


def test_the_last_of_each_class_are_measured_on_and_not_trained_on() -> None:
    data = with_validation(data_of(TRAIN, [0, 1, 2]), 0.4)
    assert held(data) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])  # 2 of 5, 1 of 2, 2 of 3
    assert data.test.labels_N.tolist() == [1, 2, 0, 0, 2]
    assert data.test.groups_N is not None
    assert data.test.groups_N.tolist() == [5, 6, 7, 8, 9]


def in_groups(train: list[int], test: list[int]) -> Dataset:
    """Training examples of one class, (0,), (1,) and so on, and test examples, with these groups."""
    splits = [
        Split(
            stored_NX=torch.arange(len(groups)).float().unsqueeze(1),
            labels_N=torch.zeros(len(groups), dtype=torch.int64),
            groups_N=torch.tensor(groups),
        )
        for groups in (train, test)
    ]
    return Dataset(name="grouped", classes=2, train=splits[0], test=splits[1])


def test_the_last_of_each_group_are_measured_on_where_the_test_set_is_of_the_same_groups() -> None:
    groups = [7, 3, 7, 7, 9, 3, 7, 7, 3, 9]  # five of group 7, three of 3, two of 9
    data = with_validation(in_groups(groups, [3, 7]), 0.4)
    assert data.test.stored_NX.flatten().tolist() == [6, 7, 8]  # 2 of 5, 1 of 3, 0 of 2
    assert data.test.groups_N is not None
    assert data.test.groups_N.tolist() == [7, 7, 3]
    assert data.train.stored_NX.flatten().tolist() == [0, 1, 2, 3, 4, 5, 9]


def test_a_test_set_of_other_groups_is_stood_for_by_the_last_of_each_class() -> None:
    data = with_validation(in_groups([0, 1, 2, 3, 4], [0, 5]), 0.4)
    assert data.test.stored_NX.flatten().tolist() == [3, 4]


def test_a_share_of_groups_that_comes_to_a_whole_number_is_not_rounded_down() -> None:
    data = with_validation(in_groups([0] * 100, [0]), 0.29)
    assert len(data.test) == 29  # 0.29 * 100 < 29 in floats


def test_nothing_left_to_evaluate_on_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.validation is 0.2, which leaves no example to evaluate on; make it"):
        with_validation(in_groups([0, 1, 2, 0, 1, 2], [0]), 0.2)


def test_nothing_left_to_train_on_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.validation is 0.5, which leaves no example to train on"):
        with_validation(data_of([0, 1, 2], [0, 1, 2]), 0.5)


def test_settings_take_the_share_first_and_the_test_set_is_not_looked_at() -> None:
    whole = read_dataset(Settings().data)
    chosen = read_dataset(Settings(data={"share": 0.5, "validation": 0.2}).data)
    both = len(chosen.train.labels_N) + len(chosen.test.labels_N)
    assert both == len(part(whole, share=0.5).train.labels_N)
    seen = {example.numpy().tobytes() for example in whole.train.stored_NX}
    assert all(example.numpy().tobytes() in seen for example in chosen.test.stored_NX)


def test_a_validation_set_of_data_that_changes_is_refused() -> None:
    settings = Settings(data={"variant": {"name": "digits", "rate": 1.0}, "validation": 0.1})
    with pytest.raises(UserError, match=r"data.validation is 0.1 with data.variant"):
        read_dataset(settings.data)
