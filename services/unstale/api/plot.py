"""Pictures and pages of one or several runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unstale.metrics.named import CENTRAL, TRAINING
from unstale.report import drawing, files, make
from unstale.report.groups import Group
from unstale.report.recorded import plain_column_of
from unstale.report.sections import updates
from unstale.report.statistics import Curve, Floats, over_versions

if TYPE_CHECKING:
    from unstale.api.run import Run

PANEL_INCHES = (3.7, 3.0)
DOTS_PER_INCH = 110  # on the screen of a notebook
MARGIN = 0.05  # of the range of the means
BANDS_MAX = 2  # margins that a band may reach beyond the means


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Repetitions of one setting."""

    label: str
    runs: Sequence["Run"]

    @property
    def of_report(self) -> Group:
        """The group as reports know it."""
        return Group(label=self.label, runs=tuple(run.recorded for run in self.runs))


class Picture(Figure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        return drawing.as_png(self, dots_per_inch=DOTS_PER_INCH)


def of_one(run: "Run") -> list[RunGroup]:
    """The group of a single run."""
    return [RunGroup(label=run.recorded.name, runs=[run])]


def figure(groups: Sequence[RunGroup]) -> Figure:
    """Draw main metric and loss over time, and the staleness of the updates."""
    runs = [run for group in groups for run in group.runs]
    metrics = _drawn_metrics(runs)
    staleness = updates.staleness([group.of_report for group in groups]).pictures[:1]
    wide, high = PANEL_INCHES
    keys = [group.of_report.legend for group in groups] if len(runs) > 1 else []
    rows = drawing.legend_rows(keys, 3 * drawing.LEGEND_SIGNS) if keys else 0
    panels = max(len(metrics) + len(staleness), 1)
    with drawing.look("runs"):
        picture = Picture(figsize=(wide * panels, high + drawing.LEGEND_ROW_INCHES * rows), layout="constrained")
        axes = picture.subplots(1, panels, squeeze=False)[0]
        for name, panel in zip(metrics, axes, strict=False):
            _draw(panel, groups, name)
        for drawn, panel in zip(staleness, axes[len(metrics) :], strict=False):
            drawn.draw(panel)
        if keys:
            drawing.legend(picture, keys, "", rows)
    return picture


def _drawn_metrics(runs: Sequence["Run"]) -> list[str]:
    """The main metric of each run, and the loss, as far as there are values."""
    names = dict.fromkeys(name for run in runs for name in (next(iter(run.metrics), ""), "loss"))
    return [name for name in names if any(len(_series(run, name).values) for run in runs)]


def _draw(axes: Axes, groups: Sequence[RunGroup], name: str) -> None:
    """Draw a metric over time. Of several runs: the mean at each common version and its mean time, and a band."""
    series = [_series_of(group, name) for group in groups]
    curves = [_curve(of_group) for of_group in series]
    for index, (group, curve) in enumerate(zip(groups, curves, strict=True)):
        drawing.line(axes, curve, index, group.of_report.legend)
    axes.set_ylim(*_limits(curves))
    splits = sorted({one.split for one in chain.from_iterable(series)})
    is_virtual = all(run.recorded.is_simulated for group in groups for run in group.runs)
    axes.set(xlabel="virtual time, s" if is_virtual else "time, s", ylabel=f"{name} ({', '.join(splits)})")


def _limits(curves: Sequence[Curve]) -> tuple[float | None, float | None]:
    """Ends of the axis: those of the bands, but not far from the means, which stay readable. None for no limit."""
    means = np.concatenate([curve.mean_x for curve in curves])
    means = means[np.isfinite(means)]
    if not len(means) or means.min() == means.max():
        return None, None
    bands = np.concatenate([values for curve in curves for values in (curve.low_x, curve.high_x, curve.mean_x)])
    bands = bands[np.isfinite(bands)]
    room = MARGIN * (means.max() - means.min())
    low, high = means.min() - BANDS_MAX * room, means.max() + BANDS_MAX * room
    return max(low, bands.min() - room), min(high, bands.max() + room)


class _Series(NamedTuple):
    """A metric of a run over time."""

    versions: Floats
    times: Floats
    values: Floats
    split: str


def _curve(series: Sequence[_Series]) -> Curve:
    times = over_versions([(one.versions, one.times) for one in series])
    return replace(over_versions([(one.versions, one.values) for one in series]), at_x=times.mean_x)


def _series_of(group: RunGroup, name: str) -> list[_Series]:
    """The metric in those runs of a group that have values of it."""
    return [series for run in group.runs if len((series := _series(run, name)).values)]


def _series(run: "Run", name: str) -> _Series:
    """The metric in the evaluations; the loss of the training where they have no loss."""
    if name == "loss" and name not in run.evaluations:
        trained = run.updates.dropna(subset="version")
        sums = (
            trained.assign(loss=trained.loss_nats * trained.num_examples)
            .groupby("version")[["loss", "num_examples"]]
            .sum()
        )
        times = run.rounds.set_index("version").applied_elapsed_s.loc[sums.index]
        losses = (sums.loss / sums.num_examples).to_numpy(float)
        return _Series(sums.index.to_numpy(float), times.to_numpy(float), losses, TRAINING)
    column = plain_column_of(name)
    measured = run.evaluations.reindex(columns=["version", "elapsed_s", "split", column]).dropna()
    return _Series(
        measured.version.to_numpy(float),
        measured.elapsed_s.to_numpy(float),
        measured[column].to_numpy(float),
        "".join(measured.split[:1].replace(CENTRAL, "test")),
    )


def write_page(groups: Sequence[RunGroup], path: Path) -> Path:
    """Write the page of `unstale report`. Raises UserError."""
    report = make.of_groups([group.of_report for group in groups])
    files.write_page(replace(report, made_from="in Python", all_rows="the tables of the run have all"), path)
    return path
