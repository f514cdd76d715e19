"""Noise in place of a data set that has to be downloaded."""

from pathlib import Path
from typing import Any

import numpy as np


def write_noise(path: Path) -> None:
    """Write noise images in CIFAR-10's number and shape."""
    rng = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for part, examples in (("train", 50_000), ("test", 10_000)):
        parts[f"x_{part}"] = rng.integers(0, 256, (examples, 32, 32, 3), dtype=np.uint8)
        parts[f"y_{part}"] = np.arange(examples) % 10
    np.savez(path, **parts)
