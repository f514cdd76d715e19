"""What stale updates were turned into, and how far estimates were from the updates that came later."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from math import isfinite
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes

from unstale.compensators.compensator import UNCHANGED
from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group
from unstale.report.sections.columns import CLIENT, GROUP, METHOD, RUN, STALENESS, VERSION
from unstale.report.statistics import Curve

_ERRORS = (
    *(GROUP, METHOD),
    Column(name="estimates", head="estimates", form=","),
    Column(name="staleness_mean_rounds", head="mean staleness", form=".2f"),
    Column(name="l1_mean", head="L1 error, mean", form=".4g"),
    Column(name="cosine_mean", head="cosine error, mean", form=".4f"),
)
_MEASURED = (
    *(RUN, VERSION, CLIENT, METHOD, STALENESS),
    Column(name="l1", head="L1 error", form=".4g"),
    Column(name="cosine", head="cosine error", form=".4f"),
)
_METHODS = (
    GROUP,
    Column(name="method", head="made by"),
    Column(name="updates", head="updates", form=","),
    Column(name="updates_ratio", head="share", form=".1%"),
)
_FALLBACKS = (
    GROUP,
    Column(name="reason", head="fell back because of"),
    Column(name="updates", head="updates", form=","),
)
_NAMES = {UNCHANGED: "stale update as it is (E2)", "gradient-inversion": "gradient inversion (E1)"}
LINES_MAX = 8


def section(groups: Sequence[Group]) -> Section | None:
    """None where no run has a compensator."""
    known = [group for group in groups if any(run.compensations is not None for run in group.runs)]
    if not known:
        return None
    by_method = {
        (group.label, method): found for group in known for method, found in _by_method(group).items()
    }
    sentences = [
        "An error tells how far an estimate was from the update that the client did make in the end: by L1, the sum of "
        "the absolute differences of all parameters, and by cosine, 1 - cos. The method none is the stale update "
        "itself; an estimate that is no better than that is worth nothing."
    ]
    if not by_method:
        sentences.append("No error was measured.")
    return Section(
        name="compensation",
        title="Compensation",
        sentences=sentences,
        pictures=[_curves(by_method, known, what) for what in ("l1", "cosine")] if by_method else [],
        tables=_tables(known, by_method),
    )


_ByVersion = dict[int, list[tuple[float, float, int]]]
"""L1, cosine and staleness of the errors that the round of a version told."""


def _by_method(group: Group) -> dict[str, _ByVersion]:
    """The stale update itself first, which the others are held against."""
    found: dict[str, _ByVersion] = defaultdict(lambda: defaultdict(list))
    for run in group.runs:
        for version, error in () if run.compensations is None else run.compensations.errors:
            found[error.method][version].append((error.l1, error.cosine, error.staleness))
    return dict(sorted(found.items(), key=lambda item: (item[0] != UNCHANGED, item[0])))


def _curves(by_method: dict[tuple[str, str], _ByVersion], known: Sequence[Group], what: str) -> Picture:
    several = len(known) > 1
    drawn = dict(list(by_method.items())[:LINES_MAX])
    labels = [
        f"{group}: {_NAMES.get(method, method)}" if several else _NAMES.get(method, method)
        for group, method in drawn
    ]
    curves = [_curve(of, place=0 if what == "l1" else 1) for of in drawn.values()]
    said = [f"{label} {np.nanmean(curve.mean_x):.3g}" for label, curve in zip(labels, curves, strict=True)]
    less = (
        f" The first {LINES_MAX} of {len(by_method)} lines are drawn." if len(by_method) > LINES_MAX else ""
    )
    word = "L1" if what == "l1" else "Cosine"
    return Picture(
        name=f"compensation_error_{what}",
        title=f"{word} error of compensation",
        caption=f"Mean over the errors that the updates of a round told, of all runs of a group.{less}",
        alternative=f"Lines of the {word} error over versions, on average: {'; '.join(said)}.",
        draw=partial(
            _draw, labels=labels, curves=curves, what="L1 error" if what == "l1" else "cosine error, 1 - cos"
        ),
        keys=labels,
    )


def _curve(of: _ByVersion, place: int) -> Curve:
    versions = np.array(sorted(of), np.float64)
    means = np.array([_mean([error[place] for error in of[int(version)]]) for version in versions])
    at_x, mean_x = drawing.binned(versions, means)
    nothing = np.full(len(at_x), np.nan)
    return Curve(n=1, at_x=at_x, mean_x=mean_x, low_x=nothing, high_x=nothing, left_out=0)


def _draw(axes: Axes, labels: Sequence[str], curves: Sequence[Curve], what: str) -> None:
    drawing.lines(axes, labels, curves, what)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if isfinite(value)]
    return fmean(known) if known else np.nan


def _tables(known: Sequence[Group], by_method: dict[tuple[str, str], _ByVersion]) -> list[Table]:
    errors: list[tuple[Cell, ...]] = []
    for (group, method), of in by_method.items():
        every = [error for found in of.values() for error in found]
        l1, cosine, late = zip(*every, strict=True)
        errors.append((group, method, len(every), fmean(late), _mean(l1), _mean(cosine)))
    methods: list[tuple[Cell, ...]] = []
    fallbacks: list[tuple[Cell, ...]] = []
    for of_group in known:
        made, fell = _made(of_group)
        methods += [
            (of_group.label, method, times, times / made.total()) for method, times in made.most_common()
        ]
        fallbacks += [(of_group.label, reason, times) for reason, times in fell.most_common()]
    measured = [
        (run.name, version, error.client_id, error.method, error.staleness, error.l1, error.cosine)
        for of_group in known
        for run in of_group.runs
        for version, error in (() if run.compensations is None else run.compensations.errors)
    ]
    return [
        Table(
            name="compensation_methods",
            caption="What updates were turned into; those made by none are as they came",
            columns=_METHODS,
            rows=methods,
        ),
        Table(
            name="compensation_fallbacks",
            caption="Updates that got less than was asked for",
            columns=_FALLBACKS,
            rows=fallbacks,
        ),
        Table(name="compensation_errors", caption="Errors of compensation", columns=_ERRORS, rows=errors),
        Table(
            name="compensation_measured",
            caption="Every error of compensation that was measured",
            columns=_MEASURED,
            rows=measured,
            rows_shown=0,
        ),
    ]


def _made(group: Group) -> tuple[Counter[str], Counter[str]]:
    """Updates by what they were turned into, and by why they got less."""
    methods: Counter[str] = Counter()
    fallbacks: Counter[str] = Counter()
    for run in group.runs:
        if run.compensations is not None:
            for (_, method), times in run.compensations.methods.items():
                methods[method] += times
            fallbacks.update(run.compensations.fallbacks)
    return methods, fallbacks
