"""Images of digits rendered from fonts, to replace SVHN: `python -m unstale_papers.rendered_digits FILE.npz`.

Made like SYN NUMBERS, which is to resemble SVHN: numbers of one to three digits of varied font, size, place, angle,
colour, background and blur. The class is the digit in the middle.
Source: Ganin & Lempitsky, Unsupervised domain adaptation by backpropagation (2015)

Legend: N images, H, W pixels, C colours.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from unstale.cli.printing import line
from unstale.errors import UserError
from unstale.seeds import Generator, Stream, stream

SIDE = 32  # pixels, as in SVHN
CLASSES = 10
_CANVAS = 64  # pixels; a turned number has no edge in the middle of it
_FAMILIES = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif", "STIXGeneral")  # files of matplotlib
_SIZES = (20, 31)  # points, from and below
_SHIFT = 3.0  # pixels each way
_ANGLE = 15.0  # degrees each way
_BLUR = 1.2  # pixels at most, standard deviation
_NOISE = 6.0  # levels, standard deviation
_CONTRAST = 70.0  # levels of brightness at least, between the digit and the background behind its middle
_BRIGHTNESS_C = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def write(
    file: Annotated[Path, typer.Argument(metavar="FILE.npz", help="The file to write.")],
    train: Annotated[int, typer.Option("--train", min=CLASSES, help="Images to train on.")] = 60_000,
    test: Annotated[int, typer.Option("--test", min=CLASSES, help="Images to test on.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random numbers.")] = 0,
) -> None:
    """Render images of digits, and write them as a data set."""
    if file.suffix != ".npz" or not file.parent.is_dir():
        raise UserError(f"the file is {file}, expected a name that ends with .npz, in a folder that exists")
    (x_train, y_train), (x_test, y_test) = digits(train, seed, 0), digits(test, seed, 1)
    np.savez_compressed(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    line(f"written: {file}, {train} images to train on and {test} to test on")


def digits(count: int, seed: int, split: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Render images [N, H, W, C] and their classes [N], as many of each class, or one more. A split has its own
    images.
    """
    labels_N = np.arange(count) % CLASSES
    images = [_image(int(label), stream(seed, Stream.RENDERED, split, at)) for at, label in enumerate(labels_N)]
    return np.stack(images), labels_N


def _image(digit: int, random: Generator) -> NDArray[np.uint8]:
    """Render one image."""
    mask_HW1 = _mask(digit, random)[..., None]
    background_HWC = _background(random)
    behind = background_HWC[SIDE // 2, SIDE // 2] @ _BRIGHTNESS_C
    while True:
        colour_C = random.uniform(0, 255, 3)
        if abs(colour_C @ _BRIGHTNESS_C - behind) >= _CONTRAST:
            break
    image_HWC = background_HWC * (1 - mask_HW1) + colour_C * mask_HW1 + random.normal(0, _NOISE, (SIDE, SIDE, 3))
    return image_HWC.round().clip(0, 255).astype(np.uint8)


def _mask(digit: int, random: Generator) -> NDArray[np.float64]:
    """Draw the number: 1 where its strokes are, 0 beside them."""
    font = _font(int(random.integers(len(_files()))), int(random.integers(*_SIZES)))
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    draw = ImageDraw.Draw(canvas)
    middle_x, middle_y = _CANVAS / 2 + random.uniform(-_SHIFT, _SHIFT, 2)
    draw.text((middle_x, middle_y), str(digit), fill=255, font=font, anchor="mm")
    half = draw.textlength(str(digit), font=font) / 2
    for x, anchor in ((middle_x - half, "rm"), (middle_x + half, "lm")):
        if random.random() < 0.5:
            draw.text((x, middle_y), str(random.integers(CLASSES)), fill=255, font=font, anchor=anchor)
    turned = canvas.rotate(float(random.uniform(-_ANGLE, _ANGLE)), resample=Image.Resampling.BILINEAR)
    blurred = turned.filter(ImageFilter.GaussianBlur(float(random.uniform(0, _BLUR))))
    edge = (_CANVAS - SIDE) // 2
    return np.asarray(blurred, dtype=np.float64)[edge : edge + SIDE, edge : edge + SIDE] / 255


def _background(random: Generator) -> NDArray[np.float64]:
    """A gradient between two colours in some direction."""
    first_C, second_C = random.uniform(0, 255, (2, 3))
    angle = random.uniform(0, 2 * np.pi)
    at_H, at_W = np.meshgrid(np.linspace(-0.5, 0.5, SIDE), np.linspace(-0.5, 0.5, SIDE), indexing="ij")
    share_HW1 = (0.5 + (at_H * np.sin(angle) + at_W * np.cos(angle)) / np.sqrt(2))[..., None]
    blended_HWC: NDArray[np.float64] = first_C * share_HW1 + second_C * (1 - share_HW1)
    return blended_HWC


@cache
def _files() -> list[Path]:
    """Font files of the families: regular, bold and italic."""
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    return sorted(file for file in folder.glob("*.ttf") if file.stem.partition("-")[0] in _FAMILIES)


@cache
def _font(index: int, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_files()[index], size)


if __name__ == "__main__":
    try:
        app()
    except UserError as error:
        sys.exit(f"unstale_papers.rendered_digits: {error}")
