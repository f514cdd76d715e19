"""Staleness of aggregated updates."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, frame, keys
from unstale.report.sections import by_round
from unstale.report.sections.columns import CLIENT, EXAMPLES, GROUP, RUN, STALENESS, UPDATES, VERSION, of_frame
from unstale.report.statistics import Floats, Integers

_SUMMARY = (
    *(GROUP, UPDATES),
    *(Column("staleness_mean_rounds", "mean", ".2f"), Column("staleness_median_rounds", "median", "g")),
    *(Column("staleness_p95_rounds", "95th percentile", "g"), Column("staleness_max_rounds", "max", ",.0f")),
    Column("fresh_ratio", "fresh", ".1%"),
)
_HISTOGRAM = (RUN, STALENESS, UPDATES)
_UPDATES = (
    *(RUN, Column("elapsed_s", "time, s", ",.3f"), CLIENT, Column("reason", "rejected for"), VERSION),
    *(STALENESS, Column("weight", "weight", ".4g"), Column("weight_share_ratio", "share", ".2%")),
    *(Column("loss_nats", "loss", ".4f"), EXAMPLES),
)
BINS_MAX = 40


def section(groups: Sequence[Group]) -> Section:
    updates = frame(groups, "updates")
    histogram = updates.groupby(["run", "staleness_rounds"], sort=False).size().reset_index(name="updates")
    histogram["run"] = histogram.run.astype("category").cat.set_categories(updates.run.unique())
    aggregated = [(group, staleness) for group in groups if len(staleness := _staleness(group))]
    return Section(
        name="staleness",
        title="Staleness",
        sentences=[] if aggregated else ["No update was aggregated yet."],
        pictures=[_histogram(aggregated), _over_versions(aggregated)] if aggregated else [],
        tables=[
            Table(
                "staleness",
                "Staleness of aggregated updates in rounds; 0 is fresh",
                _SUMMARY,
                [_summary_row(group, staleness) for group, staleness in aggregated],
            ),
            of_frame(
                "staleness_histogram",
                "Aggregated updates by staleness",
                _HISTOGRAM,
                histogram.sort_values(["run", "staleness_rounds"]),
                rows_shown=0,
            ),
            of_frame("updates", "Every validated update", _UPDATES, updates, rows_shown=0),
        ],
    )


def edges(most: int) -> Floats:
    """Return edges of equal bins for integers from 0 to `most`, at most `BINS_MAX` bins."""
    width = -(-(most + 1) // BINS_MAX)
    return np.arange(0, most + width + 1, width, dtype=np.float64) - 0.5


def _staleness(group: Group) -> Integers:
    staleness: Integers = frame([group], "updates").staleness_rounds.dropna().to_numpy(np.int64)
    return staleness


def _summary_row(group: Group, staleness: Integers) -> tuple[Cell, ...]:
    return (
        group.label,
        len(staleness),
        float(staleness.mean()),
        float(np.median(staleness)),
        float(np.quantile(staleness, 0.95, method="inverted_cdf")),
        int(staleness.max()),
        float((staleness == 0).mean()),
    )


_Aggregated = Sequence[tuple[Group, Integers]]


def _histogram(aggregated: _Aggregated) -> Picture:
    texts = [f"{group.label}: mean {staleness.mean():.2f}, max {staleness.max()}" for group, staleness in aggregated]
    return Picture(
        name="staleness_histogram",
        title="Staleness of updates",
        caption="Share of the aggregated updates by staleness, over all runs of a group.",
        alternative=f"A histogram of staleness in rounds. {'; '.join(texts)}.",
        draw=partial(_draw_histogram, aggregated=aggregated),
        keys=keys([group for group, _ in aggregated]),
    )


def _draw_histogram(axes: Axes, aggregated: _Aggregated) -> None:
    bins = edges(max(int(staleness.max()) for _, staleness in aggregated))
    for index, (group, staleness) in enumerate(aggregated):
        shares = np.histogram(staleness, bins)[0] / len(staleness)
        drawing.histogram(axes, shares, bins, index, group.legend, fill=len(aggregated) == 1)
    axes.set_xlabel("staleness, rounds")
    axes.set_ylabel("share of updates")
    drawing.from_zero(axes)
    drawing.whole_numbers(axes)


def _over_versions(aggregated: _Aggregated) -> Picture:
    means = [f"{group.label}: {staleness.mean():.2f} rounds on average" for group, staleness in aggregated]
    return by_round.picture(
        [group for group, _ in aggregated],
        lambda run: run.updates.groupby("version").staleness_rounds.mean(),
        "mean staleness, rounds",
        name="staleness_over_versions",
        title="Staleness over versions",
        caption="Mean staleness of the updates of a round",
        alternative=f"Curves of the mean staleness of each round. {'; '.join(means)}.",
    )
