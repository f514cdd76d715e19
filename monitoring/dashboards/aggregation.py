"""Composition and duration of rounds, and the effect of compensation."""

from monitoring.dashboards.dashboard import JOB, RUN, SERVER, Dashboard, Row
from monitoring.dashboards.expressions import Not, Wanted, latest, of, quantile, rate, share
from monitoring.dashboards.panels import Query, Stat, Steps, TimeSeries
from monitoring.dashboards.shared import PHASES, over_time, quantiles, rates_by
from unstale.metrics import catalogue

ROUNDS = rate(catalogue.ROUND_DURATION, part="count")
AGGREGATED = rate(catalogue.UPDATE_STALENESS, part="count")
METHODS = {"none": "#9fa7b3", "first-order": "blue", "gradient-inversion": "orange", "oracle": "green"}
ERROR = catalogue.COMPENSATION_ERROR


def _error(measure: str, **method: Wanted) -> str:
    """Mean of the last minutes by method, because one round has few updates."""
    return f"max by (method) (avg_over_time({of(ERROR, '', measure=measure, **method)}[5m]))"


BESIDE_NONE = f"{_error('l1', method=Not('none'))} / on () group_left () max({_error('l1', method='none')})"

NOW = (
    Stat(
        title="Rounds per minute",
        description="New versions of the global model.",
        unit="count:rounds/min",
        queries=(Query(f"60 * {ROUNDS}"),),
        decimals=1,
    ),
    Stat(
        title="Updates per round",
        description="Number of updates that a round aggregates. Some triggers fix it.",
        unit="count:updates",
        queries=(Query(f"{AGGREGATED} / ({ROUNDS} > 0)"),),
        decimals=1,
    ),
    Stat(
        title="Updates pending",
        description="Accepted updates that wait for their round. If the number grows without bound, updates"
        " arrive faster than rounds finish.",
        unit="count:updates",
        queries=(Query(latest(catalogue.UPDATES_PENDING)),),
        decimals=0,
    ),
    Stat(
        title="Updates compensated",
        description="Share of aggregated updates that were replaced by an estimate because they were stale.",
        unit="percentunit",
        queries=(Query(share(rate(catalogue.COMPENSATED_UPDATES), AGGREGATED)),),
        maximum=1,
        decimals=0,
    ),
    Stat(
        title="Error relative to no compensation",
        description="L1 error of the estimates divided by that of the stale updates; the best of several "
        "methods. Above 1, compensation increases the error.",
        unit="short",
        queries=(Query(f"min({BESIDE_NONE})"),),
        steps=Steps("green", ((0.98, "yellow"), (1, "red"))),
        decimals=2,
    ),
    Stat(
        title="Rounds overflowed",
        description="Since the server started: rounds whose step exceeded float32, so that the model stayed"
        " as it was. The learning rate is too high, or the norm of an update is.",
        unit="count:rounds",
        queries=(Query(latest(catalogue.ROUNDS_OVERFLOWED)),),
        steps=Steps("green", ((1, "red"),)),
        decimals=0,
    ),
)

ROUND = (
    TimeSeries(
        title="Duration of a round by phase",
        description="Mean duration of each phase. The server waits for the clients in `wait`, and computes "
        "in the others. Evaluation and checkpoints are averaged over all rounds.",
        unit="s",
        queries=(
            Query(
                f"{rate(catalogue.ROUND_PHASE_DURATION, 'phase', part='sum')}"
                f" / ignoring (phase) group_left () {ROUNDS}",
                "{{phase}}",
            ),
        ),
        stacked=True,
        colours=PHASES,
    ),
    TimeSeries(
        title="Phases, 95th percentile",
        description="95 % of the phases take at most this time. Logarithmic axis.",
        unit="s",
        queries=(Query(quantile(0.95, catalogue.ROUND_PHASE_DURATION, "phase"), "{{phase}}"),),
        minimum=None,
        log=True,
        colours=PHASES,
    ),
    over_time(
        catalogue.AGGREGATION_WEIGHT,
        title="Weights of updates over time",
        description="Weight of an update within its round; brighter is more updates. One bright line: the "
        "policy weighs all updates equally. A band: it reduces the weight of stale or unusual "
        "ones.",
        unit="percentunit",
    ),
    quantiles(
        catalogue.AGGREGATION_WEIGHT,
        title="Weights: median, 95th and 99th percentile",
        description="An update with a weight near 1 determines its round alone.",
        unit="percentunit",
        maximum=1,
    ),
)

NORMS = (
    TimeSeries(
        title="Numbers of the policy",
        description="What policy and compensator report of themselves after each round, such as the stage of wkafl, "
        "the utilities of fedhist, or the share of inverted updates.",
        unit="short",
        queries=(Query(latest(catalogue.METRIC, "name", split="policy"), "{{name}}"),),
        minimum=None,
        width=24,
    ),
    TimeSeries(
        title="Norms of updates",
        description="Median and 99th percentile of the norms of all updates, including refused ones. "
        "Logarithmic axis. A jump of both is a jump of the model.",
        unit="short",
        queries=(
            Query(quantile(0.5, catalogue.UPDATE_NORM, "vector"), "median, {{vector}}"),
            Query(quantile(0.99, catalogue.UPDATE_NORM, "vector"), "99 %, {{vector}}"),
        ),
        minimum=None,
        log=True,
    ),
    TimeSeries(
        title="Bound on norms",
        description="Updates with a larger norm are refused. The adaptive bound follows the median over clients.",
        unit="short",
        queries=(Query(latest(catalogue.UPDATE_NORM_BOUND, "vector"), "{{vector}}"),),
        minimum=None,
        log=True,
    ),
)

COMPENSATION = (
    TimeSeries(
        title="Error of estimates, L1",
        description="Mean distance of estimates from the true updates that arrived later; `none` is the "
        "stale update itself. The method with the lowest line is best.",
        unit="short",
        queries=(Query(_error("l1"), "{{method}}"),),
        colours=METHODS,
    ),
    TimeSeries(
        title="Error of estimates, cosine",
        description="1 - cosine of the angle between estimate and true update: 0 is the same direction, 1 "
        "is orthogonal.",
        unit="short",
        queries=(Query(_error("cosine"), "{{method}}"),),
        colours=METHODS,
    ),
    TimeSeries(
        title="Error relative to the stale update",
        description="L1 error of a method divided by that of no compensation. Above 1, the method increases the error.",
        unit="short",
        queries=(Query(BESIDE_NONE, "{{method}}"),),
        steps=Steps("transparent", ((1, "red"),)),
        lined=True,
        minimum=None,
        colours=METHODS,
        width=8,
    ),
    rates_by(
        catalogue.COMPENSATED_UPDATES,
        "method",
        title="Updates compensated, by method",
        description="Stale updates that were replaced before aggregation.",
        colours=METHODS,
        width=8,
        things="updates",
    ),
    rates_by(
        catalogue.COMPENSATION_FALLBACKS,
        "reason",
        title="Compensation fallbacks by reason",
        description="Stale updates with a cheaper compensation than configured: the budget was used up, the"
        " device had too little memory, the result was not finite, the base model was no longer"
        " stored, or a worker was lost.",
        width=8,
        things="updates",
    ),
    TimeSeries(
        title="Iterations of gradient inversion",
        description="Iterations per second over all inversions: the load of the device.",
        unit="count:iterations/s",
        queries=(Query(rate(catalogue.INVERSION_ITERATIONS), "iterations"),),
    ),
    TimeSeries(
        title="Iterations per inverted update",
        description="Length of inversions. The compensator adapts it, and the budget limits it.",
        unit="count:iterations",
        queries=(
            Query(
                f"{rate(catalogue.INVERSION_ITERATIONS)}"
                f" / ({rate(catalogue.COMPENSATED_UPDATES, method='gradient-inversion')} > 0)",
                "iterations an update",
            ),
        ),
    ),
)

AGGREGATION = Dashboard(
    uid="unstale-aggregation",
    title="Unstale / Aggregation and compensation",
    description="Composition and duration of rounds, and the effect of compensation.",
    variables=(JOB, RUN, SERVER),
    subject=SERVER,
    rows=(Row("", NOW), Row("Rounds", ROUND), Row("Norms", NORMS), Row("Compensation", COMPENSATION)),
)
