"""A folder of images, train/<class>/ and test/<class>/, and decoding of image files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unstale.errors import UserError
from unstale.training.datasets.dataset import Dataset, Split
from unstale.training.datasets.source import Source, reason_of

Pixels = NDArray[np.uint8]

EXPECTED = "train/<class>/ and test/<class>/ with .png or .jpg images"
_SUFFIXES = (".png", ".jpg", ".jpeg")
_SIDE_MAX = 4096  # pixels; a larger image is a mistake that fills the memory


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
        train=Split(stored_NX=images_NCHW[: len(train)], labels_N=torch.tensor([label for _, label in train])),
        test=Split(stored_NX=images_NCHW[len(train) :], labels_N=torch.tensor([label for _, label in test])),
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


def decoded(paths: Sequence[Path], *, square: int | None = None, colour: bool = False) -> Pixels:
    """The images as [N, C, H, W] uint8: RGB, or one channel if all are grey and `colour` is false.

    square: scale each to square x square pixels (bicubic); None: all must have one size. Raises UserError for a file
    that is not an image with 8 bits per channel, and for the first image of another size.
    """
    images: Pixels | None = None
    for position, path in enumerate(paths):
        image = _decoded(path, square, colour)
        if images is None:
            images = np.empty((len(paths), *image.shape), dtype=np.uint8)
        if image.shape[1:] != images.shape[2:]:
            raise UserError(
                f"{path}: has {_size(image)} pixels, but {paths[0]} {_size(images[0])}; expected images of one size"
            )
        if len(image) > images.shape[1]:
            images = np.repeat(images, 3, axis=1)
        images[position] = image  # copies a grey channel to all
    assert images is not None
    return images


def _decoded(path: Path, square: int | None, colour: bool) -> Pixels:
    from PIL import Image

    try:
        with Image.open(path) as opened:
            if opened.mode[0] in "IF":
                raise UserError(f"{path}: has more than 8 bits a channel, expected an image of 8")
            if max(opened.size) > _SIDE_MAX:
                raise UserError(
                    f"{path}: has {opened.width}x{opened.height} pixels, expected at most {_SIDE_MAX}x{_SIDE_MAX}"
                )
            image: Any = opened
            if square is not None:
                image = image.resize((square, square), Image.Resampling.BICUBIC)
            grey = image.mode in ("1", "L") and not colour
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: cannot be read as an image ({reason_of(error)})") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _size(image_CHW: Pixels) -> str:
    return f"{image_CHW.shape[2]}x{image_CHW.shape[1]}"
