"""How evenly clients took part, how evenly what they sent counted, and how evenly they are served."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, keys
from unstale.report.recorded import Floats, Run
from unstale.report.sections import own
from unstale.report.sections.columns import CLIENT, GROUP, RUN, RUNS
from unstale.report.statistics import jain, spread

_FAIRNESS = (
    *(GROUP, RUNS),
    Column(name="clients", head="clients", form=",.0f"),
    Column(name="without_update_mean", head="nothing of theirs counted", form=",.1f"),
    Column(name="updates_jain", head="evenness of updates", form=".3f"),
    Column(name="weight_jain", head="evenness of weight", form=".3f"),
    Column(name="largest_share_ratio", head="largest share", form=".2%"),
    Column(name="even_share_ratio", head="even share", form=".2%"),
)
_CLIENTS = (
    *(RUN, CLIENT),
    Column(name="tasks", head="tasks", form=","),
    Column(name="received", head="updates", form=","),
    Column(name="aggregated", head="aggregated", form=","),
    Column(name="rejected", head="rejected", form=","),
    Column(name="weight_share_ratio", head="share of weight", form=".2%"),
    Column(name="staleness_mean_rounds", head="mean staleness", form=".2f"),
    Column(name="last_update_s", head="last update at, s", form=",.1f"),
    Column(name="own_accuracy_ratio", head="accuracy on own examples", form=".4f"),
)
ROWS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """By client, N of them. share_N: of the weight of all rounds, each round counting alike."""

    received_N: Floats
    aggregated_N: Floats
    rejected_N: Floats
    share_N: Floats
    staleness_N: Floats
    last_s_N: Floats


def section(groups: Sequence[Group]) -> Section:
    counts = {run.name: _counts(run) for group in groups for run in group.runs}
    runs = [run for group in groups for run in group.runs]
    tables = [
        Table(
            name="fairness",
            caption="Fairness over clients, means over runs. Evenness is Jain's index: 1 when all have the same, "
            "1 / clients when one has all",
            columns=_FAIRNESS,
            rows=[_fairness_row(group, [counts[run.name] for run in group.runs]) for group in groups],
        ),
        *own.tables(groups),
        Table(
            name="clients",
            caption="Clients, by what they sent that counted",
            columns=_CLIENTS,
            rows=[row for run in runs for row in _client_rows(run, counts[run.name])],
            rows_shown=ROWS_SHOWN if len(runs) == 1 else 0,
        ),
    ]
    pictures = [
        _ranked(active, counts, column, what, title)
        for column, what, title in (
            ("aggregated_N", "updates", "Participation"),
            ("share_N", "weight", "Weight over clients"),
        )
        if (
            active := [
                group
                for group in groups
                if any(getattr(counts[run.name], column).any() for run in group.runs)
            ]
        )
    ]
    pictures += own.pictures(groups)
    return Section(name="clients", title="Fairness over clients", pictures=pictures, tables=tables)


def _counts(run: Run) -> _Counts:
    of, taken = run.updates, run.updates.aggregated_U
    clients = max(run.clients, int(of.client_U.max(initial=-1)) + 1, max(run.tasks, default=-1) + 1)

    def by_client(
        chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], weights: Floats | None = None
    ) -> Floats:
        of_chosen = None if weights is None else weights[chosen]
        return np.bincount(of.client_U[chosen], of_chosen, minlength=clients).astype(np.float64)

    everything = np.ones(len(of.client_U), np.bool_)
    has_share = np.isfinite(of.share_U)
    aggregated_N, share_N = by_client(taken), by_client(has_share, of.share_U)
    late_N = by_client(taken, of.staleness_U.astype(np.float64))
    last_s_N = np.full(clients, -np.inf)
    np.maximum.at(last_s_N, of.client_U, of.elapsed_s_U)
    return _Counts(
        received_N=by_client(everything),
        aggregated_N=aggregated_N,
        rejected_N=by_client(np.array([bool(reason) for reason in of.reasons_U], np.bool_)),
        share_N=share_N / share_N.sum() if share_N.any() else share_N,
        staleness_N=np.divide(late_N, aggregated_N, out=np.full(clients, np.nan), where=aggregated_N > 0),
        last_s_N=np.where(np.isfinite(last_s_N), last_s_N, np.nan),
    )


def _fairness_row(group: Group, counts: Sequence[_Counts]) -> tuple[Cell, ...]:
    def mean(values: Sequence[float]) -> float:
        return spread(values).mean

    clients = mean([len(of.share_N) for of in counts])
    return (
        group.label,
        len(counts),
        clients,
        mean([float((of.aggregated_N == 0).sum()) for of in counts]),
        mean([jain(of.aggregated_N) for of in counts]),
        mean([jain(of.share_N) for of in counts]),
        mean([float(of.share_N.max()) for of in counts]),
        1 / clients,
    )


def _client_rows(run: Run, of: _Counts) -> list[tuple[Cell, ...]]:
    order = np.argsort(-of.aggregated_N, kind="stable").tolist()
    return [
        (
            run.name,
            client_id,
            run.tasks[client_id],
            int(of.received_N[client_id]),
            int(of.aggregated_N[client_id]),
            int(of.rejected_N[client_id]),
            float(of.share_N[client_id]),
            float(of.staleness_N[client_id]),
            float(of.last_s_N[client_id]),
            run.own.last.get(client_id),
        )
        for client_id in order
    ]


def _ranked(
    groups: Sequence[Group], counts: dict[str, _Counts], column: str, what: str, title: str
) -> Picture:
    curves = [_curve([getattr(counts[run.name], column) for run in group.runs]) for group in groups]
    labels = [group.legend for group in groups]
    said = [
        f"{group.label}: the first has {curve[0]:.1f} times an even part"
        for group, curve in zip(groups, curves, strict=True)
    ]
    return Picture(
        name=f"{what}_by_client",
        title=title,
        caption=f"Each client's part of all {what} that counted, as multiples of an even part (1, dashed), clients in "
        "order of it" + ("; mean over runs." if any(len(group.runs) > 1 for group in groups) else "."),
        alternative=f"Falling curves of the part that each client has. {'; '.join(said)}.",
        draw=partial(_draw, curves=curves, labels=labels, what=what),
        keys=keys(groups),
    )


def _curve(of_runs: Sequence[Floats]) -> Floats:
    """Parts of an even one, the greatest first, a mean over runs; as many clients as all of them have."""
    clients = min(map(len, of_runs))
    parts = [-np.sort(-of_run) / of_run.mean() for of_run in of_runs if of_run.any()]
    mean_N: Floats = np.mean([of_run[:clients] for of_run in parts], axis=0)
    return mean_N


def _draw(axes: Axes, curves: Sequence[Floats], labels: Sequence[str], what: str) -> None:
    for place, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        style = drawing.Style(place=place)
        axes.plot(
            drawing.thinned(np.arange(1, len(curve) + 1)),
            drawing.thinned(curve),
            color=style.colour,
            linestyle=style.line,
            marker=style.marker if len(curve) <= drawing.DOTS_MAX else "",
            markersize=4,
            linewidth=1.7,
            label=label,
        )
    axes.axhline(1, color=drawing.INK, linestyle=(0, (4, 4)), linewidth=0.8, zorder=1)
    axes.set_xlabel("clients, those with most first")
    axes.set_ylabel(f"{what}, times an even part")
    drawing.from_zero(axes)
    drawing.whole_numbers(axes)
