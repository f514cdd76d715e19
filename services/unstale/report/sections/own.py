"""Accuracy of one model on the test examples of every client.

Source: FedAR (Jiang et al., 2024), docs/methods/measures.md#fairness-over-clients
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Table
from unstale.report.groups import Group, frame, keys
from unstale.report.sections.columns import (
    ACCURACY,
    CLIENT,
    EXAMPLES,
    GROUP,
    LOSS,
    RUN,
    RUNS,
    VERSION,
    cells,
    of_frame,
    of_spread,
    versions,
)
from unstale.report.statistics import Floats, spread

_OVER_CLIENTS = (
    *(GROUP, RUNS),
    Column("clients_mean", "clients that measured", ",.1f"),
    Column("measured_versions", "versions"),
    *of_spread("accuracy", "ratio", ".4f"),
    Column("over_clients_std_ratio", "std over clients", ".4f"),
    Column("over_clients_variance_points2", "variance, %²", ",.1f"),
    *(Column("worst_tenth_ratio", "worst tenth", ".4f"), Column("worst_tenth_std_ratio", "± std", ".4f")),
    *(Column("best_tenth_ratio", "best tenth", ".4f"), Column("best_tenth_std_ratio", "± std", ".4f")),
)
_MEANS = ("std", "variance", "worst_tenth", "worst_tenth_std", "best_tenth", "best_tenth_std")


def tables(groups: Sequence[Group]) -> list[Table]:
    """Return the tables, empty without measurements of clients."""
    return [
        Table(
            "own_accuracy",
            "Accuracy over clients, each on its own test examples and at the last version that it measured. accuracy: "
            "mean over clients, and its spread over runs. The others are means over runs: std over clients with n - 1, "
            "variance with n in squared percentage points, mean and std of the worst and the best tenth of the clients",
            _OVER_CLIENTS,
            [row for group in groups if (row := _row(group))],
        ),
        of_frame(
            "own_evaluations",
            "Every measurement of a client on its own test examples",
            (RUN, CLIENT, VERSION, ACCURACY, LOSS, EXAMPLES),
            frame(groups, "own_evaluations"),
            rows_shown=0,
        ),
    ]


def pictures(groups: Sequence[Group]) -> list[Picture]:
    """Return the picture, none without measurements of clients."""
    measured = [(group, shares) for group in groups if len(shares := _pooled(group))]
    if not measured:
        return []
    ranges = [
        f"{group.label}: from {shares[0]:.3f} to {shares[-1]:.3f}, median {np.median(shares):.3f}"
        for group, shares in measured
    ]
    pooled = "; all runs of a group together." if any(len(group.runs) > 1 for group, _ in measured) else "."
    return [
        Picture(
            name="own_accuracy",
            title="Accuracy over clients",
            caption="Accuracy of the model on each client's own test examples, at the last version that the client "
            f"measured, in rising order{pooled}",
            alternative=f"Rising curves of the accuracies of clients. {'; '.join(ranges)}.",
            draw=partial(_draw, curves=[(group.legend, shares) for group, shares in measured]),
            keys=keys([group for group, _ in measured]),
        )
    ]


def _row(group: Group) -> tuple[Cell, ...]:
    fairness = [run.fairness for run in group.runs if run.fairness is not None]
    if not fairness:
        return ()
    std, variance, *tenths = (spread([getattr(one, name) for one in fairness]).mean for name in _MEANS)
    return (
        *(group.label, len(fairness), spread([one.clients for one in fairness]).mean),
        versions(version for one in fairness for version in (one.oldest_version, one.newest_version)),
        *cells(spread([one.mean for one in fairness])),
        *(std, 1e4 * variance, *tenths),
    )


def _pooled(group: Group) -> Floats:
    """Return the last accuracy of every client of every run, rising."""
    last = frame([group], "own_evaluations").groupby(["run", "client_id"]).accuracy_ratio.last()
    return np.sort(last.to_numpy(float))


def _draw(axes: Axes, curves: Sequence[tuple[str, Floats]]) -> None:
    for index, (label, shares) in enumerate(curves):
        percent = 100 * (np.arange(len(shares)) + 0.5) / len(shares)
        drawing.plain_line(axes, percent, shares, index, label)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("clients, least accurate first, %")
    axes.set_ylabel("accuracy on own examples")
