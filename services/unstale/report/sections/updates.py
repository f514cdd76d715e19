"""Staleness, weights and rejections of updates."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Column, Draw, Picture, Section, count
from unstale.report.groups import Group, frame, keys
from unstale.report.recorded import Run
from unstale.report.sections.columns import CLIENT, EXAMPLES, GROUP, RUN, STALENESS, UPDATES, VERSION, of_frame
from unstale.report.statistics import Curve, Floats, over_versions, p95

_STALENESS = (
    *(GROUP, UPDATES),
    *(Column("staleness_mean_rounds", "mean", ".2f"), Column("staleness_median_rounds", "median", "g")),
    *(Column("staleness_p95_rounds", "95th percentile", "g"), Column("staleness_max_rounds", "max", ",.0f")),
    Column("fresh_ratio", "fresh", ".1%"),
)
_UPDATES = (
    *(RUN, Column("elapsed_s", "time, s", ",.3f"), CLIENT, Column("reason", "rejected for"), VERSION),
    *(STALENESS, Column("weight", "weight", ".4g"), Column("weight_share_ratio", "share", ".2%")),
    *(Column("loss_nats", "loss", ".4f"), EXAMPLES),
)
_WEIGHTS = (
    *(GROUP, STALENESS, UPDATES, Column("weight_mean", "weight, mean", ".4g")),
    Column("relative_weight_mean", "share / even share", ".3f"),
)
_REJECTIONS = (*(GROUP, Column("reason", "reason"), UPDATES), Column("received_ratio", "of those received", ".2%"))
BINS_MAX = 40
ROWS_SHOWN = 12
REASONS_DRAWN = 10


# --- staleness ---


def staleness(groups: Sequence[Group]) -> Section:
    """Return the section on staleness; without aggregated updates it has no pictures."""
    updates = frame(groups, "updates")
    aggregated = _aggregated(updates)
    summary = (
        aggregated.groupby("group")
        .staleness_rounds.agg(
            updates="size",
            staleness_mean_rounds="mean",
            staleness_median_rounds="median",
            staleness_p95_rounds=p95,
            staleness_max_rounds="max",
            fresh_ratio=lambda rounds: (rounds == 0).mean(),
        )
        .reset_index()
    )
    histogram = aggregated.groupby(["run", "staleness_rounds"]).size().reset_index(name="updates")
    return Section(
        name="staleness",
        title="Staleness",
        sentences=[] if len(aggregated) else ["No update was aggregated yet."],
        pictures=_staleness_pictures(groups, aggregated, summary) if len(aggregated) else [],
        tables=[
            of_frame("staleness", "Staleness of aggregated updates in rounds; 0 is fresh", _STALENESS, summary),
            of_frame(
                "staleness_histogram",
                "Aggregated updates by staleness",
                (RUN, STALENESS, UPDATES),
                histogram,
                rows_shown=0,
            ),
            of_frame("updates", "Every validated update", _UPDATES, updates, rows_shown=0),
        ],
    )


def _aggregated(updates: pd.DataFrame) -> pd.DataFrame:
    return updates.dropna(subset="version").astype({"staleness_rounds": int})


def _staleness_pictures(groups: Sequence[Group], aggregated: pd.DataFrame, summary: pd.DataFrame) -> list[Picture]:
    drawn = _with_rows(groups, aggregated)
    by_group = {group.legend: aggregated.staleness_rounds[aggregated.group == group.label] for group in drawn}
    ranges = [
        f"{row.group}: mean {row.staleness_mean_rounds:.2f}, max {row.staleness_max_rounds}"
        for row in summary.itertuples()
    ]
    bins = _edges(int(aggregated.staleness_rounds.max()))

    def draw(axes: Axes) -> None:
        for index, (label, rounds) in enumerate(by_group.items()):
            shares = np.histogram(rounds, bins)[0] / len(rounds)
            drawing.histogram(axes, shares, bins, index, label, fill=len(by_group) == 1)
        axes.set(xlabel="staleness, rounds", ylabel="share of updates")
        drawing.from_zero(axes)
        drawing.whole_numbers(axes)

    draw_means, details = _over_versions(
        drawn, lambda run: run.updates.groupby("version").staleness_rounds.mean(), "mean staleness, rounds"
    )
    means = [f"{row.group}: {row.staleness_mean_rounds:.2f} rounds on average" for row in summary.itertuples()]
    return [
        Picture(
            name="staleness_histogram",
            title="Staleness of updates",
            caption="Share of the aggregated updates by staleness, over all runs of a group.",
            alternative=f"A histogram of staleness in rounds. {'; '.join(ranges)}.",
            draw=draw,
            keys=keys(drawn),
        ),
        Picture(
            name="staleness_over_versions",
            title="Staleness over versions",
            caption=f"Mean staleness of the updates of a round{details}",
            alternative=f"Curves of the mean staleness of each round. {'; '.join(means)}.",
            draw=draw_means,
            keys=keys(drawn),
        ),
    ]


def _edges(most: int) -> Floats:
    """Return edges of equal bins for integers from 0 to `most`, at most `BINS_MAX` bins."""
    width = -(-(most + 1) // BINS_MAX)
    return np.arange(0, most + width + 1, width, dtype=np.float64) - 0.5


def _with_rows(groups: Sequence[Group], rows: pd.DataFrame) -> list[Group]:
    """Return the groups with a row in a data frame."""
    labels = set(rows.group)
    return [group for group in groups if group.label in labels]


# --- weights ---


def weights(groups: Sequence[Group]) -> Section | None:
    """Return the section on weights, or None if no update has a share of a round."""
    members = _aggregated(frame(groups, "updates"))
    sizes = members.groupby(["run", "version"]).version.transform("size")
    members = members.assign(relative=members.weight_share_ratio * sizes)  # as a multiple of the even share
    finite = members[np.isfinite(members.relative)]
    drawn = _with_rows(groups, finite)
    if not drawn:
        return None
    draw_largest, details = _over_versions(
        drawn, lambda run: run.updates.groupby("version").weight_share_ratio.max(), "largest share of a round"
    )
    by_staleness = (
        members[members.group.isin(finite.group)]
        .groupby(["staleness_rounds", "group"])
        .agg(
            updates=("weight", "size"),
            weight_mean=("weight", lambda weight: weight.mean(skipna=False)),
            relative_weight_mean=("relative", lambda relative: relative.mean(skipna=False)),
        )
        .reset_index()
    )
    return Section(
        name="weights",
        title="Weights",
        sentences=[
            "The share of an update is its weight, without its sign, over the sum of those of its round. The even "
            "share of a round of K updates is 1 / K."
        ],
        pictures=[
            _weight_against_staleness(drawn, finite),
            Picture(
                name="largest_share_over_versions",
                title="Largest share over versions",
                caption=f"Share of the update with the largest weight in each round{details}",
                alternative="Curves of the largest share of a round over versions.",
                draw=draw_largest,
                keys=keys(drawn),
            ),
        ],
        tables=[
            of_frame(
                "weights",
                "Weights by staleness, over all runs of a group",
                _WEIGHTS,
                by_staleness,
                rows_shown=ROWS_SHOWN,
            )
        ],
    )


def _weight_against_staleness(groups: Sequence[Group], finite: pd.DataFrame) -> Picture:
    bins = _edges(int(finite.staleness_rounds.max()))
    lines, texts = [], []
    for group in groups:
        members = finite[finite.group == group.label]
        in_bins = members.groupby(pd.cut(members.staleness_rounds, bins), observed=False)
        # a gap where there are none
        lines.append((group.legend, (bins[:-1] + bins[1:]) / 2, in_bins.relative.mean().to_numpy()))
        means = members.groupby(members.staleness_rounds == 0).relative.mean()
        if len(means) == 2:
            texts.append(
                f"{group.legend}: fresh updates {means[True]:.2f} times the even share, stale updates "
                f"{means[False]:.2f} times"
            )
    return Picture(
        name="weight_against_staleness",
        title="Weight against staleness",
        caption="Mean share of updates by staleness, as a multiple of the even share (1, dashed), over all runs of a "
        "group.",
        alternative=f"Lines of relative weight against staleness. {'; '.join(texts)}",
        draw=partial(
            drawing.multiples_of_even_share, lines=lines, along="staleness, rounds", axis_label="share / even share"
        ),
        keys=keys(groups),
    )


# --- over versions ---


def _over_versions(groups: Sequence[Group], of_run: Callable[[Run], Any], axis_label: str) -> tuple[Draw, str]:
    """Return how to draw a value that each round has, and the end of the caption. of_run: gives a series by version."""
    by_group = [[run for run in group.runs if run.version] for group in groups]
    labels, curves = [group.legend for group in groups], [_curve(runs, of_run) for runs in by_group]
    band = "; mean over runs with its 95 % confidence band" if any(len(runs) > 1 for runs in by_group) else ""
    width = -(-max(map(_common, by_group)) // drawing.POINTS_MAX)
    means = f"; each point is the mean of {width} rounds" if width > 1 else ""
    left_out = sum(run.version - _common(runs) for runs in by_group for run in runs)
    rest = f" Left out: {count(left_out, 'round')} that some runs of the group do not have." if left_out else ""
    return partial(drawing.lines, labels=labels, curves=curves, axis_label=axis_label), f"{band}{means}.{rest}"


def _curve(runs: Sequence[Run], of_run: Callable[[Run], Any]) -> Curve:
    versions = runs[0].rounds.version[: _common(runs)].to_numpy()
    return over_versions([drawing.binned(versions, of_run(run).reindex(versions).to_numpy(float)) for run in runs])


def _common(runs: Sequence[Run]) -> int:
    """Return the number of versions that all runs have."""
    return min(run.version for run in runs)


# --- rejections ---


def rejections(groups: Sequence[Group]) -> Section:
    """Return the section on rejections."""
    rejected = frame(groups, "updates").dropna(subset="reason")
    received = {group.label: sum(run.conservation.received for run in group.runs) for group in groups}
    rows = rejected.groupby(["group", "reason"]).size().reset_index(name="updates")
    rows = rows.sort_values(["group", "updates", "reason"], ascending=[True, False, True])
    rows["received_ratio"] = rows.updates / rows.group.astype(object).map(received)
    sentences = [
        "Run directories do not store duplicates, nor updates for unknown tasks: these numbers do not count them."
    ]
    return Section(
        name="rejections",
        title="Rejections",
        sentences=sentences if len(rows) else ["No update was rejected.", *sentences],
        pictures=[_rejection_bars(groups, rejected, received)] if len(rows) else [],
        tables=[of_frame("rejections", "Rejected updates by reason, over all runs of a group", _REJECTIONS, rows)],
    )


def _rejection_bars(groups: Sequence[Group], rejected: pd.DataFrame, received: dict[str, int]) -> Picture:
    together = Counter(rejected.reason).most_common(REASONS_DRAWN)
    times = Counter(zip(rejected.group, rejected.reason, strict=True))
    parts = [
        (group.legend, [100 * times[group.label, reason] / max(received[group.label], 1) for reason, _ in together])
        for group in groups
    ]
    totals = ", ".join(f"{reason} {total:,}" for reason, total in together)
    return Picture(
        name="rejections",
        title="Rejected updates by reason",
        caption="Share of the received updates that was rejected, over all runs of a group.",
        alternative=f"Bars of rejected updates by reason: {totals} in total.",
        draw=partial(
            drawing.bars_across,
            names=[reason for reason, _ in together],
            parts=parts,
            axis_label="rejected, % of the updates received",
            stacked=False,
        ),
        keys=keys(groups),
        bars=len(together) * len(groups),
    )
