"""What each round of a run has, as a curve over versions."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from unstale.report import drawing
from unstale.report.content import Picture, count
from unstale.report.groups import Group, keys
from unstale.report.recorded import Floats, Run
from unstale.report.statistics import Curve, over_versions


def means(run: Run, values_U: Floats) -> Floats:
    """Over the updates of each round, [R]; NaN for a round without any."""
    taken = run.updates.aggregated_U
    place = run.updates.version_U[taken] - 1
    rounds = len(run.rounds.version_R)
    sums, counts = np.bincount(place, values_U[taken], minlength=rounds), np.bincount(place, minlength=rounds)
    mean_R: Floats = np.divide(sums, counts, out=np.full(rounds, np.nan), where=counts > 0)
    return mean_R


def greatest(run: Run, values_U: Floats) -> Floats:
    """Over the updates of each round, [R]; NaN for a round without any that is a number."""
    taken = run.updates.aggregated_U
    most_R = np.full(len(run.rounds.version_R), np.nan)
    np.fmax.at(most_R, run.updates.version_U[taken] - 1, values_U[taken])
    return most_R


def picture(
    groups: Sequence[Group],
    of: Callable[[Run], Floats],
    *,
    name: str,
    title: str,
    what: str,
    caption: str,
    alternative: str,
) -> Picture:
    """of: what each round of a run has, [R]. what: that is, with its unit. caption: without its end, which says how the
    curve was made."""
    known = [(group, runs) for group in groups if (runs := [run for run in group.runs if run.version])]
    curves = [_curve(runs, [of(run) for run in runs]) for _, runs in known]
    labels = [group.legend for group, _ in known]
    longest = max((min(run.version for run in runs) for _, runs in known), default=0)
    return Picture(
        name=name,
        title=title,
        caption=f"{caption}{_how(curves, longest, sum(_left_out(runs) for _, runs in known))}",
        alternative=alternative,
        draw=partial(drawing.lines, labels=labels, curves=curves, what=what),
        keys=keys([group for group, _ in known]),
    )


def _curve(runs: Sequence[Run], series: Sequence[Floats]) -> Curve:
    made = min(map(len, series))
    versions = runs[0].rounds.version_R[:made]
    return over_versions([drawing.binned(versions, values[:made]) for values in series])


def _left_out(runs: Sequence[Run]) -> int:
    """Rounds that not every run has made."""
    return sum(run.version for run in runs) - len(runs) * min(run.version for run in runs)


def _how(curves: Sequence[Curve], longest: int, left_out: int) -> str:
    band = "; mean over runs with its 95 % confidence band" if any(curve.n > 1 for curve in curves) else ""
    rounds = -(-longest // drawing.POINTS_MAX)
    few = f"; each point is the mean of {rounds} rounds" if rounds > 1 else ""
    less = (
        f" Left out: {count(left_out, 'round')} that not every run of the group has made." if left_out else ""
    )
    return f"{band}{few}.{less}"
