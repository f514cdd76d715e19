"""What several dashboards show alike: colours that mean something, and panels."""

from monitoring.dashboards.expressions import mean, of, quantile, rate
from monitoring.dashboards.panels import Query, TimeSeries
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
SHARES = {"half": "green", "95 %": "yellow", "99 %": "red", "mean": "blue"}
IN_THE_RUN = ("waiting", "working", "contributed", "unavailable")


def quantiles(metric: Metric, *, with_mean: bool = True) -> tuple[Query, ...]:
    """Of a histogram, and the mean."""
    found = [
        Query(quantile(share, metric), name)
        for share, name in ((0.5, "half"), (0.95, "95 %"), (0.99, "99 %"))
    ]
    return (*found, *([Query(mean(metric), "mean")] if with_mean else []))


def clients_by_state(*, width: int = 12, height: int = 8) -> TimeSeries:
    return TimeSeries(
        title="Clients by state",
        description="Working clients have a task; those that contributed wait for their round to close. Lost ones were "
        "silent for longer than their lease, which a network that is cut shows as.",
        unit="short",
        queries=(Query(f"sum by (state) ({of(catalogue.CLIENTS)})", "{{state}}"),),
        stacked=True,
        decimals=0,
        width=width,
        height=height,
        colours=CLIENT_STATES,
    )


def updates_by_outcome(*, width: int = 12, height: int = 8) -> TimeSeries:
    return TimeSeries(
        title="Updates by outcome",
        description="A duplicate was sent again because its acknowledgement was lost, and counts once. A rejected "
        "update counts for nothing.",
        unit="count:updates/s",
        queries=(Query(rate(catalogue.UPDATES, "outcome"), "{{outcome}}"),),
        stacked=True,
        width=width,
        height=height,
        colours=OUTCOMES,
    )
