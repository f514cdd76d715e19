"""Colours with a meaning and panels that several dashboards share."""

from collections.abc import Mapping

from monitoring.dashboards.expressions import SHOWN, Wanted, mean, of, quantile, rate, share, spread
from monitoring.dashboards.panels import Heatmap, Query, Spread, Stat, Steps, TimeSeries
from unstale.metrics import catalogue
from unstale.metrics.catalogue import Metric

OUTCOMES = {"accepted": "green", "duplicate": "yellow", "rejected": "red"}
DIRECTIONS = {"received": "blue", "sent": "orange"}
PHASES = {
    "wait": "dark-blue",
    "compensate": "purple",
    "aggregate": "green",
    "evaluate": "yellow",
    "checkpoint": "orange",
}
CLIENT_STATES = {
    "working": "green",
    "contributed": "blue",
    "waiting": "purple",
    "unavailable": "yellow",
    "lost": "red",
    "left": "#8e8e8e",
    "absent": "#5a5a5a",
}
SHARES = {"median": "green", "95 %": "yellow", "99 %": "red", "mean": "blue"}
IN_THE_RUN = ("waiting", "working", "contributed", "unavailable")
LOW_DISK = Steps("red", ((1024**3, "yellow"), (10 * 1024**3, "green")))

# --- panels of one metric, by its kind ---


def over_time(metric: Metric, *, title: str, description: str, unit: str, width: int = 12, height: int = 8) -> Heatmap:
    """Distribution of a histogram over time."""
    queries = (Query(spread(metric), "{{le}}"),)
    return Heatmap(title=title, description=description, unit=unit, queries=queries, width=width, height=height)


def altogether(metric: Metric, *, title: str, description: str) -> Spread:
    """Distribution of a histogram over the whole displayed time."""
    return Spread(
        title=title,
        description=description,
        unit="short",
        queries=(Query(f"round({spread(metric, SHOWN)})", "{{le}}"),),
        width=8,
        height=10,
    )


def quantiles(
    metric: Metric,
    *,
    title: str,
    description: str,
    unit: str,
    width: int = 12,
    maximum: float | None = None,
    log: bool = False,
) -> TimeSeries:
    """Quantiles and mean of a histogram."""
    named = ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
    return TimeSeries(
        title=title,
        description=description,
        unit=unit,
        queries=(*(Query(quantile(part, metric), name) for part, name in named), Query(mean(metric), "mean")),
        minimum=None if log else 0,
        maximum=maximum,
        log=log,
        colours=SHARES,
        width=width,
    )


def rates_by(
    metric: Metric,
    by: str,
    *,
    title: str,
    description: str,
    things: str,
    colours: Mapping[str, str] | None = None,
    width: int = 12,
    **values: Wanted,
) -> TimeSeries:
    """Rates of a counter by a label, stacked. things: that it counts."""
    return TimeSeries(
        title=title,
        description=description,
        unit=f"count:{things}/s",
        queries=(Query(rate(metric, by, part="", **values), f"{{{{{by}}}}}"),),
        stacked=True,
        colours=colours or {},
        width=width,
    )


def by_process(
    metric: Metric, *, title: str, description: str, unit: str, decimals: int | None = None, width: int = 12
) -> TimeSeries:
    """A gauge, a line for each process."""
    return TimeSeries(
        title=title,
        description=description,
        unit=unit,
        queries=(Query(of(metric), "{{instance}}"),),
        decimals=decimals,
        width=width,
    )


# --- panels that are on more than one dashboard ---


def mean_staleness(*, width: int = 4) -> Stat:
    return Stat(
        title="Mean staleness",
        description="Versions between the base model of an update and its aggregation.",
        unit="count:rounds",
        queries=(Query(mean(catalogue.UPDATE_STALENESS)),),
        decimals=1,
        width=width,
    )


def updates_rejected(further: str = "", *, width: int = 4) -> Stat:
    return Stat(
        title="Updates rejected",
        description=f"Share of the updates that count for nothing.{further}",
        unit="percentunit",
        queries=(Query(share(rate(catalogue.UPDATES, outcome="rejected"), rate(catalogue.UPDATES))),),
        steps=Steps("green", ((0.01, "yellow"), (0.1, "red"))),
        maximum=1,
        decimals=1,
        width=width,
    )


def time_until_acknowledged(*, width: int = 12) -> TimeSeries:
    return quantiles(
        catalogue.CLIENT_ACKNOWLEDGE,
        title="Time until an update is acknowledged",
        description="From the first transmission: round trip, retransmissions, and the commit to disk.",
        unit="s",
        width=width,
    )


def disk() -> tuple[TimeSeries, TimeSeries]:
    """Used and free disk space of the runs."""
    return (
        TimeSeries(
            title="Disk use of the run",
            description="Journal, updates, checkpoints and partial transfers. It decreases when a checkpoint "
            "makes updates unnecessary.",
            unit="bytes",
            queries=(Query(of(catalogue.RUN_DISK), "{{instance}}"),),
            width=8,
        ),
        TimeSeries(
            title="Disk free",
            description="Free space of the file system of the run. Other programs may use it, too.",
            unit="bytes",
            queries=(Query(of(catalogue.RUN_DISK_FREE), "{{instance}}"),),
            steps=LOW_DISK,
            width=8,
        ),
    )


def clients_by_state() -> TimeSeries:
    return TimeSeries(
        title="Clients by state",
        description="Working: has a task. Contributed: waits until its round closes. Lost: no message for "
        "longer than its lease, for example after a network failure.",
        unit="short",
        queries=(Query(f"sum by (state) ({of(catalogue.CLIENTS)})", "{{state}}"),),
        stacked=True,
        decimals=0,
        colours=CLIENT_STATES,
    )


def updates_by_outcome() -> TimeSeries:
    return rates_by(
        catalogue.UPDATES,
        "outcome",
        title="Updates by outcome",
        description="Duplicate: sent again because the acknowledgement was lost; counts once. Rejected: not"
        " aggregated.",
        things="updates",
        colours=OUTCOMES,
    )
