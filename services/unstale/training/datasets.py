"""Data sets by name: examples and labels, split once and for all into a training and a test part.

Legend: N training examples, M test examples, X the shape of one example (channels first), C classes.
"""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstale.errors import UserError, unknown_name

DATASETS = ("digits", "npz")

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """inputs: float32, contiguous, finite. labels: int64 in [0, classes). On the CPU; never written to."""

    name: str
    inputs_train_NX: Tensor
    labels_train_N: Tensor
    inputs_test_MX: Tensor
    labels_test_M: Tensor
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """X, the shape of one example."""
        return tuple(self.inputs_train_NX.shape[1:])


def load(name: str, path: Path | str | None = None) -> Dataset:
    """The data set called `name`: `digits`, which needs no file, or `npz`, which reads the one at `path`.

    Raises UserError for an unknown name, a path too few or too many, and a file that does not hold what it
    should.
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    if name == "npz":
        if path is None:
            raise UserError("data set 'npz' needs a path to a file with x_train, y_train, x_test and y_test")
        return _load_npz(Path(path))
    if path is not None:
        raise UserError(
            f"data set {name!r} is built in and reads no file, got path {str(path)!r}; did you mean 'npz'?"
        )
    return _load_digits()


def _load_digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, 0 to 16: 1,442 to train on and 355 to test.

    Of each class, every fifth image in the stored order is for the test: the same shares of all classes, no
    draw.
    """
    from sklearn.datasets import load_digits  # slow to import; no other data set needs it

    stored = load_digits()
    images_NHW, labels_N = stored.images.astype(np.float32) / 16, stored.target.astype(np.int64)
    is_test_N = np.zeros(len(labels_N), dtype=bool)
    for label in range(10):
        is_test_N[np.flatnonzero(labels_N == label)[4::5]] = True
    train_NCHW, test_MCHW = images_NHW[~is_test_N, None], images_NHW[is_test_N, None]
    return _dataset("digits", *_normalised(train_NCHW, test_MCHW), labels_N[~is_test_N], labels_N[is_test_N])


def _load_npz(path: Path) -> Dataset:
    """x: uint8 images [N, H, W] or [N, H, W, C], scaled to [0, 1] and then normalised per channel with the
    mean and standard deviation of x_train; or floats [N, ...], kept as they are. y: integers [N], every class
    of 0..C-1 in y_train. x_train, y_train, x_test, y_test are the names that Keras gives them.
    """
    arrays = _read_npz(path)
    for part in ("train", "test"):
        _check_part(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"])
    x_train, x_test = arrays["x_train"], arrays["x_test"]
    if x_train.shape[1:] != x_test.shape[1:] or (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):
        raise UserError(
            f"{path}: x_test holds {_described(x_test)}, but x_train {_described(x_train)}; "
            "expected the same shape and type"
        )
    y_train, y_test = arrays["y_train"].astype(np.int64), arrays["y_test"].astype(np.int64)
    occurring = np.unique(y_train)
    if occurring[0] != 0 or occurring[-1] != len(occurring) - 1 or len(occurring) < 2:
        raise UserError(
            f"{path}: y_train holds {len(occurring)} labels from {occurring[0]} to {occurring[-1]}; "
            "expected two or more classes, numbered from 0 without a gap"
        )
    unknown = y_test[(y_test < 0) | (y_test >= len(occurring))]
    if len(unknown):
        raise UserError(
            f"{path}: y_test holds label {unknown[0]}, which y_train does not; "
            f"expected 0 to {len(occurring) - 1}"
        )
    if x_train.dtype == np.uint8:
        x_train, x_test = _normalised(_channels_first(x_train), _channels_first(x_test))
    return _dataset(path.stem, x_train, x_test, y_train, y_test)


def _read_npz(path: Path) -> dict[str, Array]:
    names = ("x_train", "y_train", "x_test", "y_test")
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected an .npz with {', '.join(names)}")
    try:
        with path.open("rb") as file:  # np.load leaves a torn file open
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise UserError(f"{path}: holds one array, expected an .npz with {', '.join(names)}")
            for name in names:
                if f"{name}.npy" not in stored:
                    raise UserError(f"{path}: has no {name}; expected an .npz with {', '.join(names)}")
            return {name: stored[f"{name}.npy"] for name in names}
    except (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as an .npz of plain arrays ({error})") from error


def _check_part(path: Path, part: str, x: Array, y: Array) -> None:
    if x.dtype == np.uint8:
        if x.ndim not in (3, 4):
            raise UserError(
                f"{path}: x_{part} holds {_described(x)}, expected uint8 images [N, H, W] or [N, H, W, C]"
            )
    elif not np.issubdtype(x.dtype, np.floating) or x.ndim < 2:
        raise UserError(f"{path}: x_{part} holds {_described(x)}, expected uint8 images or floats [N, ...]")
    if 0 in x.shape:
        raise UserError(f"{path}: x_{part} holds {_described(x)}, expected at least one example")
    if not abs(x).max() <= np.finfo(np.float32).max:
        raise UserError(f"{path}: x_{part} holds NaN, infinity or a number that float32 cannot hold")
    if not np.issubdtype(y.dtype, np.integer) or y.shape != (len(x),):
        raise UserError(
            f"{path}: y_{part} holds {_described(y)}, expected {len(x)} integers, one for each example"
        )


def _described(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _channels_first(images: Array) -> Array:
    """[N, H, W] or [N, H, W, C] uint8 to [N, C, H, W] float32 in [0, 1]."""
    images_NCHW = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return images_NCHW.astype(np.float32) / 255


def _normalised(train_NCHW: Array, test_MCHW: Array) -> tuple[Array, Array]:
    """Both parts less the mean of the training part, over its standard deviation, each per channel.

    MNIST's come out as the 0.1307 and 0.3081 of algorithms.md 5. A channel that never varies is only centred.
    """
    mean_C = train_NCHW.mean(axis=(0, 2, 3), dtype=np.float64, keepdims=True)
    std_C = train_NCHW.std(axis=(0, 2, 3), dtype=np.float64, keepdims=True)
    std_C[std_C == 0] = 1
    mean_C, std_C = mean_C.astype(np.float32), std_C.astype(np.float32)
    return (train_NCHW - mean_C) / std_C, (test_MCHW - mean_C) / std_C


def _dataset(name: str, x_train: Array, x_test: Array, y_train: Array, y_test: Array) -> Dataset:
    return Dataset(
        name=name,
        inputs_train_NX=torch.from_numpy(np.ascontiguousarray(x_train, dtype=np.float32)),
        labels_train_N=torch.from_numpy(y_train),
        inputs_test_MX=torch.from_numpy(np.ascontiguousarray(x_test, dtype=np.float32)),
        labels_test_M=torch.from_numpy(y_test),
        classes=int(y_train.max()) + 1,
    )
