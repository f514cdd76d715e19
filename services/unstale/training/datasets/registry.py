"""Which data sets there are, and loading one by its name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unstale.errors import UserError, unknown_name
from unstale.training.datasets import celeba, digits, factory, folder, npz, published, source
from unstale.training.datasets.dataset import Constants, Dataset, normalised
from unstale.training.datasets.source import CACHE, NORMALISE, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """reads: what a path is for, where one is needed. files: a pattern of what lies in the cache. published: mean and
    standard deviation over 255.
    Source: docs/methods/models.md#normalisation-of-inputs
    """

    summary: str
    read: Callable[[Source], Dataset]
    reads: str | None = None
    files: str | None = None
    published: Constants | None = None


def _from_cache(name: str, summary: str, constants: Constants | None = None) -> _Kind:
    return _Kind(summary=summary, read=published.read, files=published.FILES[name], published=constants)


_KINDS = {
    "digits": _Kind(
        summary="1,797 handwritten digits of 8x8 pixels, built into scikit-learn", read=digits.read
    ),
    "npz": _Kind(
        summary="your own file with x_train, y_train, x_test and y_test (uint8 images or floats)",
        read=npz.read,
        reads="file with x_train, y_train, x_test and y_test",
    ),
    "folder": _Kind(
        summary=f"your own folder with {folder.EXPECTED}",
        read=folder.read,
        reads=f"folder with {folder.EXPECTED}",
    ),
    "mnist": _from_cache("mnist", "70,000 handwritten digits of 28x28", ((0.1307,), (0.3081,))),
    "fashion-mnist": _from_cache(
        "fashion-mnist", "70,000 articles of clothing of 28x28", ((0.2860,), (0.3530,))
    ),
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
    "svhn": _from_cache(
        "svhn", "99,289 house numbers of 32x32", ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
    ),
    "celeba": _Kind(
        summary="202,599 faces as 84x84, smiling or not, by celebrity", read=celeba.read, files=celeba.FILES
    ),
}

DATASETS = tuple(_KINDS)
SUMMARIES = {name: kind.summary for name, kind in _KINDS.items()}


def load(
    name: str,
    path: Path | str | None = None,
    *,
    cache: str = CACHE,
    download: bool = False,
    normalise: str = "standard",
    column: str | None = None,
    allow_factory: bool = True,
    section: str = "data",
) -> Dataset:
    """The data set called `name`, one of DATASETS or `package.module:factory`. The other arguments are Source's."""
    wanted = Source(
        name=name,
        path=None if path is None else Path(path),
        cache=cache,
        download=download,
        normalise=normalise,
        column=column,
        allow_factory=allow_factory,
        section=section,
    )
    return read(wanted)


def read(source: Source) -> Dataset:
    """The data set of a source.

    Raises UserError for what `check` finds, a data set that is not there and files that do not hold what they should.
    Touches the network only with `download`, and only for what the cache lacks.
    """
    check(source)
    if factory.is_factory(source.name):
        return factory.read(source)
    kind = _KINDS[source.name]
    return normalised(kind.read(source), source.normalise, kind.published)


def check(wanted: Source) -> None:
    """Raise UserError for what is wrong with the wish itself, wherever the data may be. Imports and reads nothing."""
    if wanted.normalise not in NORMALISE:
        raise unknown_name("normalisation", wanted.normalise, NORMALISE)
    if factory.is_factory(wanted.name):
        if not wanted.allow_factory:
            raise UserError(
                f"data set {wanted.name!r} is code, which only this machine's own configuration may name; "
                f"expected one of {', '.join(DATASETS)}"
            )
        return
    if wanted.name not in _KINDS:
        raise unknown_name("data set", wanted.name, DATASETS)
    _check_path(wanted, _KINDS[wanted.name])
    if wanted.column is not None and wanted.name != "npz":
        raise UserError(
            f"data set {wanted.name!r} has no columns, got column {wanted.column!r}; only 'npz' has"
        )


def _check_path(wanted: Source, kind: _Kind) -> None:
    reads, files = kind.reads, kind.files
    if reads is not None and wanted.path is None:
        raise UserError(
            f"data set {wanted.name!r} needs a path to a {reads}; name it with {wanted.section}.path"
        )
    if reads is None and wanted.path is not None:
        where = "is built in and reads no file" if files is None else "lies in the cache and takes no path"
        advice = "did you mean 'npz'?" if files is None else "did you mean the cache, or 'npz' or 'folder'?"
        raise UserError(f"data set {wanted.name!r} {where}, got path {str(wanted.path)!r}; {advice}")


def is_there(name: str, cache: str = CACHE) -> bool | None:
    """Whether any file of this data set lies in the cache; None for one that does not live there."""
    files = _KINDS[name].files
    if files is None:
        return None
    wanted = Source(name=name, cache=cache)
    with_writers = published.WITH_WRITERS if name == "emnist-byclass" else ()
    return any(source.is_there(wanted, pattern) for pattern in (files, *with_writers))
