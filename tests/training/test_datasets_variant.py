"""Two data sets as one that changes: checks, and inputs of a model."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from unstale.errors import UserError
from unstale.training.datasets import Dataset, Normalisation, Split, load, varied


def data_of(stored_NX: Tensor, name: str = "old", classes: int = 2, **changes) -> Dataset:
    """Two examples to train on, of classes 0 and 1, and the first of them again as the test set."""
    train = Split(stored_NX=stored_NX, labels_N=torch.tensor([0, 1]))
    return Dataset(name=name, classes=classes, train=train, test=train.at(slice(1)), **changes)


def bytes_of(*shape: int, value: int = 0) -> Tensor:
    return torch.full((2, *shape), value, dtype=torch.uint8)


def both(first: Dataset, second: Dataset, normalise: str = "raw") -> Dataset:
    return varied(first, second, rate=0.5, normalise=normalise)


def test_grey_images_are_resized_and_fill_all_channels():
    # Linear between pixel centres: at 1/4, 3/4, 5/4, 7/4 of a picture whose centres lie at 1/2 and 3/2.
    picture_HW = torch.tensor([[0, 100], [0, 100]], dtype=torch.uint8)
    made = both(data_of(picture_HW.expand(2, 1, 2, 2)), data_of(bytes_of(3, 4, 4, value=7), name="new"))
    assert made.input_shape == (3, 4, 4)
    assert made.train.stored_NX.dtype == torch.uint8
    for channel in range(3):
        assert made.train_examples()[0, channel].tolist() == [[0, 25, 75, 100]] * 4
    assert made.later_examples().flatten().tolist() == [7] * 2 * 48


def test_the_test_set_is_that_of_both():
    first, second = data_of(bytes_of(1, 2, 2, value=3)), data_of(bytes_of(1, 2, 2, value=5), name="new")
    second = replace(second, test=replace(second.test, labels_N=torch.tensor([1])))
    made = both(first, second)
    assert made.test_examples()[:, 0, 0, 0].tolist() == [3, 5]
    assert made.test.labels_N.tolist() == [0, 1]
    assert made.name == "old to new"


@pytest.mark.parametrize(
    ("normalise", "seen"), [("standard", [-2.0, 2.0]), ("unit", [0.0, 1.0]), ("raw", [0.0, 255.0])]
)
def test_both_are_normalised_alike(normalise, seen):
    # (0 - 0.5) / 0.25 and (1 - 0.5) / 0.25
    dark, bright = data_of(bytes_of(1, 2, 2)), data_of(bytes_of(3, 2, 2, value=255), name="new")
    made = both(dark, bright, normalise)
    assert made.train_examples().unique().tolist() == [seen[0]]
    assert made.later_examples().unique().tolist() == [seen[1]]
    assert made.test_examples().unique().tolist() == seen


def test_bytes_that_count_in_other_levels_become_those_of_the_second():
    # 8 of 16 is 127.5 of 255.
    sixteenths = data_of(bytes_of(1, 2, 2, value=8), levels=16)
    assert both(sixteenths, data_of(bytes_of(1, 2, 2))).train.stored_NX.unique().tolist() == [128]


def test_more_images_than_are_converted_at_a_time_are_all_converted():
    digits = load("digits")
    made = both(digits, data_of(bytes_of(3, 12, 12), classes=10))
    assert len(made.train.stored_NX) == 1442
    for row in (0, 1023, 1024, 1441):
        alone = data_of(digits.train.stored_NX[[row, row]], classes=10, levels=16)
        again = both(alone, data_of(bytes_of(3, 12, 12), classes=10))
        assert torch.equal(made.train.stored_NX[row], again.train.stored_NX[0])


def test_floats_of_one_shape_are_unchanged():
    first = data_of(torch.tensor([[0.5, 1.5], [2.5, 3.5]]))
    halved = data_of(torch.tensor([[8.0, 6.0], [4.0, 2.0]]), normalisation=Normalisation(divisor=2))
    made = both(first, halved, "standard")
    assert made.train_examples().tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert made.later_examples().tolist() == [[4, 3], [2, 1]]
    assert made.test_examples().tolist() == [[0.5, 1.5], [4, 3]]


def test_neither_data_set_is_written_to():
    first, second = data_of(bytes_of(1, 2, 2, value=9)), data_of(bytes_of(3, 4, 4, value=9))
    both(first, second, "standard").train_examples()
    assert first.train.stored_NX.unique().tolist() == second.train.stored_NX.unique().tolist() == [9]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            data_of(bytes_of(3, 32, 32)),
            data_of(bytes_of(1, 28, 28), name="new"),
            "data set 'old' has examples of 3x32x32, which cannot be made like those of 'new' of data.variant, "
            "1x28x28; expected the same shape, or images of bytes with as many channels or one",
        ),
        (
            data_of(torch.zeros(2, 4)),
            data_of(torch.zeros(2, 5), name="new"),
            "data set 'old' has examples of 4, which cannot be made like those of 'new' of data.variant, 5; "
            "expected the same shape, or images of bytes with as many channels or one",
        ),
        (
            data_of(torch.zeros(2, 1, 2, 2)),
            data_of(bytes_of(1, 2, 2), name="new"),
            "data set 'new' of data.variant holds bytes, but 'old', whose place it takes, floats; expected the same in "
            "both",
        ),
        (
            data_of(bytes_of(1, 2, 2)),
            data_of(bytes_of(1, 2, 2), name="new", classes=26),
            "data set 'new' of data.variant has 26 classes, but 'old', whose place it takes, 2; expected as many",
        ),
    ],
    ids=["channels", "columns", "bytes and floats", "classes"],
)
def test_data_sets_that_do_not_fit_are_refused_with_one_sentence(first, second, message):
    with pytest.raises(UserError) as raised:
        both(first, second)
    assert str(raised.value) == message


def test_the_digest_of_the_labels_covers_the_later_ones_and_their_rate():
    first, second = data_of(bytes_of(1, 2, 2)), data_of(bytes_of(1, 2, 2))
    swapped = replace(second, train=replace(second.train, labels_N=torch.tensor([1, 0])))
    made = [first, both(first, second), both(first, swapped), varied(first, second, rate=1.5, normalise="raw")]
    assert len({one.labels_digest for one in made}) == 4
    assert both(first, second).labels_digest == both(first, second, "unit").labels_digest


def test_later_examples_of_another_shape_are_refused():
    made = both(data_of(bytes_of(1, 2, 2)), data_of(bytes_of(1, 2, 2)))
    assert made.later is not None
    with pytest.raises(UserError, match=r"has training examples of uint8 \[1, 2, 2\], but later examples of uint8"):
        replace(made, later=replace(made.later, stored_LX=bytes_of(1, 3, 3)))
    with pytest.raises(UserError, match="has later labels from 0 to 2, expected 0 to 1"):
        replace(made, later=replace(made.later, labels_L=torch.tensor([0, 2])))
