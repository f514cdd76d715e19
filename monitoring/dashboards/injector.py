"""What is done to messages on purpose."""

from monitoring.dashboards import dashboard
from monitoring.dashboards.dashboard import JOB, Dashboard, Row
from monitoring.dashboards.expressions import latest, mean, rate
from monitoring.dashboards.panels import Query, Stat, Steps
from monitoring.dashboards.shared import altogether, by_process, over_time, quantiles, rates_by
from unstale.metrics import catalogue

TOXICS = {  # what holds up, what changes, what loses
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
        description="Of clients through the injector, each with one of its own to the server.",
        unit="short",
        queries=(Query(latest(catalogue.INJECTOR_CONNECTIONS)),),
        decimals=0,
    ),
    Stat(
        title="Messages let go",
        description="Both ways, whether something was done to them or not.",
        unit="count:messages/s",
        queries=(Query(MESSAGES),),
        decimals=1,
    ),
    Stat(
        title="Faults",
        description="Messages that were changed, held up or lost on purpose; one may meet several toxics.",
        unit="count:faults/s",
        queries=(Query(f"{rate(catalogue.INJECTED_FAULTS)} or vector(0)"),),
        decimals=1,
    ),
    Stat(
        title="Mean delay",
        description="For how long messages that went on were held up.",
        unit="s",
        queries=(Query(mean(catalogue.INJECTED_DELAY)),),
    ),
    Stat(
        title="Messages held",
        description="Beyond 100,000 it reads no more until some have left.",
        unit="count:messages",
        queries=(Query(latest(catalogue.INJECTOR_MESSAGES_IN_FLIGHT)),),
        steps=Steps("blue", ((50_000, "yellow"), (100_000, "red"))),
        decimals=0,
    ),
    Stat(
        title="Bytes held",
        description="Beyond injector.in_flight_bytes_max, 256 MiB unless set, it reads no more until some have left.",
        unit="bytes",
        queries=(Query(latest(catalogue.INJECTOR_BYTES_IN_FLIGHT)),),
        steps=Steps("blue", ((128 * 1024**2, "yellow"), (256 * 1024**2, "red"))),
    ),
)

DELAYS = (
    over_time(
        catalogue.INJECTED_DELAY,
        title="Injected delay over time",
        description="How many messages were held up for how long; the brighter, the more. Those that nothing delays "
        "are in the lowest bucket.",
        unit="s",
        width=16,
        height=10,
    ),
    altogether(
        catalogue.INJECTED_DELAY,
        title="Injected delay of all messages shown",
        description="The same over the whole time shown. A bar is a bucket, named by the most seconds that it takes.",
    ),
    quantiles(
        catalogue.INJECTED_DELAY,
        title="Injected delay: half, 95 % and 99 % of the messages",
        description="So long at most, and the mean.",
        unit="s",
    ),
    rates_by(
        catalogue.INJECTED_FAULTS,
        "toxic",
        title="Faults by toxic",
        description="Messages that each type of toxic changed, held up or lost; on the tcp layer pieces of bytes.",
        colours=TOXICS,
        things="faults",
    ),
)

HELD = (
    by_process(
        catalogue.INJECTOR_MESSAGES_IN_FLIGHT,
        title="Messages held",
        description="What the injector has taken in and not let go yet.",
        unit="count:messages",
        decimals=0,
    ),
    by_process(catalogue.INJECTOR_BYTES_IN_FLIGHT, title="Bytes held", description="The same in bytes.", unit="bytes"),
    by_process(
        catalogue.INJECTOR_CONNECTIONS,
        title="Connections",
        description="Of clients. A saw of them is a disconnect, or a blackout of bytes.",
        unit="count:connections",
        decimals=0,
    ),
    rates_by(
        catalogue.INJECTOR_REFUSED,
        "reason",
        title="Refused by reason",
        description="For want of the right key: connections by unknown-key, wrong-server-key or no-key, messages by "
        "not-the-owner. Nothing without keys.",
        things="refusals",
    ),
)

INJECTOR = Dashboard(
    uid="unstale-injector",
    title="Unstale / Injector",
    description="What is done to messages on purpose.",
    variables=(JOB, dashboard.INJECTOR),
    subject=dashboard.INJECTOR,
    rows=(Row("", NOW), Row("Delays and faults", DELAYS), Row("What it holds", HELD)),
)
