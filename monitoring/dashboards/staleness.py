"""Staleness of updates, its causes, and its effect on clients and classes."""

from monitoring.dashboards.dashboard import CLIENT, JOB, RUN, SERVER, Dashboard, Row
from monitoring.dashboards.expressions import latest, least, of, quantile, rate, share
from monitoring.dashboards.panels import Bars, Query, Stat, Steps, TimeSeries
from monitoring.dashboards.shared import (
    altogether,
    clients_by_state,
    mean_staleness,
    over_time,
    quantiles,
    rates_by,
    time_until_acknowledged,
)
from unstale.metrics import catalogue

STALENESS_OF = catalogue.UPDATE_STALENESS
OWN = catalogue.CLIENT_TEST_ACCURACY

NOW = (
    mean_staleness(),
    Stat(
        title="Staleness, 95th percentile",
        description="95 % of the updates are at most this stale. Slow clients determine it.",
        unit="count:rounds",
        queries=(Query(quantile(0.95, STALENESS_OF)),),
        decimals=1,
    ),
    Stat(
        title="Fresh updates",
        description="Share of updates that were computed from the version they were aggregated into. 100 % "
        "with `sync`.",
        unit="percentunit",
        queries=(Query(share(rate(STALENESS_OF, part="bucket", le="0.0"), rate(STALENESS_OF, part="count"))),),
        maximum=1,
        decimals=0,
    ),
    Stat(
        title="Clients lost",
        description="Clients without a message for longer than their lease. They get no tasks until they return.",
        unit="short",
        queries=(Query(latest(catalogue.CLIENTS, state="lost")),),
        steps=Steps("green", ((1, "yellow"), (10, "red"))),
        decimals=0,
    ),
    Stat(
        title="Clients unavailable",
        description="Clients that declined their task; available again at the next version.",
        unit="short",
        queries=(Query(latest(catalogue.CLIENTS, state="unavailable")),),
        decimals=0,
    ),
    Stat(
        title="Best minus worst tenth",
        description="Accuracy on the clients' own test examples: mean of the best tenth of clients minus "
        "that of the worst tenth. If slow clients have data of another kind, staleness "
        "increases it.",
        unit="percentunit",
        queries=(Query(f"{latest(OWN, statistic='best_tenth')} - {latest(OWN, statistic='worst_tenth')}"),),
        steps=Steps("green", ((0.3, "yellow"), (0.6, "red"))),
        decimals=0,
    ),
)

STALENESS_PANELS = (
    over_time(
        STALENESS_OF,
        title="Staleness of updates over time",
        description="Distribution of staleness; brighter is more updates. A band that rises: slow clients fall behind.",
        unit="none",
        width=16,
        height=10,
    ),
    altogether(
        STALENESS_OF,
        title="Staleness, all updates",
        description="Distribution of staleness over the selected time range. Each bar is a bucket, labelled"
        " with its upper bound in rounds.",
    ),
    quantiles(
        STALENESS_OF,
        title="Staleness: median, 95th and 99th percentile",
        description="The median describes usual updates, the 99th percentile those of the slowest clients. "
        "Values between bounds of buckets are interpolated.",
        unit="count:rounds",
    ),
    clients_by_state(),
)

FAIRNESS = (
    TimeSeries(
        title="Accuracy on the clients' own test examples",
        description="Mean over all clients, and over the best and the worst tenth. Only with evaluate_clients_every.",
        unit="percentunit",
        queries=(
            Query(latest(OWN, statistic="best_tenth"), "best tenth"),
            Query(latest(OWN, statistic="mean"), "mean"),
            Query(latest(OWN, statistic="worst_tenth"), "worst tenth"),
        ),
        maximum=1,
        colours={"best tenth": "green", "mean": "blue", "worst tenth": "red"},
    ),
    Bars(
        title="Accuracy by class",
        description="Accuracy of the last evaluated version by class; the twenty worst of many classes. A "
        "class that only slow clients hold degrades first.",
        unit="percentunit",
        queries=(Query(least(latest(catalogue.TEST_CLASS_ACCURACY, "class")), "{{class}}"),),
        maximum=1,
        decimals=0,
        by_value=True,
    ),
)

CLIENTS = (
    quantiles(
        catalogue.CLIENT_TRAINING,
        title="Training time of a task",
        description="Time on the client to read the model, train and encode. The distance between the 95th "
        "percentile and the median shows how different clients and tasks are.",
        unit="s",
        width=8,
    ),
    time_until_acknowledged(width=8),
    rates_by(
        catalogue.CLIENT_TASKS,
        "outcome",
        title="Tasks by outcome",
        description="Superseded: a newer task arrived during training, so the result was discarded. code-error: code "
        "of the user raised.",
        colours={"trained": "green", "superseded": "yellow", "failed": "red", "code-error": "orange"},
        width=8,
        things="tasks",
    ),
    TimeSeries(
        title="Sessions by state",
        description="State of the session in the clients. Away: no connection. Greeting: waits for the welcome.",
        unit="short",
        queries=(Query(f"sum by (state) ({of(catalogue.CLIENT_SESSIONS)})", "{{state}}"),),
        stacked=True,
        decimals=0,
        colours={"in": "green", "greeting": "yellow", "away": "red", "over": "#8e8e8e"},
    ),
    TimeSeries(
        title="Unacknowledged updates",
        description="Updates that clients store and send again until the server acknowledges them.",
        unit="count:updates",
        queries=(Query(latest(catalogue.CLIENT_UPDATES_KEPT), "updates"),),
        decimals=0,
    ),
)

STALENESS = Dashboard(
    uid="unstale-staleness",
    title="Unstale / Staleness and heterogeneity",
    description="Staleness of updates, its causes, and its effect on clients and classes.",
    variables=(JOB, RUN, SERVER, CLIENT),
    subject=SERVER,
    rows=(
        Row("", NOW),
        Row("Staleness", STALENESS_PANELS),
        Row("Fairness", FAIRNESS),
        Row("Client processes", CLIENTS, folded=True),
    ),
)
