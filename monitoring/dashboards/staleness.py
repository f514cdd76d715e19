"""How late updates are, why, and who loses by it."""

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
        title="Staleness, 95 %",
        description="Nineteen updates of twenty are at most so stale. The slow clients decide it.",
        unit="count:rounds",
        queries=(Query(quantile(0.95, STALENESS_OF)),),
        decimals=1,
    ),
    Stat(
        title="Fresh updates",
        description="Share of the updates that were computed from the model they were added to. 100 % under `sync`.",
        unit="percentunit",
        queries=(Query(share(rate(STALENESS_OF, part="bucket", le="0.0"), rate(STALENESS_OF, part="count"))),),
        maximum=1,
        decimals=0,
    ),
    Stat(
        title="Clients lost",
        description="Silent for longer than their lease. Their tasks go to nobody until they come back.",
        unit="short",
        queries=(Query(latest(catalogue.CLIENTS, state="lost")),),
        steps=Steps("green", ((1, "yellow"), (10, "red"))),
        decimals=0,
    ),
    Stat(
        title="Clients unavailable",
        description="They declined their task, until the next version.",
        unit="short",
        queries=(Query(latest(catalogue.CLIENTS, state="unavailable")),),
        decimals=0,
    ),
    Stat(
        title="Best less worst tenth",
        description="Accuracy of the model on the clients' own test examples: the tenth of the clients that it serves "
        "best, less the tenth that it serves worst. Where slow clients hold data of their own kind, staleness widens "
        "it.",
        unit="percentunit",
        queries=(Query(f"{latest(OWN, statistic='best_tenth')} - {latest(OWN, statistic='worst_tenth')}"),),
        steps=Steps("green", ((0.3, "yellow"), (0.6, "red"))),
        decimals=0,
    ),
)

LATE = (
    over_time(
        STALENESS_OF,
        title="Staleness of updates over time",
        description="How many updates were how stale; the brighter, the more. A band that moves up says that the slow "
        "clients fall behind.",
        unit="none",
        width=16,
        height=10,
    ),
    altogether(
        STALENESS_OF,
        title="Staleness of all updates shown",
        description="The same over the whole time shown. Each bar is a bucket, named by the most rounds that it takes.",
    ),
    quantiles(
        STALENESS_OF,
        title="Staleness: half, 95 % and 99 % of the updates",
        description="So stale at most. Half and mean tell of everyday updates, 99 % of the slowest clients. The bounds "
        "of the buckets lie apart, so between them it is an estimate.",
        unit="count:rounds",
    ),
    clients_by_state(),
)

FAIRNESS = (
    TimeSeries(
        title="Accuracy on the clients' own test examples",
        description="Mean of all clients, and of the tenths that the model serves best and worst. Only where "
        "evaluate_clients_every is set.",
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
        description="Of the newest evaluated version; of many classes the twenty that it gets wrong most. A class that "
        "only slow clients hold is the first to suffer.",
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
        description="Reading the model, training, encoding, on the client. The distance of 95 % from half is how "
        "different clients and tasks are.",
        unit="s",
        width=8,
    ),
    time_until_acknowledged(width=8),
    rates_by(
        catalogue.CLIENT_TASKS,
        "outcome",
        title="Tasks by outcome",
        description="Superseded ones were trained in vain, since a newer task came meanwhile.",
        colours={"trained": "green", "superseded": "yellow", "failed": "red"},
        width=8,
        things="tasks",
    ),
    TimeSeries(
        title="Sessions by state",
        description="As the clients see it: away is without a connection, greeting not welcomed yet.",
        unit="short",
        queries=(Query(f"sum by (state) ({of(catalogue.CLIENT_SESSIONS)})", "{{state}}"),),
        stacked=True,
        decimals=0,
        colours={"in": "green", "greeting": "yellow", "away": "red", "over": "#8e8e8e"},
    ),
    TimeSeries(
        title="Updates not acknowledged",
        description="Made, kept by the clients, and sent again until the server answers.",
        unit="count:updates",
        queries=(Query(latest(catalogue.CLIENT_UPDATES_KEPT), "updates"),),
        decimals=0,
    ),
)

STALENESS = Dashboard(
    uid="unstale-staleness",
    title="Unstale / Staleness and heterogeneity",
    description="How late updates are, why, and who loses by it.",
    variables=(JOB, RUN, SERVER, CLIENT),
    subject=SERVER,
    rows=(
        Row("", NOW),
        Row("How late updates are", LATE),
        Row("Whom the model serves", FAIRNESS),
        Row("Client processes", CLIENTS, folded=True),
    ),
)
