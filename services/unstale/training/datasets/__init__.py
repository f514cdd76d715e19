"""Data sets by name, as tensors.

Source: docs/methods/models.md#normalisation-of-inputs
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unstale.errors import UserError, unknown_name
from unstale.plugins import GROUPS, is_built_in, is_code, names
from unstale.training.datasets import celeba, factory, images, npz, published
from unstale.training.datasets.data import Data
from unstale.training.datasets.dataset import (
    Constants,
    Dataset,
    Normalisation,
    Split,
    labelled,
    normalised,
    part,
    with_validation,
)
from unstale.training.datasets.own import OwnData
from unstale.training.datasets.source import CACHE, NORMALISE, Source
from unstale.training.datasets.source import is_there as in_cache
from unstale.training.datasets.variant import varied

__all__ = [
    "CACHE",
    "DATASETS",
    "SUMMARIES",
    "Data",
    "Dataset",
    "Normalisation",
    "OwnData",
    "Source",
    "Split",
    "check",
    "is_there",
    "labelled",
    "load",
    "part",
    "read",
    "varied",
    "with_validation",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A data set, or a format of data sets."""

    summary: str
    read: Callable[[Source], Dataset]
    reads: str | None = None  # the file or folder at the path, if one is needed
    files: str | None = None  # pattern in the cache
    published: Constants | None = None  # mean and standard deviation over 255


def _from_cache(name: str, summary: str, constants: Constants | None = None) -> _Kind:
    return _Kind(summary=summary, read=published.read, files=published.FILES[name], published=constants)


_KINDS = {
    "digits": _Kind(
        summary="1,797 handwritten digits of 8x8 pixels, built into scikit-learn", read=published.read_digits
    ),
    "npz": _Kind(
        summary="your own file with x_train, y_train, x_test and y_test (uint8 images or floats)",
        read=npz.read,
        reads="file with x_train, y_train, x_test and y_test",
    ),
    "folder": _Kind(
        summary=f"your own folder with {images.EXPECTED}", read=images.read, reads=f"folder with {images.EXPECTED}"
    ),
    "mnist": _from_cache("mnist", "70,000 handwritten digits of 28x28", ((0.1307,), (0.3081,))),
    "fashion-mnist": _from_cache("fashion-mnist", "70,000 articles of clothing of 28x28", ((0.2860,), (0.3530,))),
    "emnist-mnist": _from_cache("emnist-mnist", "70,000 handwritten digits of 28x28, balanced"),
    "emnist-byclass": _Kind(
        summary="814,255 handwritten characters of 62 classes of 28x28; with writers from emnist-byclass.mat",
        read=published.read_byclass,
        files=published.FILES["emnist-byclass"],
    ),
    "cifar10": _from_cache(
        "cifar10",
        "60,000 colour photographs of 32x32, 10 classes",
        ((0.4915, 0.4832, 0.4468), (0.2470, 0.2435, 0.2616)),
    ),
    "cifar100": _from_cache(
        "cifar100",
        "60,000 colour photographs of 32x32, 100 classes",
        ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    ),
    "svhn": _from_cache("svhn", "99,289 house numbers of 32x32", ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))),
    "celeba": _Kind(
        summary="202,599 faces as 84x84, smiling or not, by celebrity", read=celeba.read, files=celeba.FILES
    ),
}

DATASETS = tuple(_KINDS)
SUMMARIES = {name: kind.summary for name, kind in _KINDS.items()}


def load(name: str, path: Path | str | None = None, **options: Any) -> Dataset:
    """Load the data set of a name, one of DATASETS or `package.module:factory`. options: others of `Source`."""
    return labelled(read(Source(name=name, path=None if path is None else Path(path), **options)))


def read(source: Source) -> Data:
    """Read the data set of a source.

    Uses the network only with `download`, for files that are not in the cache. Raises UserError for a source that
    `check` refuses, a data set that is not there, and invalid files.
    """
    check(source)
    kind = _KINDS.get(source.name)
    if kind is None:
        return factory.read(source)
    return normalised(kind.read(source), source.normalise, kind.published)


def check(source: Source) -> None:
    """Raise UserError for invalid arguments. Imports and reads nothing."""
    if source.normalise not in NORMALISE:
        raise unknown_name("normalisation", source.normalise, NORMALISE)
    is_known = is_built_in("data", source.name, _KINDS)
    if not is_known and is_code("data", source.name):
        if not source.allow_factory:
            raise UserError(
                f"data set {source.name!r} is code, which only this machine's own configuration may name; "
                f"expected one of {', '.join(DATASETS)}"
            )
        return
    if not is_known:
        raise unknown_name("data set", source.name, names(GROUPS["data"], _KINDS, kind="data"))
    _check_path(source, _KINDS[source.name])
    if source.column is not None and source.name != "npz":
        raise UserError(f"data set {source.name!r} has no columns, got column {source.column!r}; only 'npz' has")


def _check_path(source: Source, kind: _Kind) -> None:
    if kind.reads is not None:
        if source.path is None:
            raise UserError(
                f"data set {source.name!r} needs a path to a {kind.reads}; name it with {source.section}.path"
            )
    elif source.path is not None:
        problem = "is built in and reads no file" if kind.files is None else "lies in the cache and takes no path"
        advice = "'npz'" if kind.files is None else "the cache, or 'npz' or 'folder'"
        raise UserError(f"data set {source.name!r} {problem}, got path {str(source.path)!r}; did you mean {advice}?")


def is_there(name: str, cache: str = CACHE) -> bool | None:
    """Whether the cache has files of this data set; None for one that is not stored there."""
    kind = _KINDS[name]
    if kind.files is None:
        return None
    patterns = (kind.files, *(published.BYCLASS_MAT_FILES if name == "emnist-byclass" else ()))
    return any(in_cache(Source(name=name, cache=cache), pattern) for pattern in patterns)
