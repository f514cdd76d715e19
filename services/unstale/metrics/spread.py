"""How the clients' metrics are distributed, each client weighted by its examples. Pure.

Source: docs/methods/measures.md#metrics-over-clients
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from math import fsum, isfinite, nan
from operator import mul
from typing import NamedTuple, TypeVar

from unstale.metrics.named import common_names
from unstale.training.measured import MainMetric

WEIGHT_MAX = 5  # largest weight of a client, in medians of the clients' examples
VALUE_MAX = 1e6  # largest magnitude of a value in a mean, in medians of the clients' magnitudes (at least 1)

_Number = TypeVar("_Number", int, float)


class Report(NamedTuple):
    """Metrics of one client, by name, over so many examples."""

    client_id: int
    examples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ClientValue:
    """The value of one client."""

    client_id: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Distribution of a metric over the reports of clients.

    A percentile is the least value for which the clients up to it hold that share of the weights.
    """

    reports: int
    mean: float  # weighted by examples up to `WEIGHT_MAX`, as are the percentiles; without values beyond `VALUE_MAX`
    p10: float
    p50: float
    p90: float
    lowest: ClientValue
    highest: ClientValue
    worst: ClientValue | None  # one of these two for the main metric; None where no direction is known


class _Values(NamedTuple):
    """The values of a metric, in the order of their reports."""

    values: list[float]
    weights: list[int]
    client_ids: list[int]


def spreads(reports: Sequence[Report], main: MainMetric) -> dict[str, Spread]:
    """The distribution of each common metric, the main one first. Values that are not finite are left out."""
    return {name: _spread(of, main if name == main.name else None) for name, of in _by_name(reports, main).items()}


def means(spreads: Mapping[str, Spread]) -> dict[str, float]:
    """The mean of each metric."""
    return {name: spread.mean for name, spread in spreads.items()}


def report_means(reports: Sequence[Report], main: MainMetric) -> dict[str, float]:
    """The means of `spreads`, in a fraction of its time."""
    return {name: _mean(of) for name, of in _by_name(reports, main).items()}


def report_mean(name: str, reports: Sequence[Report]) -> float | None:
    """The mean of one metric; None where no report has a finite value of it."""
    of = _values(name, reports)
    return _mean(of) if of.values else None


def _by_name(reports: Sequence[Report], main: MainMetric) -> dict[str, _Values]:
    names = common_names([report.metrics for report in reports], main)
    by_name = {name: _values(name, reports) for name in names}
    return {name: of for name, of in by_name.items() if of.values}


def _values(name: str, reports: Sequence[Report]) -> _Values:
    """The finite values of a metric. No weight is above `WEIGHT_MAX` medians, so that no client decides alone."""
    having = [report for report in reports if isfinite(report.metrics.get(name, nan))]
    weights = [report.examples for report in having]
    if having and max(weights) > WEIGHT_MAX * min(weights):  # no weight is above the bound otherwise
        weight_max = WEIGHT_MAX * _median(weights)
        weights = [min(weight, weight_max) for weight in weights]
    return _Values([report.metrics[name] for report in having], weights, [report.client_id for report in having])


def _spread(of: _Values, main: MainMetric | None) -> Spread:
    """main: None for another metric."""
    ordered = sorted(zip(of.values, of.client_ids, of.weights, strict=True))
    sums = list(accumulate(weight for *_, weight in ordered))

    def percentile(percent: int) -> float:
        return ordered[bisect_left(sums, percent * sums[-1], key=lambda upto: 100 * upto)][0]

    lowest, highest = (ClientValue(client_id, value) for value, client_id, _ in (ordered[0], ordered[-1]))
    worst = None
    if main is not None:
        worst = lowest if main.higher_is_better else highest
    return Spread(
        reports=len(ordered),
        mean=_mean(of),
        p10=percentile(10),
        p50=percentile(50),
        p90=percentile(90),
        lowest=lowest,
        highest=highest,
        worst=worst,
    )


def _mean(of: _Values) -> float:
    """The mean of the values up to `VALUE_MAX`: a client that diverged does not hide all others."""
    values, weights = of.values, of.weights
    if max(map(abs, values)) > VALUE_MAX:
        largest = VALUE_MAX * max(1.0, _median([abs(value) for value in values]))
        kept = [abs(value) <= largest for value in values]
        values, weights = list(compress(values, kept)), list(compress(weights, kept))
    total = sum(weights)
    shares = [weight / total for weight in weights]
    try:
        return fsum(map(mul, values, shares))
    except OverflowError:  # of a partial sum, for values near the largest float
        largest = max(map(abs, values))
        return largest * min(
            1.0, max(-1.0, fsum(value / largest * share for value, share in zip(values, shares, strict=True)))
        )


def _median(values: list[_Number]) -> _Number:
    """The median, of two the larger: fewer than half of the values cannot move it beyond the others."""
    return sorted(values)[len(values) // 2]
