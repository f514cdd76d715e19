"""Numbers of a record, one function each; `table_metrics` names and formats them. Pure.

Each takes a record and, last, the reference record, which most ignore, and returns None where the record is too short
or has no finite number.
Source: docs/methods/measures.md#measures

Legend: E evaluations.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from math import ceil, inf, isfinite, isnan, log
from statistics import fmean, pstdev

from unstale.metrics.fairness import OwnEvaluations
from unstale_papers.record import Record
from unstale_papers.statistics import TTest, t_test

LAST = 10  # evaluations at the end of a run, and epochs of a moving average
NEAR_CHANCE = 0.02  # of accuracy: a model so near 1 / C has not learned
FEW_HEAVY = 5  # "almost always at most 5", of WKAFL's Figure 2a
UNCHANGED = "none"  # the method of an error that is a stale update's own
INVERTED = "gradient-inversion"  # that of an estimate by inversion

Pair = tuple[Record, Record | None]
"""A record and its reference, of the same seed."""


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean, or None without values and where one is not finite."""
    finite = [_finite(value) for value in values]
    return fmean(value for value in finite if value is not None) if finite and None not in finite else None


def _of_rounds(record: Record, values_E: Sequence[float | None]) -> list[tuple[int, float | None]]:
    """Versions after 0, which no round made, and their measured values."""
    return [pair for pair in zip(record.version_E, values_E, strict=False) if pair[0] > 0]


def _of_class(record: Record, label: int) -> list[tuple[int, float | None]]:
    """As `_of_rounds`, for one class; None where the record lacks the class."""
    return _of_rounds(record, [row[label] if label < len(row) else None for row in record.class_accuracy_EC])


# Accuracy


def final(record: Record, _: Record | None = None) -> float | None:
    """Mean of the last 10 evaluations, or of all if fewer."""
    return _mean(accuracy for _, accuracy in _of_rounds(record, record.accuracy_E)[-LAST:])


def final_of_main(record: Record, _: Record | None) -> float | None:
    """As `final`, for the main metric."""
    return _mean(value for _, value in _of_rounds(record, record.main[1])[-LAST:])


def final_of_class(label: int, record: Record, _: Record | None) -> float | None:
    """As `final`, for one class."""
    return _mean(accuracy for _, accuracy in _of_class(record, label)[-LAST:])


def of_last_fifth(record: Record, _: Record | None) -> float | None:
    """Mean of the evaluations of the last fifth of the rounds."""
    curve = _of_rounds(record, record.accuracy_E)
    return _mean(accuracy for version, accuracy in curve if version > 0.8 * curve[-1][0])


def best(record: Record, _: Record | None) -> float | None:
    """Maximum of the finite evaluations."""
    finite = (_finite(accuracy) for _, accuracy in _of_rounds(record, record.accuracy_E))
    return max((accuracy for accuracy in finite if accuracy is not None), default=None)


def stability(base: float | None, record: Record, _: Record | None) -> float | None:
    """Standard deviation, with n, of the logarithms of the last 10 accuracies. base: of the logarithm, None for the
    natural one. None with fewer evaluations, with an accuracy of 0, which has no logarithm, and where they are chance
    on average, to 2 percentage points: a model that says the same of all examples is no stable one. Chance is 1 / C;
    a record without accuracies of classes does not tell it.
    """
    last = [accuracy for _, accuracy in _of_rounds(record, record.accuracy_E)[-LAST:]]
    there = [accuracy for accuracy in last if accuracy is not None and 0 < accuracy < inf]
    classes = len(record.class_accuracy_EC[-1]) if record.class_accuracy_EC else 0
    if len(there) < LAST or (classes and abs(fmean(there) - 1 / classes) <= NEAR_CHANCE):
        return None
    logs = [log(accuracy) for accuracy in there]
    return pstdev(logs) / (log(base) if base else 1)


# Speed


def rounds_to(target: float, record: Record, _: Record | None = None) -> float | None:
    """First evaluated version with an accuracy of `target`, a share; None where there is none."""
    reached = (
        version for version, accuracy in zip(record.version_E, record.accuracy_E, strict=False) if accuracy >= target
    )
    return next(reached, None)


def averaged_rounds_to(target: float, record: Record, _: Record | None) -> float | None:
    """First evaluated version at which the mean of the last 10 evaluations is `target`, a share; None where there is
    none, or one of the ten is no number.
    """
    curve = _of_rounds(record, record.accuracy_E)
    ends = range(LAST, len(curve) + 1)
    means = ((curve[end - 1][0], _mean(value for _, value in curve[end - LAST : end])) for end in ends)
    return next((version for version, mean in means if mean is not None and mean >= target), None)


def speedup(target: float, record: Record, reference: Record | None) -> float | None:
    """Rounds of the reference to `target` over those of the record; None where one does not reach it."""
    rounds = rounds_to(target, record)
    against = rounds_to(target, reference) if reference is not None else None
    return against / rounds if rounds and against else None


def time_to_match(label: int, record: Record, reference: Record | None) -> float | None:
    """First version at which the moving average of a class reaches the reference's final one; None if never.

    The reference itself takes its whole run by definition, though it may have reached the value before;
    `first_passage` has no such exception.
    """
    wanted = [] if reference is None else _moving_average(_of_class(reference, label))
    if wanted and wanted[-1][1] is not None and _moving_average(_of_class(record, label)) == wanted:
        return wanted[-1][0]
    return first_passage(label, record, reference)


def first_passage(label: int, record: Record, reference: Record | None) -> float | None:
    """First version at which the moving average of a class reaches the reference's final one, also for the reference
    itself; None if never.
    """
    wanted = [] if reference is None else _moving_average(_of_class(reference, label))
    target = wanted[-1][1] if wanted else None
    if target is None:
        return None
    averages = _moving_average(_of_class(record, label))
    return next((version for version, mean in averages if mean is not None and mean >= target), None)


def _moving_average(curve: Sequence[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
    """Mean over the evaluations of the last 10 rounds, from version 10 on."""
    return [
        (version, _mean(value for at, value in curve[max(0, place + 1 - LAST) : place + 1] if at > version - LAST))
        for place, (version, _) in enumerate(curve)
        if version >= LAST
    ]


# Clients and updates


def of_clients(figure: str, factor: float, record: Record, _: Record | None) -> float | None:
    """A field of `Fairness` over the clients' own test examples, times `factor`."""
    accuracies = [accuracy for accuracy in record.client_accuracy_N if accuracy is not None]
    if not all(map(isfinite, accuracies)):
        return None
    own = OwnEvaluations(every=1)
    for client_id, accuracy in enumerate(accuracies):
        own.answered(client_id, 1, {"accuracy": accuracy})
    return None if own.fairness is None else _finite(factor * getattr(own.fairness, figure))


def average_staleness(record: Record, _: Record | None) -> float | None:
    """tau_ave: mean over rounds."""
    return _mean(record.staleness_R)


def aggregated(record: Record, _: Record | None) -> float | None:
    """N_ave: mean over rounds."""
    return _mean(record.counted_R)


def few_heavy(record: Record, _: Record | None) -> float | None:
    """Share of the rounds in which at most 5 updates weigh more than 0.1."""
    return _mean(heavy <= FEW_HEAVY for heavy in record.heavy_R)


# Losses and errors


def training_loss(record: Record, _: Record | None) -> float | None:
    """Mean over the last tenth of the rounds, without empty ones, whose loss is nan."""
    losses = record.training_loss_R
    last = losses[len(losses) - ceil(len(losses) / 10) :]
    return _mean(loss for loss in last if not isnan(loss))


def loss_of_all(record: Record, _: Record | None) -> float | None:
    """The last measured loss over all training examples."""
    measured = record.found.get("training_loss", [])
    return _finite(measured[-1][1]) if measured else None


def compensation_error(place: int, unchanged: bool, record: Record, _: Record | None) -> float | None:
    """Mean over the stale clients of a round, then over rounds. place: of the error in an entry of `Record.errors`.
    unchanged: as in `errors_of`.
    """
    return _mean(
        _mean(float(one[place]) for one in of_round)
        for _, of_round in groupby(errors_of(record, unchanged=unchanged), lambda one: one[0])
    )


def errors_of(record: Record, *, unchanged: bool) -> list[tuple[int, str, float, float]]:
    """Errors of the stale updates or of their estimates, by version. A run that inverts also records the first-order
    compensation of each update, which is not its estimate and left out.
    """
    estimates = {one[1] for one in record.errors} - {UNCHANGED}
    methods = {UNCHANGED} if unchanged else estimates & {INVERTED} or estimates
    return sorted((one for one in record.errors if one[1] in methods), key=lambda one: one[0])


def found(name: str, record: Record, _: Record | None) -> float | None:
    """The result of a measurement under that name."""
    number = record.found.get(name)
    return _finite(float(number)) if isinstance(number, int | float) else None


# Methods against each other


def p_of(test: Callable[[Sequence[tuple[Record, Record]]], TTest | None], pairs: Sequence[Pair]) -> float | None:
    """p of a test over the complete pairs."""
    found = test([(ours, theirs) for ours, theirs in pairs if theirs is not None])
    return None if found is None else found.p


def over_seeds_of_finals(pairs: Sequence[tuple[Record, Record]]) -> TTest | None:
    """The paired t-test of two methods' final accuracies, a pair for each seed."""
    finals = [(final(ours), final(theirs)) for ours, theirs in pairs]
    return t_test([ours - theirs for ours, theirs in finals if ours is not None and theirs is not None])


def ahead(record: Record, reference: Record | None) -> float | None:
    """Final accuracy less that of the reference, points; None for the reference itself."""
    ours, theirs = final(record), final(reference) if reference is not None else None
    return None if ours is None or theirs is None or record is reference else 100 * (ours - theirs)
