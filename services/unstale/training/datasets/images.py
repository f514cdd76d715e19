"""Decoding of image files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstale.errors import UserError
from unstale.training.datasets.source import reason_of

Pixels = NDArray[np.uint8]

_SIDE_MAX = 4096  # pixels; a larger image is a mistake that fills the memory


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
