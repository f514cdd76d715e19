"""Small substitutes for the published data sets: images coloured by class, so that models can learn them."""

from pathlib import Path

import numpy as np

from unstale.seeds import Stream, stream

Shape = tuple[int, ...]

SETS: dict[str, tuple[Shape, int, int]] = {
    "mnist": ((28, 28), 10, 480),
    "fashion-mnist": ((28, 28), 10, 100),
    "emnist-mnist": ((28, 28), 10, 100),
    "emnist-byclass": ((28, 28), 62, 48),
    "cifar10": ((32, 32, 3), 10, 480),
    "cifar100": ((32, 32, 3), 100, 12),
    "svhn": ((32, 32, 3), 10, 480),
    "celeba": ((84, 84, 3), 2, 600),
}
"""Shape of an image, classes, and training images per class: at least eight per client, or 450 for each of ten
clients that draw so many."""

TEST_OF_EACH = 8  # images of each class, at most half of the training images
PEOPLE = 160  # owners of the examples, in data sets that name them


def write(folder: Path) -> dict[str, Path]:
    """The files, by the data set that each replaces."""
    return {name: _written(folder / f"{name}.npz", number, *SETS[name]) for number, name in enumerate(SETS)}


def _written(path: Path, number: int, shape: Shape, classes: int, of_each: int) -> Path:
    draws = stream(number, Stream.SEARCH)
    colours_CX = draws.integers(0, 200, size=(classes, *shape))
    arrays = {}
    for part, count in (("train", of_each), ("test", min(TEST_OF_EACH, of_each // 2))):
        labels_n = draws.permutation(np.repeat(np.arange(classes), count))
        noise_nX = draws.integers(0, 56, size=(len(labels_n), *shape))
        arrays[f"x_{part}"] = (colours_CX[labels_n] + noise_nX).astype(np.uint8)
        arrays[f"y_{part}"] = labels_n
        arrays[f"group_{part}"] = np.arange(len(labels_n)) % PEOPLE
    np.savez(path, **arrays)
    return path
