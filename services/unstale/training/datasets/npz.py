"""An .npz file of the user."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstale.errors import UserError, nearest
from unstale.training.datasets.dataset import Dataset, Split, described
from unstale.training.datasets.source import Source

Array = NDArray[np.generic]

NAMES = ("x_train", "y_train", "x_test", "y_test")


def read(source: Source) -> Dataset:
    """Keras's names. x: uint8 images [N, H, W] or [N, H, W, C], or floats [N, ...], not normalised. y: integers [N].

    y_train contains every class of 0..C-1. With `source.column`, such as "writer", writer_train and optionally
    writer_test hold integers or strings [N]: the source of each example. Strings are numbered in sorted order.
    """
    path = source.path
    assert path is not None
    arrays = _read(path, source.column)
    for part in ("train", "test"):
        _check_part(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"])
    x_train, x_test = arrays["x_train"], arrays["x_test"]
    if x_train.shape[1:] != x_test.shape[1:] or (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):
        raise UserError(
            f"{path}: x_test holds {described(x_test)}, but x_train {described(x_train)}; "
            "expected the same shape and type"
        )
    y_train, y_test = arrays["y_train"].astype(np.int64), arrays["y_test"].astype(np.int64)
    groups_train_N, groups_test_M = _groups(path, source.column, arrays)
    return Dataset(
        name=path.stem,
        classes=_classes(path, y_train, y_test),
        train=Split(stored_NX=_stored(x_train), labels_N=torch.from_numpy(y_train), groups_N=groups_train_N),
        test=Split(stored_NX=_stored(x_test), labels_N=torch.from_numpy(y_test), groups_N=groups_test_M),
        origin=str(path),
    )


def _read(path: Path, column: str | None) -> dict[str, Array]:
    """The arrays by name, with those of the column."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected an .npz with {', '.join(NAMES)}")
    try:
        with path.open("rb") as file:  # np.load does not close a truncated file
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise UserError(f"{path}: holds one array, expected an .npz with {', '.join(NAMES)}")
            stored_names = [name.removesuffix(".npy") for name in stored]
            return {name: stored[f"{name}.npy"] for name in _names(path, stored_names, column)}
    except (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        # numpy's message advises to load pickled objects, which may execute code.
        why = "it holds no arrays, or objects" if "pickle" in str(error) else error
        raise UserError(f"{path}: cannot be read as an .npz of plain arrays ({why})") from error


def _names(path: Path, stored_names: list[str], column: str | None) -> list[str]:
    """The names of the arrays to read. Raises UserError for one that the file does not have."""
    for name in NAMES:
        if name not in stored_names:
            raise UserError(f"{path}: has no {name}; expected an .npz with {', '.join(NAMES)}")
    if column is None:
        return list(NAMES)
    columns = [name.removesuffix("_train") for name in stored_names if name.endswith("_train")]
    if column not in columns:
        raise UserError(f"{path}: has no {column}_train, which data.column asks for{nearest(column, columns)}")
    return [*NAMES, *(name for name in (f"{column}_train", f"{column}_test") if name in stored_names)]


def _check_part(path: Path, part: str, x: Array, y: Array) -> None:
    if x.dtype == np.uint8:
        if x.ndim not in (3, 4):
            raise UserError(f"{path}: x_{part} holds {described(x)}, expected uint8 images [N, H, W] or [N, H, W, C]")
    elif not np.issubdtype(x.dtype, np.floating) or x.ndim < 2:
        raise UserError(f"{path}: x_{part} holds {described(x)}, expected uint8 images or floats [N, ...]")
    if 0 in x.shape:
        raise UserError(f"{path}: x_{part} holds {described(x)}, expected at least one example")
    if x.dtype != np.uint8 and not abs(x).max() <= np.finfo(np.float32).max:
        raise UserError(f"{path}: x_{part} holds NaN, infinity or a number that float32 cannot hold")
    if not np.issubdtype(y.dtype, np.integer) or y.shape != (len(x),):
        raise UserError(f"{path}: y_{part} holds {described(y)}, expected {len(x)} integers, one for each example")


def _classes(path: Path, y_train: NDArray[np.int64], y_test: NDArray[np.int64]) -> int:
    """The number of classes. Raises UserError unless y_train contains all of 0..C-1."""
    labels = np.unique(y_train)
    if labels[0] != 0 or labels[-1] != len(labels) - 1 or len(labels) < 2:
        raise UserError(
            f"{path}: y_train holds {len(labels)} labels from {labels[0]} to {labels[-1]}; "
            "expected two or more classes, numbered from 0 without a gap"
        )
    unknown = y_test[(y_test < 0) | (y_test >= len(labels))]
    if len(unknown):
        raise UserError(
            f"{path}: y_test holds label {unknown[0]}, which y_train does not; expected 0 to {len(labels) - 1}"
        )
    return len(labels)


def _groups(path: Path, column: str | None, arrays: dict[str, Array]) -> tuple[Tensor | None, Tensor | None]:
    """The values of the column as numbers, of the training and of the test part."""
    if column is None:
        return None, None
    parts = [arrays[name] for name in (f"{column}_train", f"{column}_test") if name in arrays]
    for part, values in zip(("train", "test"), parts, strict=False):
        _check_groups(path, f"{column}_{part}", values, len(arrays[f"x_{part}"]))
    together = np.concatenate(parts)
    if not np.issubdtype(together.dtype, np.integer):
        if len({values.dtype.kind for values in parts}) > 1:
            raise UserError(
                f"{path}: {column}_train holds {described(parts[0])}, but {column}_test {described(parts[1])}; "
                "expected the same type"
            )
        together = np.unique(together, return_inverse=True)[1]
    numbers = torch.from_numpy(together.astype(np.int64))
    train = len(parts[0])
    return numbers[:train], numbers[train:] if len(parts) > 1 else None


def _check_groups(path: Path, name: str, values: Array, examples: int) -> None:
    if values.shape != (examples,) or values.dtype.kind not in "iuUS":
        raise UserError(
            f"{path}: {name} holds {described(values)}, expected {examples} integers or strings, one for each example"
        )


def _stored(x: Array) -> Tensor:
    """Bytes with channels first, [N, H, W] as one channel; floats as float32."""
    if x.dtype == np.uint8:
        stored = torch.from_numpy(np.ascontiguousarray(x))
        if x.ndim == 3:
            return stored[:, None]
        return stored.permute(0, 3, 1, 2).contiguous()  # three times as fast as numpy
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
