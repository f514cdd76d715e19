"""What one fact of a run adds to the metrics. Pure functions from facts to observations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from math import nan
from statistics import fmean
from typing import NamedTuple

from unstale.metrics import catalogue
from unstale.metrics.catalogue import Metric
from unstale.metrics.fairness import Fairness

VECTORS = ("update", "buffers", "extra")
"""The vectors of an update, in the order of `learner.row_checks.Norms`."""


class Observation(NamedTuple):
    """A counter grows by `value`, a gauge becomes it, a histogram counts it."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()  # in the metric's order
    further: Sequence[float] = ()  # values that the histogram counts after the first


def _count_by_label(metric: Metric) -> Callable[[str], Observation]:
    """Return a function that adds 1 to a counter with this value of its label."""
    return lambda label: Observation(metric, 1, (label,))


committed = partial(Observation, catalogue.JOURNAL_COMMIT)  # seconds
checkpoint_left_out = partial(Observation, catalogue.CHECKPOINTS_LEFT_OUT, 1)
quarantined = partial(Observation, catalogue.QUARANTINES, 1)
refused = _count_by_label(catalogue.MESSAGES_REFUSED)  # reason
given_back = _count_by_label(catalogue.TASKS_GIVEN_BACK)  # a reason of the wire, or `code-error`
handshake_refused = _count_by_label(catalogue.HANDSHAKES_REFUSED)  # reason
tracker_failed = _count_by_label(catalogue.TRACKER_FAILURES)  # name
connection_cut = _count_by_label(catalogue.CONNECTIONS_CUT)  # reason
computed = partial(Observation, catalogue.CLIENT_TRAINING)  # seconds
update_sent = partial(Observation, catalogue.CLIENT_UPDATES_SENT, 1)
welcomed = partial(Observation, catalogue.CLIENT_WELCOMES, 1)
task_ended = _count_by_label(catalogue.CLIENT_TASKS)  # `trained`, `declined`, `failed`, `code-error`, `superseded`


def run_begins(labels: tuple[str, ...], *, rounds: int, version: int) -> Iterable[Observation]:
    """A server starts a run or resumes it. labels: in the order of `catalogue.RUN_INFO`. version: the current one."""
    return (
        Observation(catalogue.RUN_INFO, 1, labels),
        Observation(catalogue.RUN_ROUNDS, rounds),
        Observation(catalogue.MODEL_VERSION, version),
        *measured({"accuracy": nan, "loss": nan}, ()),  # until something is; 0 would be a result
    )


def verdict(outcome: str, reason: str | None, payload_bytes: int) -> tuple[Observation, Observation]:
    """An update was answered. payload_bytes: what came in for it."""
    return _judged(outcome, reason), Observation(catalogue.UPDATE_BYTES, payload_bytes, ("received",))


def norms(measured: Sequence[Sequence[float | None]], bounds: Sequence[float | None] | None) -> Iterable[Observation]:
    """Updates were measured. measured, bounds: by vector, None for one that an update does not have."""
    for vector, bound, *values in zip(VECTORS, bounds or [None] * len(VECTORS), *measured, strict=True):
        there = [value for value in values if value is not None]
        yield from _at_once(catalogue.UPDATE_NORM, there, (vector,))
        if there and bound is not None:
            yield Observation(catalogue.UPDATE_NORM_BOUND, bound, (vector,))


def none_yet(metric: Metric, values: Sequence[str]) -> Iterable[Observation]:
    """Nothing was counted yet: a missing counter looks like one that does not exist. values: of its label."""
    return [Observation(metric, 0, (value,)) for value in values]


def model_sent(payload_bytes: int) -> Observation:
    """A model went out."""
    return Observation(catalogue.UPDATE_BYTES, payload_bytes, ("sent",))


def transfers(direction: str, active: int, waiting: int, resumed: int) -> tuple[Observation, ...]:
    """Transfers of a direction. resumed: since the last time."""
    return (
        Observation(catalogue.TRANSFERS, active, (direction, "active")),
        Observation(catalogue.TRANSFERS, waiting, (direction, "waiting")),
        Observation(catalogue.TRANSFER_RESUMES, resumed, (direction,)),
    )


def round_applied(
    version: int,
    staleness: Sequence[int],
    weights: Sequence[float],
    *,
    wait_s: float,
    compensate_s: float,
    aggregate_s: float,
    device_memory_bytes: int,
    overflowed: bool,
) -> Iterable[Observation]:
    """A round became a version. wait_s: from the version before until the trigger closed the round."""
    return (
        Observation(catalogue.ROUNDS_OVERFLOWED, overflowed),
        Observation(catalogue.MODEL_VERSION, version),
        Observation(catalogue.ROUND_DURATION, wait_s + compensate_s + aggregate_s),
        Observation(catalogue.ROUND_PHASE_DURATION, wait_s, ("wait",)),
        Observation(catalogue.ROUND_PHASE_DURATION, compensate_s, ("compensate",)),
        Observation(catalogue.ROUND_PHASE_DURATION, aggregate_s, ("aggregate",)),
        Observation(catalogue.DEVICE_MEMORY, device_memory_bytes),
        *_at_once(catalogue.UPDATE_STALENESS, staleness),
        *_at_once(catalogue.AGGREGATION_WEIGHT, weights),
    )


def compensated(
    methods: Mapping[str, int],
    iterations: int,
    fallbacks: Mapping[str, int],
    errors: Mapping[str, Sequence[tuple[float, float]]],
) -> Iterable[Observation]:
    """Stale updates of a round were compensated. methods, fallbacks: how many. errors: by method, L1 and cosine."""
    for method, number in methods.items():
        yield Observation(catalogue.COMPENSATED_UPDATES, number, (method,))
    for reason, number in fallbacks.items():
        yield Observation(catalogue.COMPENSATION_FALLBACKS, number, (reason,))
    for method, pairs in errors.items():
        for measure, values in zip(("l1", "cosine"), zip(*pairs, strict=True), strict=True):
            yield Observation(catalogue.COMPENSATION_ERROR, fmean(values), (method, measure))
    if iterations:
        yield Observation(catalogue.INVERSION_ITERATIONS, iterations)


def phase(name: str, seconds: float) -> Observation:
    """A phase of a round that is none of the others here took so long."""
    return Observation(catalogue.ROUND_PHASE_DURATION, seconds, (name,))


def measured(metrics: Mapping[str, float], class_accuracy: Sequence[float | None]) -> Iterable[Observation]:
    """The newest evaluation, of this process or of one before it: the metrics that have names of their own.

    class_accuracy: by class; None where the test set has none of it.
    """
    for name, metric in _OF_THE_TEST_SET.items():
        if name in metrics:
            yield Observation(metric, metrics[name])
    for label, share in enumerate(class_accuracy):
        if share is not None:
            yield Observation(catalogue.TEST_CLASS_ACCURACY, share, (str(label),))


def named(split: str, metrics: Mapping[str, float]) -> Iterable[Observation]:
    """Metrics by name. split: central, clients, training or policy. Those with names of their own are left out."""
    for name, value in metrics.items():
        if (split, name) not in _ELSEWHERE:
            yield Observation(catalogue.METRIC, value, (name, split))


_OF_THE_TEST_SET = {"accuracy": catalogue.TEST_ACCURACY, "loss": catalogue.TEST_LOSS}
_ELSEWHERE = {("central", "accuracy"), ("central", "loss"), ("clients", "accuracy")}


def own_evaluations(fairness: Fairness) -> Iterable[Observation]:
    """A client measured a model on its own test examples."""
    for statistic in ("mean", "std", "worst_tenth", "best_tenth"):
        yield Observation(catalogue.CLIENT_TEST_ACCURACY, getattr(fairness, statistic), (statistic,))


# --- of a client process ---


def update_answered(outcome: str, reason: str | None, seconds: float | None) -> Iterable[Observation]:
    """The server answered an update. seconds: since it was first sent by this process; None where it was not."""
    yield Observation(catalogue.CLIENT_UPDATES, 1, (outcome, reason or ""))
    if seconds is not None:
        yield Observation(catalogue.CLIENT_ACKNOWLEDGE, seconds)


def client_payload(direction: str, payload_bytes: int) -> Observation:
    """Payload went in or out."""
    return Observation(catalogue.CLIENT_BYTES, payload_bytes, (direction,))


@cache  # of the few that there are, one is made for every update
def _judged(outcome: str, reason: str | None) -> Observation:
    return Observation(catalogue.UPDATES, 1, (outcome, reason or ""))


def _at_once(metric: Metric, values: Sequence[float], labels: tuple[str, ...] = ()) -> Iterable[Observation]:
    """All values in one observation; none without any."""
    return [Observation(metric, values[0], labels, values[1:])] if values else []
