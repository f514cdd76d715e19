"""Section on clients: their participation, weight and accuracy.

Source: FedAR (Jiang et al., 2024), docs/methods/measures.md#fairness-over-clients
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from unstale.metrics.spread import Spread as ClientSpread
from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, frame, keys
from unstale.report.measures import Measure, own_measures
from unstale.report.recorded import Run
from unstale.report.sections import columns
from unstale.report.sections.columns import cells, of_frame, of_spread, versions
from unstale.report.statistics import Floats, jain, spread

_FAIRNESS = (
    *(columns.GROUP, columns.RUNS),
    Column("clients", "clients", ",.0f"),
    Column("without_update_mean", "without an aggregated update", ",.1f"),
    Column("updates_jain", "evenness of updates", ".3f"),
    Column("weight_jain", "evenness of weight", ".3f"),
    Column("largest_share_ratio", "largest share", ".2%"),
    Column("even_share_ratio", "even share", ".2%"),
)
_OWN_ACCURACY = (
    *(columns.GROUP, columns.RUNS),
    Column("clients_mean", "clients that measured", ",.1f"),
    Column("measured_versions", "versions"),
    *of_spread("accuracy", "ratio", ".4f"),
    Column("over_clients_std_ratio", "std over clients", ".4f"),
    Column("over_clients_variance_points2", "variance, %²", ",.1f"),
    *(Column("worst_tenth_ratio", "worst tenth", ".4f"), Column("worst_tenth_std_ratio", "± std", ".4f")),
    *(Column("best_tenth_ratio", "best tenth", ".4f"), Column("best_tenth_std_ratio", "± std", ".4f")),
)
_CLIENTS = (
    *(columns.RUN, columns.CLIENT, Column("tasks", "tasks", ",")),
    *(Column("received", "updates", ","), Column("aggregated", "aggregated", ",")),
    Column("rejected", "rejected", ","),
    Column("weight_share_ratio", "share of weight", ".2%"),
    Column("staleness_mean_rounds", "mean staleness", ".2f"),
    Column("last_update_s", "last update at, s", ",.1f"),
)
_OWN_METRICS = (
    *(columns.RUN, Column("metric", "metric"), Column("clients", "clients", ",")),
    *(Column("mean", "mean", ".4f"), Column("p10", "p10", ".4f"), Column("p50", "median", ".4f")),
    *(Column("p90", "p90", ".4f"), Column("worst", "worst", ".4f"), Column("worst_client_id", "worst client", "d")),
)
ROWS_SHOWN = 20


def section(groups: Sequence[Group]) -> Section:
    every = [run for group in groups for run in group.runs]
    own = own_measures(every)
    clients = pd.concat([of_clients(run).assign(group=group.label) for group in groups for run in group.runs])
    runs = clients.run.nunique()
    return Section(
        name="clients",
        title="Fairness over clients",
        pictures=[*_share_pictures(groups, clients), *_own_pictures(groups, own[0])],
        tables=[
            of_frame(
                "fairness",
                "Fairness over clients, means over runs. Evenness is Jain's index: 1 if all clients have the same "
                "share, 1 / clients if one has all",
                _FAIRNESS,
                _fairness(clients),
            ),
            Table(
                "own_accuracy",
                "Accuracy over clients, each on its own test examples and at the last version that it measured. "
                "accuracy: mean over clients, and its spread over runs. Other columns are means over runs: std over "
                "clients with n - 1, variance with n in squared percentage points, mean and std of the worst and the "
                "best tenth of the clients",
                _OWN_ACCURACY,
                [row for group in groups if (row := _own_accuracy_row(group))],
            ),
            of_frame(
                "own_evaluations",
                "Every measurement of a client on its own test examples",
                (columns.RUN, columns.CLIENT, columns.VERSION, *(one.cell for one in own), columns.EXAMPLES),
                frame(groups, "own_evaluations"),
                rows_shown=0,
            ),
            *_own_metrics(every, own),
            of_frame(
                "clients",
                "Clients, by their number of aggregated updates",
                (*_CLIENTS, Column(f"own_{own[0].column}", f"{own[0].name} on own examples", ".4f")),
                clients,
                rows_shown=ROWS_SHOWN if runs == 1 else 0,
            ),
        ],
    )


def of_clients(run: Run) -> pd.DataFrame:
    """Return the table of a run's clients. Shares of weight: all rounds count equally."""
    updates, (own, *_) = run.updates, own_measures([run])
    clients_count = max(run.settings.clients, int(updates.client_id.max()) + 1 if len(updates) else 0, *run.tasks, 0)
    by_client = updates.groupby("client_id")
    weights = by_client.weight_share_ratio.sum()
    clients = pd.DataFrame(
        {
            "tasks": pd.Series(run.tasks, dtype=float),
            "received": by_client.size(),
            "aggregated": by_client.version.count(),
            "rejected": by_client.reason.count(),
            "weight_share_ratio": weights / weights.sum() if weights.any() else weights,
            "staleness_mean_rounds": by_client.staleness_rounds.mean().astype(float),
            "last_update_s": by_client.elapsed_s.max(),
            f"own_{own.column}": own.of_clients(run).last(),
        },
        index=pd.RangeIndex(clients_count, name="client_id"),
    ).reset_index()
    integers = dict.fromkeys(("tasks", "received", "aggregated", "rejected"), int)
    clients = clients.fillna({**dict.fromkeys(integers, 0), "weight_share_ratio": 0.0}).astype(integers)
    return clients.assign(run=run.name).sort_values("aggregated", ascending=False, kind="stable")


# --- shares of updates and of weight ---


def _fairness(clients: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each group: means over its runs."""
    by_run = clients.groupby(["group", "run"], sort=False).agg(
        clients=("client_id", "size"),
        without_update_mean=("aggregated", lambda aggregated: (aggregated == 0).sum()),
        updates_jain=("aggregated", jain),
        weight_jain=("weight_share_ratio", jain),
        largest_share_ratio=("weight_share_ratio", "max"),
    )
    by_group = by_run.groupby("group", sort=False)
    means = by_group.agg(lambda of_runs: spread(of_runs).mean)
    return means.assign(runs=by_group.size(), even_share_ratio=1 / means.clients).reset_index()


def _share_pictures(groups: Sequence[Group], clients: pd.DataFrame) -> Iterator[Picture]:
    for column, noun, title in (
        ("aggregated", "updates", "Participation"),
        ("weight_share_ratio", "weight", "Weight over clients"),
    ):
        by_run = dict(iter(clients.groupby("run")[column]))
        curves = [_shares([by_run[run.name] for run in group.runs]) for group in groups]
        drawn = [(group, curve) for group, curve in zip(groups, curves, strict=True) if curve is not None]
        if not drawn:
            continue
        largest = [f"{group.label}: the largest is {curve[0]:.1f} times the even share" for group, curve in drawn]
        mean = "; mean over runs." if any(len(group.runs) > 1 for group, _ in drawn) else "."
        yield Picture(
            name=f"{noun}_by_client",
            title=title,
            caption=f"Share of each client in the aggregated {noun}, as a multiple of the even share (1, dashed), in "
            f"falling order{mean}",
            alternative=f"Falling curves of the shares of clients. {'; '.join(largest)}.",
            draw=partial(
                drawing.multiples_of_even_share,
                lines=[(group.legend, np.arange(1, len(curve) + 1), curve) for group, curve in drawn],
                along="clients, largest share first",
                axis_label=f"{noun} / even share",
            ),
            keys=keys([group for group, _ in drawn]),
        )


def _shares(runs: Sequence[pd.Series]) -> Floats | None:
    """Return the clients' shares as multiples of the even share, in falling order, means over runs with a sum > 0.

    Only the largest shares, as many as the run with the fewest clients has. None if the sum is 0 in every run.
    """
    curves = [-np.sort(-run.to_numpy(float)) / run.mean() for run in runs if run.any()]
    if not curves:
        return None
    mean_N: Floats = np.mean([curve[: min(map(len, runs))] for curve in curves], axis=0)
    return mean_N


# --- accuracy on the clients' own test examples ---


def _own_accuracy_row(group: Group) -> tuple[Cell, ...]:
    fairness = [run.fairness for run in group.runs if run.fairness is not None]
    if not fairness:
        return ()
    means = {name: spread(values).mean for name, values in pd.DataFrame(fairness).items()}
    return (
        *(group.label, len(fairness), means["clients"]),
        versions(version for run in fairness for version in (run.oldest_version, run.newest_version)),
        *cells(spread([run.mean for run in fairness])),
        *(means["std"], 1e4 * means["variance"]),  # 1e4: squared percentage points
        *(means[name] for name in ("worst_tenth", "worst_tenth_std", "best_tenth", "best_tenth_std")),
    )


def _own_metrics(runs: Sequence[Run], own: Sequence[Measure]) -> Iterator[Table]:
    """Yield a table of the metrics over clients, if they are others than accuracy and loss."""
    rows = [
        (run.name, name, spread.reports, spread.mean, spread.p10, spread.p50, spread.p90, *_worst(spread))
        for run in runs
        for name, spread in run.client_metrics.items()
    ]
    if {one.name for one in own} - {"accuracy", "loss"}:
        yield Table(
            "own_metrics",
            "Metrics over clients, each on its own test examples and at the last version that it measured; mean and "
            "percentiles are weighted by examples, up to 5 times the median; metrics of at most a tenth are left out",
            _OWN_METRICS,
            rows,
        )


def _worst(spread: ClientSpread) -> tuple[Cell, Cell]:
    return (None, None) if spread.worst is None else (spread.worst.value, spread.worst.client_id)


def _own_pictures(groups: Sequence[Group], own: Measure) -> Iterator[Picture]:
    """Yield a picture if clients have measured the main metric."""
    measured = [(group, values) for group in groups if len(values := _own_values(group, own))]
    if not measured:
        return
    ranges = [
        f"{group.label}: from {accuracies[0]:.3f} to {accuracies[-1]:.3f}, median {np.median(accuracies):.3f}"
        for group, accuracies in measured
    ]
    plural = "accuracies" if own.name == "accuracy" else own.name
    pooled = "; all runs of a group together." if any(len(group.runs) > 1 for group, _ in measured) else "."

    def draw(axes: Axes) -> None:
        for index, (group, accuracies) in enumerate(measured):
            percent = 100 * (np.arange(len(accuracies)) + 0.5) / len(accuracies)
            drawing.plain_line(axes, percent, accuracies, index, group.legend)
        order = "least accurate" if own.name == "accuracy" else f"lowest {own.name}"
        axes.set(xlabel=f"clients, {order} first, %", xlim=(0, 100))
        axes.set(ylabel=f"{own.name} on own examples")
        if own.name == "accuracy":
            axes.set_ylim(0, 1.02)

    yield Picture(
        name=f"own_{own.word}",
        title=f"{own.title} over clients",
        caption=f"{own.title} of the model on each client's own test examples, at the last version that the client "
        f"measured, in rising order{pooled}",
        alternative=f"Rising curves of the {plural} of clients. {'; '.join(ranges)}.",
        draw=draw,
        keys=keys([group for group, _ in measured]),
    )


def _own_values(group: Group, own: Measure) -> Floats:
    """Return the last value of every client of every run that has one, in rising order."""
    values = np.concatenate([own.of_clients(run).last().to_numpy(float) for run in group.runs])
    return np.sort(values[~np.isnan(values)])
