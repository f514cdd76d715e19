"""Participation, weight and accuracy over clients."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, keys
from unstale.report.recorded import Run
from unstale.report.sections import own
from unstale.report.sections.columns import CLIENT, GROUP, RUN, RUNS, of_frame
from unstale.report.statistics import Floats, jain, spread

_FAIRNESS = (
    *(GROUP, RUNS),
    Column("clients", "clients", ",.0f"),
    Column("without_update_mean", "without an aggregated update", ",.1f"),
    Column("updates_jain", "evenness of updates", ".3f"),
    Column("weight_jain", "evenness of weight", ".3f"),
    Column("largest_share_ratio", "largest share", ".2%"),
    Column("even_share_ratio", "even share", ".2%"),
)
_CLIENTS = (
    *(RUN, CLIENT, Column("tasks", "tasks", ",")),
    *(Column("received", "updates", ","), Column("aggregated", "aggregated", ",")),
    Column("rejected", "rejected", ","),
    Column("weight_share_ratio", "share of weight", ".2%"),
    Column("staleness_mean_rounds", "mean staleness", ".2f"),
    Column("last_update_s", "last update at, s", ",.1f"),
    Column("own_accuracy_ratio", "accuracy on own examples", ".4f"),
)
ROWS_SHOWN = 20


def section(groups: Sequence[Group]) -> Section:
    clients = {run.name: _clients(run) for group in groups for run in group.runs}
    by_group = [[clients[run.name] for run in group.runs] for group in groups]
    caption = (
        "Fairness over clients, means over runs. Evenness is Jain's index: 1 when all have the same, 1 / clients when "
        "one has all"
    )
    fairness = [_fairness_row(group, frames) for group, frames in zip(groups, by_group, strict=True)]
    return Section(
        name="clients",
        title="Fairness over clients",
        pictures=[*_pictures(groups, by_group), *own.pictures(groups)],
        tables=[
            Table("fairness", caption, _FAIRNESS, fairness),
            *own.tables(groups),
            of_frame(
                "clients",
                "Clients, by their number of aggregated updates",
                _CLIENTS,
                pd.concat(clients.values()),
                rows_shown=ROWS_SHOWN if len(clients) == 1 else 0,
            ),
        ],
    )


def _clients(run: Run) -> pd.DataFrame:
    """Return the table of a run's clients. Shares are of the weight of all rounds, each round counting alike."""
    updates = run.updates
    count = max(run.settings.clients, int(updates.client_id.max()) + 1 if len(updates) else 0, *run.tasks, 0)
    by_client = updates.groupby("client_id")
    weights = by_client.weight_share_ratio.sum()
    own_accuracy = run.own_evaluations.groupby("client_id").accuracy_ratio.last()
    clients = pd.DataFrame(
        {
            "tasks": pd.Series(run.tasks, dtype=float),
            "received": by_client.size(),
            "aggregated": by_client.version.count(),
            "rejected": by_client.reason.count(),
            "weight_share_ratio": weights / weights.sum() if weights.any() else weights,
            "staleness_mean_rounds": by_client.staleness_rounds.mean().astype(float),
            "last_update_s": by_client.elapsed_s.max(),
            "own_accuracy_ratio": own_accuracy.astype(float),
        },
        index=pd.RangeIndex(count, name="client_id"),
    ).reset_index()
    numbers = dict.fromkeys(("tasks", "received", "aggregated", "rejected"), int)
    clients = clients.fillna({**dict.fromkeys(numbers, 0), "weight_share_ratio": 0.0}).astype(numbers)
    return clients.assign(run=run.name).sort_values("aggregated", ascending=False, kind="stable")


def _fairness_row(group: Group, frames: Sequence[pd.DataFrame]) -> tuple[Cell, ...]:
    measures = [
        (
            len(clients),
            int((clients.aggregated == 0).sum()),
            jain(clients.aggregated.to_numpy(float)),
            jain(clients.weight_share_ratio.to_numpy()),
            float(clients.weight_share_ratio.max()),
        )
        for clients in frames
    ]
    means = [spread(values).mean for values in zip(*measures, strict=True)]
    return (group.label, len(frames), *means, 1 / means[0])


def _shares(runs: Sequence[pd.Series]) -> Floats | None:
    """Return multiples of the even share in falling order, means over runs; None if the sum is 0 in every run.

    The curve has as many clients as the run with the fewest.
    """
    curves = [-np.sort(-run.to_numpy(float)) / run.mean() for run in runs if run.any()]
    if not curves:
        return None
    mean_N: Floats = np.mean([curve[: min(map(len, runs))] for curve in curves], axis=0)
    return mean_N


def _pictures(groups: Sequence[Group], by_group: Sequence[Sequence[pd.DataFrame]]) -> Iterator[Picture]:
    for column, noun, title in (
        ("aggregated", "updates", "Participation"),
        ("weight_share_ratio", "weight", "Weight over clients"),
    ):
        curves = [_shares([clients[column] for clients in frames]) for frames in by_group]
        if any(curve is not None for curve in curves):
            yield _picture(groups, curves, noun, title)


def _picture(groups: Sequence[Group], curves: Sequence[Floats | None], noun: str, title: str) -> Picture:
    drawn = [(group, curve) for group, curve in zip(groups, curves, strict=True) if curve is not None]
    largest = [f"{group.label}: the largest is {curve[0]:.1f} times the even share" for group, curve in drawn]
    mean = "; mean over runs." if any(len(group.runs) > 1 for group, _ in drawn) else "."
    return Picture(
        name=f"{noun}_by_client",
        title=title,
        caption=f"Share of each client in the aggregated {noun}, as a multiple of the even share (1, dashed), in "
        f"falling order{mean}",
        alternative=f"Falling curves of the shares of clients. {'; '.join(largest)}.",
        draw=partial(_draw, curves=[(group.legend, curve) for group, curve in drawn], noun=noun),
        keys=keys([group for group, _ in drawn]),
    )


def _draw(axes: Axes, curves: Sequence[tuple[str, Floats]], noun: str) -> None:
    for number, (label, curve) in enumerate(curves):
        drawing.plain_line(axes, np.arange(1, len(curve) + 1), curve, number, label)
    drawing.even_share(axes)
    axes.set_xlabel("clients, largest share first")
    axes.set_ylabel(f"{noun} / even share")
    drawing.from_zero(axes)
    drawing.whole_numbers(axes)
