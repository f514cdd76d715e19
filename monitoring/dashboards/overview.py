"""Is it learning, how fast, and is anything wrong: every run at once."""

from monitoring.dashboards.dashboard import JOB, RUNS, SERVER, Dashboard, Row
from monitoring.dashboards.expressions import mean, named, of, quantile, rate
from monitoring.dashboards.panels import Column, Query, Stat, Steps, Table, TimeSeries
from monitoring.dashboards.shared import (
    IN_THE_RUN,
    clients_by_state,
    mean_staleness,
    updates_by_outcome,
    updates_rejected,
)
from unstale.metrics import catalogue

OF_A_RUN = "{{policy}} at {{instance}}"
EACH = ("job", "instance")
VERSION, ROUNDS = of(catalogue.MODEL_VERSION), of(catalogue.RUN_ROUNDS)
# Not a rate: where rounds take longer than its window, that is of no round or of one.
OF_A_ROUND = f"{of(catalogue.ROUND_DURATION, 'sum')} / ({of(catalogue.ROUND_DURATION, 'count')} > 0)"
DOWN = 'count(up{job=~"$job"} == 0) or vector(0)'
FIRING = 'count(ALERTS{alertname=~"Unstale.+", alertstate="firing"}) or vector(0)'

NOW = (
    Stat(
        title="Test accuracy",
        description="Test accuracy of the last evaluated version; the best of several runs.",
        unit="percentunit",
        queries=(Query(f"max({of(catalogue.TEST_ACCURACY)})"),),
        maximum=1,
        decimals=1,
        width=3,
    ),
    Stat(
        title="Rounds done",
        description="Versions made, of those that the run is to have.",
        unit="percentunit",
        queries=(Query(f"sum({VERSION}) / sum({ROUNDS})"),),
        maximum=1,
        decimals=0,
        width=3,
    ),
    Stat(
        title="Time left",
        description="Until the last round, at the mean pace since the server started; of several runs the longest.",
        unit="s",
        queries=(Query(f"max(({ROUNDS} - {VERSION}) * {OF_A_ROUND})"),),
        decimals=1,
        width=3,
    ),
    mean_staleness(width=3),
    Stat(
        title="Clients in the run",
        description="Share of the clients that are there and alive: neither absent, lost nor gone.",
        unit="percentunit",
        queries=(Query(f"sum({of(catalogue.CLIENTS, state=IN_THE_RUN)}) / sum({of(catalogue.CLIENTS)})"),),
        steps=Steps("red", ((0.5, "yellow"), (0.8, "green"))),
        maximum=1,
        decimals=0,
        width=3,
    ),
    updates_rejected(" Which reason, the dashboard of the wire tells.", width=3),
    Stat(
        title="Processes down",
        description="Servers, client processes and injectors that Prometheus cannot reach.",
        unit="short",
        queries=(Query(DOWN),),
        steps=Steps("green", ((1, "red"),)),
        decimals=0,
        width=3,
    ),
    Stat(
        title="Alerts firing",
        description="Of the rules that come with this. Each names the page that says what to do.",
        unit="short",
        queries=(Query(FIRING),),
        steps=Steps("green", ((1, "red"),)),
        decimals=0,
        width=3,
    ),
)

LEARNING = (
    TimeSeries(
        title="Test accuracy",
        description="Of the newest evaluated version. A step sideways is the time between two evaluations.",
        unit="percentunit",
        queries=(Query(named(of(catalogue.TEST_ACCURACY)), OF_A_RUN),),
        maximum=1,
        height=9,
    ),
    TimeSeries(
        title="Test loss",
        description="Mean cross-entropy on the test set, in nats. When it climbs while clients work, updates are too "
        "stale for the learning rate, or somebody sends what is wrong.",
        unit="short",
        queries=(Query(named(of(catalogue.TEST_LOSS)), OF_A_RUN),),
        decimals=2,
        height=9,
    ),
)

PACE = (
    TimeSeries(
        title="Rounds a minute",
        description="Versions of the global model that are made.",
        unit="count:rounds/min",
        queries=(Query(named(f"60 * {rate(catalogue.ROUND_DURATION, *EACH, part='count')}"), OF_A_RUN),),
        width=8,
    ),
    TimeSeries(
        title="Time of a round, 95 %",
        description="Nineteen rounds of twenty take at most so long, from one version to the next.",
        unit="s",
        queries=(Query(named(quantile(0.95, catalogue.ROUND_DURATION, *EACH)), OF_A_RUN),),
        width=8,
    ),
    TimeSeries(
        title="Mean staleness",
        description="How many versions too old updates are. It grows with the number of clients that work at a time, "
        "and with the difference between fast and slow ones.",
        unit="count:rounds",
        queries=(Query(named(f"({mean(catalogue.UPDATE_STALENESS, *EACH)})"), OF_A_RUN),),
        width=8,
    ),
    clients_by_state(),
    updates_by_outcome(),
)

RUNNING = Table(
    title="Runs",
    description="What each server runs. The name of a run leads to its staleness.",
    unit="short",
    queries=(
        Query(f"max by (job, instance, {', '.join(catalogue.RUN_INFO.labels)}) ({of(catalogue.RUN_INFO)})"),
        Query(f"max by (job, instance) ({VERSION})"),
        Query(f"max by (job, instance) ({of(catalogue.TEST_ACCURACY)})"),
    ),
    height=6,
    columns=(
        Column("run", "Run", link="unstale-staleness"),
        Column("instance", "Server"),
        Column("policy", "Policy"),
        Column("compensator", "Compensator"),
        Column("trigger", "Trigger"),
        Column("model", "Model"),
        Column("data", "Data"),
        Column("training", "Training"),
        Column("device", "Device"),
        Column("Value #B", "Version", unit="none"),
        Column("Value #C", "Accuracy", unit="percentunit"),
    ),
)

OVERVIEW = Dashboard(
    uid="unstale-overview",
    title="Unstale / Overview",
    description="Is it learning, how fast, and is anything wrong.",
    variables=(JOB, RUNS, SERVER),
    subject=SERVER,
    rows=(Row("", NOW), Row("Learning", LEARNING), Row("Pace", PACE), Row("Runs", (RUNNING,))),
)
