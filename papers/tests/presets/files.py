"""Small files in the place of the published data sets: images coloured by their class, so that it can be learned."""

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
"""Shape of an image, classes, and training images of each: eight for each client that there is at least, and 450 for
each of ten where a client takes so many."""

TEST_OF_EACH = 8  # images of each class, at most half as many as there are to train on
PEOPLE = 160  # whose examples they are, where that is known


def write(folder: Path) -> dict[str, Path]:
    """The files, by the data set in whose place they are."""
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
