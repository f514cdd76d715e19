"""The choice of cells of a preset, and the settings in which cells differ. Pure."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from unstale.config.keys import KEYS, OPEN_SECTIONS
from unstale.errors import UserError, nearest
from unstale.report.content import listed
from unstale_papers.jobs import values
from unstale_papers.preset import Cell, Preset
from unstale_papers.runners import WITHOUT_DATA

_ABSENT = object()


def chosen(presets: Sequence[Preset], text: str | None) -> list[tuple[Preset, tuple[Cell, ...]]]:
    """The matching cells of each preset that has any.

    text: `method=FedHist,FedAvg beta=0.3`: every named axis has one of the values; a value with a space is
    quoted, and a label may contain a comma. None or empty for all. Raises UserError without a match; it lists the
    labels.
    """
    there: dict[str, list[str]] = {}
    for preset in presets:
        for cell in preset.cells:
            for axis, label in cell.labels.items():
                there.setdefault(axis, []).append(label)
    wanted = _parsed(text or "", there)
    for axis, labels in wanted.items():
        _check(axis, labels, there)
    found = [(preset, tuple(cell for cell in preset.cells if _matches(cell, wanted))) for preset in presets]
    if not any(cells for _, cells in found):
        raise UserError(f"--cells is {text!r}, and no cell is all of that; leave a part of it out")
    return [(preset, cells) for preset, cells in found if cells]


def data_sets(cells: Iterable[Cell]) -> list[str]:
    """Names of the cells' data sets, as in `unstale data list`, each once."""
    data = [cell.settings.data for cell in cells if cell.measurement not in WITHOUT_DATA]
    names = [name for one in data for name in (one.name, one.variant.name) if name is not None]
    return list(dict.fromkeys(names))


def data_of(cells: Iterable[Cell]) -> str:
    """The cells' data sets, or their drawn problems, for readers."""
    return listed(data_sets(cells)) or "problems with a known optimum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Settings that some labels determine. axes: of these labels. rows: labels and values by key; without keys that
    the cells leave at a part's default.
    """

    axes: tuple[str, ...]
    rows: Mapping[tuple[str, ...], Mapping[str, Any]]


def common(cells: Sequence[Cell]) -> dict[str, Any]:
    """Non-default settings that all cells share, by key."""
    every = [_set_values(cell) for cell in cells]
    return {key: value for key, value in every[0].items() if all(one.get(key, ...) == value for one in every)}


def differences(cells: Sequence[Cell]) -> list[Difference]:
    """Settings in which cells differ, grouped by the fewest axes that determine them."""
    every = [_set_values(cell) for cell in cells]
    keys = [key for key in dict.fromkeys(key for one in every for key in one) if key not in common(cells)]
    by_axes: dict[tuple[str, ...], list[str]] = {}
    for key in keys:
        by_axes.setdefault(_deciding([_value(one, key) for one in every], cells), []).append(key)
    return [
        Difference(
            axes=axes,
            rows={
                _labels(cell, axes): {key: _value(one, key) for key in own if _value(one, key) is not _ABSENT}
                for cell, one in zip(cells, every, strict=True)
            },
        )
        for axes, own in sorted(by_axes.items(), key=lambda entry: len(entry[0]))
    ]


def _parsed(text: str, there: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """there: the labels of each axis."""
    wanted: dict[str, list[str]] = {}
    try:
        words = shlex.split(text)
    except ValueError:
        raise UserError(f"--cells is {text!r}, in which a quote does not end") from None
    for word in words:
        axis, sign, labels = word.partition("=")
        if not sign:
            expected = "expected AXIS=VALUE,VALUE, such as method=FedHist,FedAvg; put a value with a space in quotes"
            raise UserError(f"--cells has {word!r}, {expected}")
        wanted.setdefault(axis, []).extend(_separated(labels, there.get(axis, ())))
    return wanted


def _separated(text: str, there: Collection[str]) -> Iterator[str]:
    """Labels between commas; a label that contains a comma is recognized if it exists."""
    parts = text.split(",")
    while parts:
        ends = range(len(parts), 1, -1)
        end = next((end for end in ends if ",".join(parts[:end]) in there), 1)
        yield ",".join(parts[:end])
        parts = parts[end:]


def _check(axis: str, labels: Iterable[str], there: Mapping[str, Collection[str]]) -> None:
    """Raise UserError for an unknown axis or label. there: the labels of each axis."""
    if axis not in there:
        raise UserError(f"--cells has axis {axis!r}{nearest(axis, list(there))}")
    for label in labels:
        if label not in there[axis]:
            raise UserError(f"--cells has {axis}={label}{_advice(axis, label, list(dict.fromkeys(there[axis])))}")


def _advice(axis: str, label: str, there: Sequence[str]) -> str:
    """What to write for a label that is not one of those of its axis: the shell may have cut it at a space."""
    whole = next((one for one in there if one.startswith(f"{label} ")), None)
    if whole is None:
        return nearest(label, there)
    return f"; put a value with a space in quotes, as in {axis}={shlex.quote(whole)}"


def _matches(cell: Cell, wanted: Mapping[str, Sequence[str]]) -> bool:
    return all(cell.labels.get(axis) in labels for axis, labels in wanted.items())


def _set_values(cell: Cell) -> dict[str, Any]:
    """Non-default settings of a cell by key, with each setting of its parts and its measurement."""
    set_values: dict[str, Any] = {}
    for key, value in values(cell.settings).items():
        set_values |= {f"{key}.{name}": own for name, own in value.items()} if key in OPEN_SECTIONS else {key: value}
    set_values["measurement"] = cell.measurement
    set_values |= {f"measurement.{name}": value for name, value in cell.options.items()}
    if cell.scenario is not None:
        set_values["scenario"] = " ".join(cell.scenario.split())
    return set_values


def _value(set_values: Mapping[str, Any], key: str) -> Any:
    """The value of a key that another cell sets."""
    if key in set_values or key not in KEYS or KEYS[key].default is None:
        return set_values.get(key, _ABSENT)
    return KEYS[key].default


def _labels(cell: Cell, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.labels.get(axis, "") for axis in axes)


def _deciding(of_each: Sequence[Any], cells: Sequence[Cell]) -> tuple[str, ...]:
    """The fewest axes whose labels determine a cell's value."""
    axes = list(dict.fromkeys(axis for cell in cells for axis in cell.labels))
    for some in _some_of(axes):
        found: dict[tuple[str, ...], Any] = {}
        if all(
            found.setdefault(_labels(cell, some), value) == value for cell, value in zip(cells, of_each, strict=True)
        ):
            return some
    return tuple(axes)


def _some_of(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for count in range(1, len(axes) + 1):
        yield from combinations(axes, count)
