"""How late updates were when they were aggregated."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, keys
from unstale.report.recorded import Floats, Integers, Run
from unstale.report.sections import by_round
from unstale.report.sections.columns import CLIENT, GROUP, RUN, STALENESS, VERSION

_SUMMARY = (
    GROUP,
    Column(name="updates", head="updates", form=","),
    Column(name="staleness_mean_rounds", head="mean", form=".2f"),
    Column(name="staleness_median_rounds", head="median", form="g"),
    Column(name="staleness_p95_rounds", head="95 % at most", form="g"),
    Column(name="staleness_max_rounds", head="most", form=",.0f"),
    Column(name="fresh_ratio", head="fresh", form=".1%"),
)
_HISTOGRAM = (
    *(RUN, STALENESS),
    Column(name="updates", head="updates", form=","),
)
_UPDATES = (
    RUN,
    Column(name="elapsed_s", head="time, s", form=",.3f"),
    CLIENT,
    Column(name="reason", head="rejected for"),
    *(VERSION, STALENESS),
    Column(name="weight", head="weight", form=".4g"),
    Column(name="weight_share_ratio", head="share", form=".2%"),
    Column(name="loss_nats", head="loss", form=".4f"),
    Column(name="num_examples", head="examples", form=","),
)
BINS_MAX = 40


def section(groups: Sequence[Group]) -> Section:
    known = [(group, late) for group in groups if len(late := _staleness(group))]
    tables = [
        Table(
            name="staleness",
            caption="Staleness of aggregated updates in rounds; 0 is fresh",
            columns=_SUMMARY,
            rows=[_summary_row(group, late) for group, late in known],
        ),
        Table(
            name="staleness_histogram",
            caption="Aggregated updates by staleness",
            columns=_HISTOGRAM,
            rows=[row for group in groups for run in group.runs for row in _histogram_rows(run)],
            rows_shown=0,
        ),
        Table(
            name="updates",
            caption="Every update that had a verdict",
            columns=_UPDATES,
            rows=[row for group in groups for run in group.runs for row in _update_rows(run)],
            rows_shown=0,
        ),
    ]
    if not known:
        return Section(
            name="staleness", title="Staleness", sentences=["No update was aggregated yet."], tables=tables
        )
    return Section(
        name="staleness",
        title="Staleness",
        pictures=[_histogram(known), _over_versions(known)],
        tables=tables,
    )


def edges(most: int) -> Floats:
    """Of bins for whole numbers from 0 to `most`: one each, or as many as can be seen, equally wide."""
    width = -(-(most + 1) // BINS_MAX)
    return np.arange(0, most + width + 1, width, dtype=np.float64) - 0.5


def _staleness(group: Group) -> Integers:
    return np.concatenate([run.updates.staleness_U[run.updates.aggregated_U] for run in group.runs])


def _summary_row(group: Group, late: Integers) -> tuple[Cell, ...]:
    return (
        group.label,
        len(late),
        float(late.mean()),
        float(np.median(late)),
        float(np.quantile(late, 0.95, method="inverted_cdf")),
        int(late.max()),
        float((late == 0).mean()),
    )


def _histogram_rows(run: Run) -> list[tuple[Cell, ...]]:
    late, times = np.unique(run.updates.staleness_U[run.updates.aggregated_U], return_counts=True)
    return [(run.name, *row) for row in zip(late.tolist(), times.tolist(), strict=True)]


def _update_rows(run: Run) -> list[tuple[Cell, ...]]:
    of = run.updates
    return [
        (run.name, elapsed_s, client_id, reason or None, *(into if into[0] else (None,) * 4), loss, examples)
        for elapsed_s, client_id, reason, *into, loss, examples in zip(
            *(of.elapsed_s_U.tolist(), of.client_U.tolist(), of.reasons_U),
            *(of.version_U.tolist(), of.staleness_U.tolist(), of.weight_U.tolist(), of.share_U.tolist()),
            *(of.loss_U.tolist(), of.num_examples_U.tolist()),
            strict=True,
        )
    ]


_Known = Sequence[tuple[Group, Integers]]


def _histogram(known: _Known) -> Picture:
    said = [f"{group.label}: mean {late.mean():.2f}, most {late.max()}" for group, late in known]
    return Picture(
        name="staleness_histogram",
        title="Staleness of updates",
        caption="Share of the aggregated updates by how many rounds late they were; over all runs of a group.",
        alternative=f"A histogram of staleness in rounds. {'; '.join(said)}.",
        draw=partial(_draw_histogram, known=known),
        keys=keys([group for group, _ in known]),
    )


def _draw_histogram(axes: Axes, known: _Known) -> None:
    between = edges(max(int(late.max()) for _, late in known))
    for place, (group, late) in enumerate(known):
        style = drawing.Style(place=place)
        shares = np.histogram(late, between)[0] / len(late)
        if len(known) == 1:
            axes.stairs(shares, between, fill=True, color=style.colour, alpha=drawing.BAND)
        axes.stairs(
            shares, between, color=style.colour, linestyle=style.line, linewidth=1.7, label=group.legend
        )
    axes.set_xlabel("staleness, rounds")
    axes.set_ylabel("share of updates")
    drawing.from_zero(axes)
    drawing.whole_numbers(axes)


def _over_versions(known: _Known) -> Picture:
    groups = [group for group, _ in known]
    said = [f"{group.label}: {late.mean():.2f} rounds on average" for group, late in known]
    return by_round.picture(
        groups,
        lambda run: by_round.means(run, run.updates.staleness_U.astype(np.float64)),
        name="staleness_over_versions",
        title="Staleness over versions",
        what="mean staleness, rounds",
        caption="Mean staleness of the updates of a round",
        alternative=f"Curves of the mean staleness of each round. {'; '.join(said)}.",
    )
