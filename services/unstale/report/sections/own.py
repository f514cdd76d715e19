"""How well one model serves every client: accuracies that clients measured on their own test examples.

Source: FedAR (Jiang et al., 2024), docs/methods/measures.md#fairness-over-clients
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Table
from unstale.report.groups import Group, keys
from unstale.report.recorded import Floats, Run
from unstale.report.sections.columns import CLIENT, GROUP, RUN, RUNS, VERSION, cells, of_spread
from unstale.report.statistics import spread

_OVER_CLIENTS = (
    *(GROUP, RUNS),
    Column(name="clients_mean", head="clients that measured", form=",.1f"),
    Column(name="measured_versions", head="versions"),
    *of_spread("accuracy", "ratio", ".4f"),
    Column(name="over_clients_std_ratio", head="std over clients", form=".4f"),
    Column(name="over_clients_variance_points2", head="variance, %²", form=",.1f"),
    Column(name="worst_tenth_ratio", head="worst tenth", form=".4f"),
    Column(name="worst_tenth_std_ratio", head="± std", form=".4f"),
    Column(name="best_tenth_ratio", head="best tenth", form=".4f"),
    Column(name="best_tenth_std_ratio", head="± std", form=".4f"),
)
_EVERY = (
    *(RUN, CLIENT, VERSION),
    Column(name="accuracy_ratio", head="accuracy", form=".4f"),
    Column(name="loss_nats", head="loss, nats", form=".4f"),
    Column(name="num_examples", head="examples", form=","),
)


def tables(groups: Sequence[Group]) -> list[Table]:
    """Without a row where nobody was asked."""
    return [
        Table(
            name="own_accuracy",
            caption="Accuracy over clients, each on test examples of its own and at the last version that it measured. "
            "The first figures are of the mean over clients, the others means over runs: std over clients with n - 1, "
            "variance with n in squared percentage points, mean and std of the worst and the best tenth of the clients",
            columns=_OVER_CLIENTS,
            rows=[row for group in groups for row in _row(group)],
        ),
        Table(
            name="own_evaluations",
            caption="Every measurement of a client on its own test examples",
            columns=_EVERY,
            rows=[row for group in groups for run in group.runs for row in _every(run)],
            rows_shown=0,
        ),
    ]


def pictures(groups: Sequence[Group]) -> list[Picture]:
    """None where nobody was asked."""
    known = [(group, shares) for group in groups if len(shares := _pooled(group))]
    if not known:
        return []
    said = [
        f"{group.label}: from {shares[0]:.3f} to {shares[-1]:.3f}, median {np.median(shares):.3f}"
        for group, shares in known
    ]
    several = any(len(group.runs) > 1 for group, _ in known)
    return [
        Picture(
            name="own_accuracy",
            title="Accuracy over clients",
            caption="Accuracy of the model on each client's own test examples, at the last version that the client "
            "measured, clients in order of it" + ("; of all runs of a group together." if several else "."),
            alternative=f"Rising curves of the accuracies of clients. {'; '.join(said)}.",
            draw=partial(
                _draw,
                shares=[shares for _, shares in known],
                labels=[group.legend for group, _ in known],
            ),
            keys=keys([group for group, _ in known]),
        )
    ]


def _row(group: Group) -> list[tuple[Cell, ...]]:
    of = [run.own.fairness for run in group.runs if run.own.fairness is not None]
    if not of:
        return []
    versions = (min(one.oldest_version for one in of), max(one.newest_version for one in of))
    return [
        (
            group.label,
            len(of),
            spread([one.clients for one in of]).mean,
            " to ".join(str(version) for version in dict.fromkeys(versions)),
            *cells(spread([one.mean for one in of])),
            spread([one.std for one in of]).mean,
            1e4 * spread([one.variance for one in of]).mean,
            *(
                spread([getattr(one, tenth) for one in of]).mean
                for tenth in ("worst_tenth", "worst_tenth_std", "best_tenth", "best_tenth_std")
            ),
        )
    ]


def _every(run: Run) -> list[tuple[Cell, ...]]:
    return [
        (run.name, row.client_id, row.version, row.accuracy, row.loss, row.examples)
        for row in run.own.answers
    ]


def _pooled(group: Group) -> Floats:
    """The last accuracy of every client of every run, rising."""
    return np.sort([share for run in group.runs for share in run.own.last.values()]).astype(np.float64)


def _draw(axes: Axes, shares: Sequence[Floats], labels: Sequence[str]) -> None:
    for place, (of, label) in enumerate(zip(shares, labels, strict=True)):
        style = drawing.Style(place=place)
        axes.plot(
            drawing.thinned(100 * (np.arange(len(of)) + 0.5) / len(of)),
            drawing.thinned(of),
            color=style.colour,
            linestyle=style.line,
            marker=style.marker if len(of) <= drawing.DOTS_MAX else "",
            markersize=4,
            linewidth=1.7,
            label=label,
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("clients, the least accurate first, %")
    axes.set_ylabel("accuracy on own examples")
