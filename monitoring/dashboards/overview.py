"""Accuracy, speed and health of all runs."""

from monitoring.dashboards.dashboard import JOB, RUNS, SERVER, Dashboard, Row
from monitoring.dashboards.expressions import mean, most, named, of, quantile, rate
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
# Not a rate: if rounds take longer than its window, a rate covers at most one round.
OF_A_ROUND = f"{of(catalogue.ROUND_DURATION, 'sum')} / ({of(catalogue.ROUND_DURATION, 'count')} > 0)"
MEASURED = ("central", "clients", "training")
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
        title="Rounds completed",
        description="Completed rounds, as a share of all rounds of the run.",
        unit="percentunit",
        queries=(Query(f"sum({VERSION}) / sum({ROUNDS})"),),
        maximum=1,
        decimals=0,
        width=3,
    ),
    Stat(
        title="Time left",
        description="Time until the last round, at the mean speed since the server started; the longest of "
        "several runs.",
        unit="s",
        queries=(Query(f"max(({ROUNDS} - {VERSION}) * {OF_A_ROUND})"),),
        decimals=1,
        width=3,
    ),
    mean_staleness(width=3),
    Stat(
        title="Clients in the run",
        description="Share of clients that are connected and active: neither absent, lost nor left.",
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
        description="Alerts of the included rules. Each links to its runbook.",
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
        description="Test accuracy of the last evaluated version; constant between two evaluations.",
        unit="percentunit",
        queries=(Query(named(of(catalogue.TEST_ACCURACY)), OF_A_RUN),),
        maximum=1,
        height=9,
    ),
    TimeSeries(
        title="Test loss",
        description="Mean cross-entropy on the test set, in nats. If it increases while clients work, "
        "updates are too stale for the learning rate, or a client sends wrong updates.",
        unit="short",
        queries=(Query(named(of(catalogue.TEST_LOSS)), OF_A_RUN),),
        decimals=2,
        height=9,
    ),
    TimeSeries(
        title="Metrics by name",
        description="Metrics of the objective or of a user's own code: on the test set (central), and means over the "
        "clients' own test examples (clients) and over their training (training).",
        unit="short",
        queries=(Query(most(of(catalogue.METRIC, split=MEASURED)), "{{instance}} {{name}}, {{split}}"),),
        minimum=None,
        width=24,
        height=9,
    ),
)

PACE = (
    TimeSeries(
        title="Rounds per minute",
        description="New versions of the global model.",
        unit="count:rounds/min",
        queries=(Query(named(f"60 * {rate(catalogue.ROUND_DURATION, *EACH, part='count')}"), OF_A_RUN),),
        width=8,
    ),
    TimeSeries(
        title="Duration of a round, 95th percentile",
        description="95 % of the rounds take at most this time, from one version to the next.",
        unit="s",
        queries=(Query(named(quantile(0.95, catalogue.ROUND_DURATION, *EACH)), OF_A_RUN),),
        width=8,
    ),
    TimeSeries(
        title="Mean staleness",
        description="Mean number of versions by which updates are late. It grows with the number of clients"
        " that work at a time, and with the difference between fast and slow clients.",
        unit="count:rounds",
        queries=(Query(named(f"({mean(catalogue.UPDATE_STALENESS, *EACH)})"), OF_A_RUN),),
        width=8,
    ),
    clients_by_state(),
    updates_by_outcome(),
)

RUNNING = Table(
    title="Runs",
    description="The run of each server. Click the name of a run for its staleness.",
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
    description="Accuracy, speed and health of all runs.",
    variables=(JOB, RUNS, SERVER),
    subject=SERVER,
    rows=(Row("", NOW), Row("Learning", LEARNING), Row("Pace", PACE), Row("Runs", (RUNNING,))),
)
