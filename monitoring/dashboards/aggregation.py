"""What rounds are made of, where their time goes, and whether compensation helps."""

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
    """Mean of the last minutes by method: that of one round is of few updates."""
    return f"max by (method) (avg_over_time({of(ERROR, '', measure=measure, **method)}[5m]))"


BESIDE_NONE = f"{_error('l1', method=Not('none'))} / on () group_left () max({_error('l1', method='none')})"

NOW = (
    Stat(
        title="Rounds a minute",
        description="Versions of the global model that are made.",
        unit="count:rounds/min",
        queries=(Query(f"60 * {ROUNDS}"),),
        decimals=1,
    ),
    Stat(
        title="Updates a round",
        description="How many were aggregated at a time. Only some triggers fix it.",
        unit="count:updates",
        queries=(Query(f"{AGGREGATED} / ({ROUNDS} > 0)"),),
        decimals=1,
    ),
    Stat(
        title="Updates pending",
        description="Accepted, and waiting for their round. When it grows without an end, rounds take longer than "
        "updates come.",
        unit="count:updates",
        queries=(Query(latest(catalogue.UPDATES_PENDING)),),
        decimals=0,
    ),
    Stat(
        title="Updates compensated",
        description="Share of the aggregated updates that were replaced by an estimate because they were stale.",
        unit="percentunit",
        queries=(Query(share(rate(catalogue.COMPENSATED_UPDATES), AGGREGATED)),),
        maximum=1,
        decimals=0,
    ),
    Stat(
        title="Error beside no compensation",
        description="L1 error of the estimates over that of the stale updates themselves; of several methods the best. "
        "Above 1 compensation does harm.",
        unit="short",
        queries=(Query(f"min({BESIDE_NONE})"),),
        steps=Steps("green", ((0.98, "yellow"), (1, "red"))),
        decimals=2,
    ),
    Stat(
        title="Rounds overflowed",
        description="Since the server started: their step left the range of float32 and was not taken. The learning "
        "rate is too high, or an update is far too long.",
        unit="count:rounds",
        queries=(Query(latest(catalogue.ROUNDS_OVERFLOWED)),),
        steps=Steps("green", ((1, "red"),)),
        decimals=0,
    ),
)

ROUND = (
    TimeSeries(
        title="Where the time of a round goes",
        description="Mean time by phase. Waiting for updates is the clients' time; what else there is, is the "
        "server's. Evaluation and checkpoints are spread over the rounds between them.",
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
        title="Phases, 95 %",
        description="Nineteen times of twenty a phase takes at most so long, when there is one. The axis shows powers "
        "of ten alike.",
        unit="s",
        queries=(Query(quantile(0.95, catalogue.ROUND_PHASE_DURATION, "phase"), "{{phase}}"),),
        minimum=None,
        log=True,
        colours=PHASES,
    ),
    over_time(
        catalogue.AGGREGATION_WEIGHT,
        title="Weights of updates over time",
        description="What share of its round an update had; the brighter, the more of them. One bright line is a "
        "policy that weighs all alike, a band one that turns stale or strange updates down.",
        unit="percentunit",
    ),
    quantiles(
        catalogue.AGGREGATION_WEIGHT,
        title="Weights: half, 95 % and 99 % of the updates",
        description="So much at most. An update that outweighs all others decides the round alone.",
        unit="percentunit",
        maximum=1,
    ),
)

NORMS = (
    TimeSeries(
        title="Norms of updates",
        description="Half and 99 % of the vectors of updates are at most so long, refused ones too; the axis shows "
        "powers of ten alike. A jump of all of them is a jump of the model.",
        unit="short",
        queries=(
            Query(quantile(0.5, catalogue.UPDATE_NORM, "vector"), "half, {{vector}}"),
            Query(quantile(0.99, catalogue.UPDATE_NORM, "vector"), "99 %, {{vector}}"),
        ),
        minimum=None,
        log=True,
    ),
    TimeSeries(
        title="Bound on norms",
        description="A longer vector is refused. The adaptive bound follows the median over clients.",
        unit="short",
        queries=(Query(latest(catalogue.UPDATE_NORM_BOUND, "vector"), "{{vector}}"),),
        minimum=None,
        log=True,
    ),
)

COMPENSATION = (
    TimeSeries(
        title="Error of estimates, L1",
        description="Mean distance of what was reckoned with from the updates that came to tell later; `none` is the "
        "stale update itself. The lowest line is the method to use.",
        unit="short",
        queries=(Query(_error("l1"), "{{method}}"),),
        colours=METHODS,
    ),
    TimeSeries(
        title="Error of estimates, cosine",
        description="1 - cos of the angle between them: 0 is the right direction, 1 none of it.",
        unit="short",
        queries=(Query(_error("cosine"), "{{method}}"),),
        colours=METHODS,
    ),
    TimeSeries(
        title="Error beside that of the stale update",
        description="The L1 error of a method over that of no compensation. Above 1 it does harm.",
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
        description="Replaced before the step because they were stale.",
        colours=METHODS,
        width=8,
        things="updates",
    ),
    rates_by(
        catalogue.COMPENSATION_FALLBACKS,
        "reason",
        title="Lesser compensation, by reason",
        description="Stale updates that got less than was asked for: the budget was used up, the device had no memory, "
        "the result was not finite, the model was kept no more, or a worker was lost.",
        width=8,
        things="updates",
    ),
    TimeSeries(
        title="Iterations of gradient inversion",
        description="A second, over all updates that are inverted: how busy the device is with it.",
        unit="count:iterations/s",
        queries=(Query(rate(catalogue.INVERSION_ITERATIONS), "iterations"),),
    ),
    TimeSeries(
        title="Iterations an inverted update",
        description="How long inversions go on. The compensator learns it, and the budget bounds it.",
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
    description="What rounds are made of, where their time goes, and whether compensation helps.",
    variables=(JOB, RUN, SERVER),
    subject=SERVER,
    rows=(Row("", NOW), Row("Rounds", ROUND), Row("Norms", NORMS), Row("Compensation", COMPENSATION)),
)
