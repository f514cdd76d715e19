"""Curves of a record, by the names in a preset's `Curve.shows`. Pure.

Legend: x points of a curve.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from statistics import fmean
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from unstale.report.drawing import VERSIONS
from unstale_papers.metric_functions import errors_of
from unstale_papers.record import Record

STALENESS = "mean staleness so far, over N/K"

Floats = NDArray[np.float64]
Points = Sequence[tuple[float, float]]
"""Place and value, places ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """A curve over versions. axis: of its values, with unit. of: its points in a record. ends_as: the measure of its
    final value, which may be printed; None for none. is_share: whether values are in [0, 1].
    """

    axis: str
    of: Callable[[Record], Points]
    ends_as: str | None = None
    is_share: bool = False


def show(name: str) -> Show:
    """The curve of that name; an unlisted name is a curve in a record's `found`."""
    if name in SHOWS:
        return SHOWS[name]
    match = re.fullmatch(r"class accuracy (\d+)", name)
    if match:
        label = int(match[1])
        return Show(
            axis=f"test accuracy on class {label}",
            of=partial(_of_class, label),
            ends_as=f"final accuracy of class {label}",
            is_share=True,
        )
    return Show(axis=name, of=partial(_found, name), ends_as=name)


def along(name: str, records: Sequence[Record]) -> str:
    """The label of the horizontal axis of a curve."""
    for record in records:
        curve = record.found.get("curves", {}).get(name)
        if curve is not None and name not in SHOWS:
            return str(curve["x"])
    return VERSIONS


def arrays(points: Points) -> tuple[Floats, Floats]:
    """Places and values, [x] each."""
    pairs_x2 = np.asarray(points, np.float64).reshape(-1, 2)
    return pairs_x2[:, 0], pairs_x2[:, 1]


def of_clients(record: Record) -> list[float]:
    """Accuracies on clients' own test examples, per cent."""
    return [100 * one for one in record.client_accuracy_N if one is not None and np.isfinite(one)]


def _accuracy(record: Record) -> Points:
    return list(zip(record.version_E, record.accuracy_E, strict=False))


def _loss(record: Record) -> Points:
    return list(zip(record.version_E, record.loss_E, strict=False))


def _training_loss(record: Record) -> Points:
    return list(enumerate(record.training_loss_R, start=1))


def _loss_of_all(record: Record) -> Points:
    return [(version, nats) for version, nats in record.found.get("training_loss", ())]


def _of_class(label: int, record: Record) -> Points:
    return [
        (version, share)
        for version, row in zip(record.version_E, record.class_accuracy_EC, strict=False)
        if label < len(row) and (share := row[label]) is not None
    ]


def _error(record: Record, *, unchanged: bool) -> Points:
    return [
        (version, fmean(one[2] for one in those))
        for version, those in groupby(errors_of(record, unchanged=unchanged), key=lambda one: one[0])
    ]


def _found(name: str, record: Record) -> Points:
    curve = record.found.get("curves", {}).get(name, {"points": ()})
    return [(float(x), float(y)) for x, y in curve["points"]]


SHOWS: Mapping[str, Show] = MappingProxyType(
    {
        "accuracy": Show(axis="test accuracy", of=_accuracy, ends_as="final accuracy", is_share=True),
        "loss": Show(axis="test loss, nats", of=_loss),
        "training loss": Show(axis="training loss, nats", of=_training_loss, ends_as="training loss"),
        "training loss of all": Show(
            axis="loss over all training examples, nats", of=_loss_of_all, ends_as="training loss of all"
        ),
        STALENESS: Show(axis=STALENESS, of=partial(_found, STALENESS), is_share=True),
        "E1": Show(axis="E1, L1", of=partial(_error, unchanged=False)),
        "E2": Show(axis="E2, L1", of=partial(_error, unchanged=True)),
    }
)
"""Curves with fixed names, beside `class accuracy C` and the curves in a record's `found`."""
