"""Weights of updates."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Column, Picture, Section
from unstale.report.groups import Group, frame, keys
from unstale.report.sections import by_round
from unstale.report.sections.columns import GROUP, STALENESS, UPDATES, of_frame
from unstale.report.sections.staleness import edges

_BY_STALENESS = (
    *(GROUP, STALENESS, UPDATES, Column("weight_mean", "weight, mean", ".4g")),
    Column("relative_weight_mean", "share / even share", ".3f"),
)
ROWS_SHOWN = 12


def section(groups: Sequence[Group]) -> Section | None:
    """Return the section, or None if no update has a share of a round."""
    members = _members(groups)
    finite = members[np.isfinite(members.relative)]
    groups = [group for group in groups if (finite.group == group.label).any()]
    if not groups:
        return None
    order = {group.label: number for number, group in enumerate(groups)}
    by_staleness = (
        members[members.group.isin(order)]
        .groupby(["group", "staleness_rounds"])
        .agg(
            updates=("weight", "size"),
            weight_mean=("weight", lambda weights: weights.mean(skipna=False)),
            relative_weight_mean=("relative", lambda relative: relative.mean(skipna=False)),
        )
        .reset_index()
        .sort_values(["staleness_rounds", "group"], key=lambda column: column.replace(order))
    )
    return Section(
        name="weights",
        title="Weights",
        sentences=[
            "The share of an update is its weight, without its sign, over the sum of those of its round. The even "
            "share of a round of K updates is 1 / K."
        ],
        pictures=[
            _against_staleness(groups, finite),
            by_round.picture(
                groups,
                lambda run: run.updates.groupby("version").weight_share_ratio.max(),
                "largest share of a round",
                name="largest_share_over_versions",
                title="Largest share over versions",
                caption="Share of the update with the largest weight in each round",
                alternative="Curves of the largest share of a round over versions.",
            ),
        ],
        tables=[
            of_frame(
                "weights",
                "Weights by staleness, over all runs of a group",
                _BY_STALENESS,
                by_staleness,
                rows_shown=ROWS_SHOWN,
            )
        ],
    )


def _members(groups: Sequence[Group]) -> pd.DataFrame:
    """Return the updates of all rounds. relative: share as a multiple of the even share."""
    updates = frame(groups, "updates").dropna(subset="version")
    sizes = updates.groupby(["run", "version"]).version.transform("size")
    return updates.assign(
        relative=updates.weight_share_ratio * sizes, staleness_rounds=updates.staleness_rounds.astype(int)
    )


def _against_staleness(groups: Sequence[Group], finite: pd.DataFrame) -> Picture:
    weighted = [(group.legend, finite[finite.group == group.label]) for group in groups]
    texts = [
        f"{label}: fresh updates {means[True]:.2f} times the even share, stale updates {means[False]:.2f} times"
        for label, members in weighted
        if len(means := members.groupby(members.staleness_rounds == 0).relative.mean()) == 2
    ]
    return Picture(
        name="weight_against_staleness",
        title="Weight against staleness",
        caption="Mean share of updates by staleness, as a multiple of the even share (1, dashed), over all runs of a "
        "group.",
        alternative=f"Lines of relative weight against staleness. {'; '.join(texts)}",
        draw=partial(_draw, weighted=weighted),
        keys=keys(groups),
    )


def _draw(axes: Axes, weighted: Sequence[tuple[str, pd.DataFrame]]) -> None:
    bins = edges(max(int(members.staleness_rounds.max()) for _, members in weighted))
    for index, (label, members) in enumerate(weighted):
        in_bins = members.groupby(pd.cut(members.staleness_rounds, bins), observed=False)
        means = in_bins.relative.mean()  # a gap where there are none
        drawing.plain_line(axes, (bins[:-1] + bins[1:]) / 2, means.to_numpy(), index, label)
    drawing.even_share(axes)
    axes.set_xlabel("staleness, rounds")
    axes.set_ylabel("share / even share")
    drawing.from_zero(axes)
    drawing.whole_numbers(axes)
