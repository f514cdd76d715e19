"""An .npz file of the user's own."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstale.errors import UserError, nearest
from unstale.training.datasets.dataset import Dataset
from unstale.training.datasets.source import Source

Array = NDArray[np.generic]

NAMES = ("x_train", "y_train", "x_test", "y_test")


def read(source: Source) -> Dataset:
    """x: uint8 images [N, H, W] or [N, H, W, C]; or floats [N, ...], kept as they are. y: integers [N], every class of
    0..C-1 in y_train. x_train, y_train, x_test, y_test are the names that Keras gives them. With `source.column`,
    say "writer", writer_train and, where there is one, writer_test hold integers or strings [N]: who an example is
    from. Strings are numbered in their sorted order.
    """
    path = source.path
    assert path is not None
    arrays = _read(path, source.column)
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
    groups_train_N, groups_test_M = _groups(path, source.column, arrays)
    return Dataset(
        name=path.stem,
        classes=len(occurring),
        stored_train_NX=_stored(x_train),
        labels_train_N=torch.from_numpy(y_train),
        stored_test_MX=_stored(x_test),
        labels_test_M=torch.from_numpy(y_test),
        groups_train_N=groups_train_N,
        groups_test_M=groups_test_M,
        origin=str(path),
    )


def _read(path: Path, column: str | None) -> dict[str, Array]:
    """The arrays by name; of the column's those that there are."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected an .npz with {', '.join(NAMES)}")
    try:
        with path.open("rb") as file:  # np.load leaves a torn file open
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise UserError(f"{path}: holds one array, expected an .npz with {', '.join(NAMES)}")
            there = [name.removesuffix(".npy") for name in stored]
            for name in NAMES:
                if name not in there:
                    raise UserError(f"{path}: has no {name}; expected an .npz with {', '.join(NAMES)}")
            wanted = list(NAMES)
            if column is not None:
                columns = [name.removesuffix("_train") for name in there if name.endswith("_train")]
                if column not in columns:
                    raise UserError(
                        f"{path}: has no {column}_train, which data.column asks for{nearest(column, columns)}"
                    )
                wanted += [name for name in (f"{column}_train", f"{column}_test") if name in there]
            return {name: stored[f"{name}.npy"] for name in wanted}
    except (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        # Of what holds no arrays numpy says how to load it all the same, with code that it may hold: no advice of ours.
        why = "it holds no arrays, or objects" if "pickle" in str(error) else error
        raise UserError(f"{path}: cannot be read as an .npz of plain arrays ({why})") from error


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
    if x.dtype != np.uint8 and not abs(x).max() <= np.finfo(np.float32).max:
        raise UserError(f"{path}: x_{part} holds NaN, infinity or a number that float32 cannot hold")
    if not np.issubdtype(y.dtype, np.integer) or y.shape != (len(x),):
        raise UserError(
            f"{path}: y_{part} holds {_described(y)}, expected {len(x)} integers, one for each example"
        )


def _groups(path: Path, column: str | None, arrays: dict[str, Array]) -> tuple[Tensor | None, Tensor | None]:
    """The column's values as numbers, of the training and of the test part."""
    if column is None:
        return None, None
    parts = {part: arrays[f"{column}_{part}"] for part in ("train", "test") if f"{column}_{part}" in arrays}
    for part, values in parts.items():
        examples = len(arrays[f"x_{part}"])
        if values.shape != (examples,) or not (
            np.issubdtype(values.dtype, np.integer) or values.dtype.kind in "US"
        ):
            raise UserError(
                f"{path}: {column}_{part} holds {_described(values)}, expected {examples} integers or strings, one "
                "for each example"
            )
    together = np.concatenate(list(parts.values()))
    if not np.issubdtype(together.dtype, np.integer):
        if len({values.dtype.kind for values in parts.values()}) > 1:
            raise UserError(
                f"{path}: {column}_train holds {_described(parts['train'])}, but {column}_test "
                f"{_described(parts['test'])}; expected the same type"
            )
        together = np.unique(together, return_inverse=True)[1]
    numbers = torch.from_numpy(together.astype(np.int64))
    train = len(parts["train"])
    return numbers[:train], numbers[train:] if "test" in parts else None


def _stored(x: Array) -> Tensor:
    """Bytes channels first, [N, H, W] as one channel; floats as float32."""
    if x.dtype == np.uint8:
        stored = torch.from_numpy(np.ascontiguousarray(x))
        if x.ndim == 3:
            return stored[:, None]
        return stored.permute(0, 3, 1, 2).contiguous()  # PyTorch takes a third of numpy's time for it
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


def _described(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"
