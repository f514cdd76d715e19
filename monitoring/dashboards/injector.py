"""Injected delays and faults of messages."""

from monitoring.dashboards import dashboard
from monitoring.dashboards.dashboard import JOB, Dashboard, Row
from monitoring.dashboards.expressions import latest, mean, rate
from monitoring.dashboards.panels import Query, Stat, Steps
from monitoring.dashboards.shared import altogether, by_process, over_time, quantiles, rates_by
from unstale.metrics import catalogue

TOXICS = {  # toxics that delay, change and lose
    "latency": "blue",
    "bandwidth": "dark-blue",
    "slow": "light-blue",
    "reorder": "purple",
    "duplicate": "yellow",
    "corrupt": "orange",
    "drop": "red",
    "dropout": "dark-red",
    "blackout": "#8e8e8e",
    "disconnect": "light-red",
}
MESSAGES = rate(catalogue.INJECTED_DELAY, part="count")

NOW = (
    Stat(
        title="Connections",
        description="Connections of clients through the injector; each has its own connection to the server.",
        unit="short",
        queries=(Query(latest(catalogue.INJECTOR_CONNECTIONS)),),
        decimals=0,
    ),
    Stat(
        title="Messages forwarded",
        description="Messages in both directions, with and without toxics.",
        unit="count:messages/s",
        queries=(Query(MESSAGES),),
        decimals=1,
    ),
    Stat(
        title="Faults",
        description="Messages that toxics changed, delayed or dropped; several toxics may apply to one message.",
        unit="count:faults/s",
        queries=(Query(f"{rate(catalogue.INJECTED_FAULTS)} or vector(0)"),),
        decimals=1,
    ),
    Stat(
        title="Mean delay",
        description="Mean delay of the forwarded messages.",
        unit="s",
        queries=(Query(mean(catalogue.INJECTED_DELAY)),),
    ),
    Stat(
        title="Messages in flight",
        description="Above 100,000 the injector pauses reading.",
        unit="count:messages",
        queries=(Query(latest(catalogue.INJECTOR_MESSAGES_IN_FLIGHT)),),
        steps=Steps("blue", ((50_000, "yellow"), (100_000, "red"))),
        decimals=0,
    ),
    Stat(
        title="Bytes in flight",
        description="Above injector.in_flight_bytes_max (default 256 MiB) the injector pauses reading.",
        unit="bytes",
        queries=(Query(latest(catalogue.INJECTOR_BYTES_IN_FLIGHT)),),
        steps=Steps("blue", ((128 * 1024**2, "yellow"), (256 * 1024**2, "red"))),
    ),
)

DELAYS = (
    over_time(
        catalogue.INJECTED_DELAY,
        title="Injected delay over time",
        description="Distribution of delays; brighter is more messages. Messages without a delay are in the"
        " lowest bucket.",
        unit="s",
        width=16,
        height=10,
    ),
    altogether(
        catalogue.INJECTED_DELAY,
        title="Injected delay, all messages",
        description="Distribution of delays over the selected time range. Each bar is a bucket, labelled "
        "with its upper bound in seconds.",
    ),
    quantiles(
        catalogue.INJECTED_DELAY,
        title="Injected delay: median, 95th and 99th percentile",
        description="Percentiles and mean.",
        unit="s",
    ),
    rates_by(
        catalogue.INJECTED_FAULTS,
        "toxic",
        title="Faults by toxic",
        description="Messages that each type of toxic changed, delayed or dropped; on the tcp layer: segments.",
        colours=TOXICS,
        things="faults",
    ),
)

IN_FLIGHT = (
    by_process(
        catalogue.INJECTOR_MESSAGES_IN_FLIGHT,
        title="Messages in flight",
        description="Messages that the injector has received and not forwarded yet.",
        unit="count:messages",
        decimals=0,
    ),
    by_process(
        catalogue.INJECTOR_BYTES_IN_FLIGHT,
        title="Bytes in flight",
        description="Bytes that the injector has received and not forwarded yet.",
        unit="bytes",
    ),
    by_process(
        catalogue.INJECTOR_CONNECTIONS,
        title="Connections",
        description="Connections of clients. A sawtooth: clients disconnect, or a blackout cuts them.",
        unit="count:connections",
        decimals=0,
    ),
    rates_by(
        catalogue.INJECTOR_REFUSED,
        "reason",
        title="Refused by reason",
        description="Connections refused because of their key (unknown-key, wrong-server-key, no-key) and "
        "messages with the client id of another key (not-the-owner). Empty without keys.",
        things="refusals",
    ),
)

INJECTOR = Dashboard(
    uid="unstale-injector",
    title="Unstale / Injector",
    description="Injected delays and faults.",
    variables=(JOB, dashboard.INJECTOR),
    subject=dashboard.INJECTOR,
    rows=(Row("", NOW), Row("Delays and faults", DELAYS), Row("Messages in flight and connections", IN_FLIGHT)),
)
