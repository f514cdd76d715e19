"""Digits rendered from fonts: what is in the images, and the file."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from unstale.errors import UserError
from unstale_papers.rendered_digits import digits, write


def test_images_are_of_the_arguments_only() -> None:
    images, labels = digits(30, 0, 0)
    assert (images.shape, images.dtype) == ((30, 32, 32, 3), np.uint8)
    assert np.bincount(labels).tolist() == [3] * 10
    assert np.array_equal(digits(20, 0, 0)[0], images[:20])  # more images change no image
    for other in (digits(30, 1, 0), digits(30, 0, 1)):
        assert not np.array_equal(other[0], images)


def test_a_label_is_the_digit_in_the_middle() -> None:
    """Neighbours do not depend on the label, so that a classifier that beats chance, 0.1, has found the digit."""
    (train, y_train), (test, y_test) = (digits(count, 0, split) for count, split in ((2000, 0), (500, 1)))

    def contrasts(images: NDArray[np.uint8]) -> NDArray[np.float64]:
        grey = images[:, 4:28, 8:24].mean(axis=3) / 255
        return np.abs(grey - grey.mean(axis=(1, 2), keepdims=True)).reshape(len(images), -1)

    model = LogisticRegression(max_iter=100, C=0.1).fit(contrasts(train), y_train)
    assert model.score(contrasts(test), y_test) > 0.2


def test_the_command_writes_a_data_set(tmp_path: Path) -> None:
    file = tmp_path / "digits.npz"
    command = [sys.executable, "-m", "unstale_papers.rendered_digits", str(file), "--train", "20", "--test", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"written: {file}, 20 images to train on and 10 to test on\n"
    with np.load(file) as arrays:
        assert {name: arrays[name].shape for name in arrays.files} == {
            "x_train": (20, 32, 32, 3),
            "y_train": (20,),
            "x_test": (10, 32, 32, 3),
            "y_test": (10,),
        }
        assert np.array_equal(arrays["x_test"], digits(10, 0, 1)[0])


@pytest.mark.parametrize("name", ["digits.npy", "none/digits.npz"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"expected a name that ends with \.npz, in a folder that exists"):
        write(tmp_path / name)
