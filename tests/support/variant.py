"""Two data files of a user, of which the second replaces the first."""

from pathlib import Path
from typing import Any

import numpy as np

from unstale.seeds import Stream, stream

CLASSES = 3


def write(path: Path, *, side: int, channels: int, brightness: int, seed: int) -> Path:
    """An .npz of 90 training and 30 test images, as many of each class, in an order drawn from the seed. brightness:
    of all pixels except those of a column, whose position is the class."""
    rng = stream(seed, Stream.PARTITION)
    arrays: dict[str, Any] = {}
    for part, examples in (("train", 90), ("test", 30)):
        labels_n = rng.permutation(np.arange(examples) % CLASSES)
        images_nHWC = np.full((examples, side, side, channels), brightness, dtype=np.uint8)
        images_nHWC[np.arange(examples), :, labels_n] = 200 - brightness
        arrays |= {f"x_{part}": images_nHWC, f"y_{part}": labels_n}
    np.savez(path, **arrays)
    return path


def small_and_large(folder: Path, *, seed: int = 2) -> dict[str, Any]:
    """The section `data` of grey 4x4 images that colour 8x8 images replace. seed: of the second file."""
    small = write(folder / "small.npz", side=4, channels=1, brightness=10, seed=1)
    large = write(folder / f"large_{seed}.npz", side=8, channels=3, brightness=90, seed=seed)
    variant = {"name": "npz", "path": str(large), "rate": 1.5}
    return {"name": "npz", "path": str(small), "variant": variant}
