"""A picture of a value that each round has, over versions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from unstale.report import drawing
from unstale.report.content import Picture, count
from unstale.report.groups import Group, keys
from unstale.report.recorded import Run
from unstale.report.statistics import Curve, over_versions


def picture(
    groups: Sequence[Group],
    of_run: Callable[[Run], Any],
    axis_label: str,
    *,
    name: str,
    title: str,
    caption: str,
    alternative: str,
) -> Picture:
    """Return the picture of the groups with a round.

    of_run: returns a series by version. caption: its beginning, before details
    of the curves.
    """
    drawn = [(group, runs) for group in groups if (runs := [run for run in group.runs if run.version])]
    curves = [_curve(runs, of_run) for _, runs in drawn]
    return Picture(
        name=name,
        title=title,
        caption=caption + _details([runs for _, runs in drawn]),
        alternative=alternative,
        draw=partial(drawing.lines, labels=[group.legend for group, _ in drawn], curves=curves, axis_label=axis_label),
        keys=keys([group for group, _ in drawn]),
    )


def _curve(runs: Sequence[Run], of_run: Callable[[Run], Any]) -> Curve:
    versions = runs[0].rounds.version[: _common(runs)].to_numpy()
    return over_versions([drawing.binned(versions, of_run(run).reindex(versions).to_numpy(float)) for run in runs])


def _common(runs: Sequence[Run]) -> int:
    """Return the number of versions that all runs have."""
    return min(run.version for run in runs)


def _details(groups: Sequence[Sequence[Run]]) -> str:
    band = "; mean over runs with its 95 % confidence band" if any(len(runs) > 1 for runs in groups) else ""
    width = -(-max(map(_common, groups), default=0) // drawing.POINTS_MAX)
    means = f"; each point is the mean of {width} rounds" if width > 1 else ""
    left_out = sum(run.version - _common(runs) for runs in groups for run in runs)
    rest = f" Left out: {count(left_out, 'round')} that some runs of the group do not have." if left_out else ""
    return f"{band}{means}.{rest}"
