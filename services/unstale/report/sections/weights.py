"""How much each update counted."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Column, Picture, Section, Table
from unstale.report.groups import Group, keys
from unstale.report.recorded import Floats, Integers, Run
from unstale.report.sections import by_round
from unstale.report.sections.columns import GROUP, STALENESS
from unstale.report.sections.staleness import edges

_BY_STALENESS = (
    *(GROUP, STALENESS),
    Column(name="updates", head="updates", form=","),
    Column(name="weight_mean", head="weight, mean", form=".4g"),
    Column(name="relative_weight_mean", head="times an even share", form=".3f"),
)
ROWS_SHOWN = 12


def section(groups: Sequence[Group]) -> Section | None:
    """None while no update has a share of a round."""
    known = [
        (group, late, times)
        for group in groups
        if len(late := (found := _found(group))[0])
        for times in [found[1]]
    ]
    if not known:
        return None
    rows = sorted((row for group, _, _ in known for row in _rows(group)), key=itemgetter(1))
    return Section(
        name="weights",
        title="Weights",
        sentences=[
            "An update's share is its weight, without its sign, over the sum of those of its round. An even share of a "
            "round of K updates is 1 / K."
        ],
        pictures=[
            _against_staleness(known),
            by_round.picture(
                [group for group, _, _ in known],
                lambda run: by_round.greatest(run, run.updates.share_U),
                name="largest_share_over_versions",
                title="Largest share over versions",
                what="largest share of a round",
                caption="Share of the update that counted most in each round",
                alternative="Curves of the largest share of a round over versions.",
            ),
        ],
        tables=[
            Table(
                name="weights",
                caption="Weights by staleness, over all runs of a group",
                columns=_BY_STALENESS,
                rows=rows,
                rows_shown=ROWS_SHOWN,
            )
        ],
    )


def relative(run: Run) -> Floats:
    """Each update's share over an even one, [U]; NaN where it has none."""
    sizes = np.append(0, run.rounds.updates_R)  # by version
    times_U: Floats = run.updates.share_U * sizes[run.updates.version_U]
    return times_U


_Known = Sequence[tuple[Group, Integers, Floats]]


def _found(group: Group) -> tuple[Integers, Floats]:
    """Staleness and relative weight of every update that has a share."""
    times = np.concatenate([relative(run) for run in group.runs])
    late = np.concatenate([run.updates.staleness_U for run in group.runs])
    known = np.isfinite(times)
    return late[known], times[known]


def _rows(group: Group) -> list[tuple[str, int, int, float, float]]:
    times = np.concatenate([relative(run) for run in group.runs])
    late = np.concatenate([run.updates.staleness_U for run in group.runs])
    weight = np.concatenate([run.updates.weight_U for run in group.runs])
    return [
        (
            group.label,
            staleness,
            int((late == staleness).sum()),
            float(weight[late == staleness].mean()),
            float(times[late == staleness].mean()),
        )
        for staleness in np.unique(late[late >= 0]).tolist()
    ]


def _against_staleness(known: _Known) -> Picture:
    said = [
        f"{group.label}: fresh updates {times[late == 0].mean():.2f} times an even share, others "
        f"{times[late > 0].mean():.2f} times"
        for group, late, times in known
        if (late == 0).any() and (late > 0).any()
    ]
    labels = [group.legend for group, _, _ in known]
    return Picture(
        name="weight_against_staleness",
        title="Weight against staleness",
        caption="Mean share of updates by how late they were, as multiples of an even share (1, dashed); over all runs "
        "of a group.",
        alternative=f"Lines of relative weight against staleness. {'; '.join(said)}",
        draw=partial(_draw, known=known, labels=labels),
        keys=keys([group for group, _, _ in known]),
    )


def _draw(axes: Axes, known: _Known, labels: Sequence[str]) -> None:
    between = edges(max(int(late.max()) for _, late, _ in known))
    middle = (between[:-1] + between[1:]) / 2
    for place, ((_, late, times), label) in enumerate(zip(known, labels, strict=True)):
        counts = np.histogram(late, between)[0]
        sums = np.histogram(late, between, weights=times)[0]
        style = drawing.Style(place=place)
        axes.plot(
            middle,
            np.divide(
                sums, counts, out=np.full(len(counts), np.nan), where=counts > 0
            ),  # a gap where there are none
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markersize=4,
            linewidth=1.4,
            label=label,
        )
    axes.axhline(1, color=drawing.INK, linestyle=(0, (4, 4)), linewidth=0.8, zorder=1)
    axes.set_xlabel("staleness, rounds")
    axes.set_ylabel("weight, times an even share")
    drawing.from_zero(axes)
    drawing.whole_numbers(axes)
