"""A folder of images: train/<class>/ and test/<class>/."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unstale.errors import UserError
from unstale.training.datasets.dataset import Dataset, Split
from unstale.training.datasets.images import decoded
from unstale.training.datasets.source import Source

EXPECTED = "train/<class>/ and test/<class>/ with .png or .jpg images"
_SUFFIXES = (".png", ".jpg", ".jpeg")


def read(source: Source) -> Dataset:
    """Classes are the folders of train/, examples the files with a suffix of images, both in sorted order.

    All images have one size.
    """
    path = source.path
    assert path is not None
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; expected {EXPECTED}")
    classes = _classes(path / "train")
    if len(classes) < 2:
        raise UserError(f"{path}: has {len(classes)} classes in train, expected two or more as {EXPECTED}")
    unknown = sorted(set(_classes(path / "test")) - set(classes))
    if unknown:
        raise UserError(f"{path}: has class {unknown[0]!r} in test, but not in train; expected {EXPECTED}")
    train, test = _files(path / "train", classes), _files(path / "test", classes)
    for part, files in (("train", train), ("test", test)):
        if not files:
            raise UserError(f"{path}: has no image in {part}; expected {EXPECTED}")
    # Together, so that both splits have the same number of channels.
    images_NCHW = torch.from_numpy(decoded([file for file, _ in train + test]))
    return Dataset(
        name=path.name,
        classes=len(classes),
        train=Split(stored_NX=images_NCHW[: len(train)], labels_N=_labels(train)),
        test=Split(stored_NX=images_NCHW[len(train) :], labels_N=_labels(test)),
        origin=str(path),
    )


def _classes(part: Path) -> list[str]:
    """The folders that are not hidden, by name."""
    if not part.is_dir():
        return []
    return sorted(entry.name for entry in part.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(part: Path, classes: list[str]) -> list[tuple[Path, int]]:
    """The images of one split, each with its label."""
    return [
        (file, label)
        for label, name in enumerate(classes)
        if (part / name).is_dir()
        for file in sorted((part / name).iterdir())
        if file.suffix.lower() in _SUFFIXES
    ]


def _labels(files: list[tuple[Path, int]]) -> Tensor:
    return torch.from_numpy(np.array([label for _, label in files], dtype=np.int64))
