"""How the clients' metrics are distributed, each client weighted by its examples. Pure.

Source: docs/methods/measures.md#metrics-over-clients
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, isfinite
from typing import NamedTuple

from unstale.metrics.named import in_order
from unstale.training.measured import MainMetric


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

    A percentile is the least value for which the clients up to it hold that share of the examples.
    """

    reports: int
    mean: float  # weighted by examples, as are the percentiles
    p10: float
    p50: float
    p90: float
    lowest: ClientValue
    highest: ClientValue
    worst: ClientValue | None  # one of these two for the main metric; None where no direction is known


def spreads(reports: Sequence[Report], main: MainMetric) -> dict[str, Spread]:
    """The distribution of each metric, the main one first. Values that are not finite are left out."""
    names = {name: 0.0 for report in reports for name in report.metrics}
    spreads = {name: _spread(name, reports, main) for name in in_order(names, main)}
    return {name: spread for name, spread in spreads.items() if spread is not None}


def means(spreads: Mapping[str, Spread]) -> dict[str, float]:
    """The mean of each metric."""
    return {name: spread.mean for name, spread in spreads.items()}


def _spread(name: str, reports: Iterable[Report], main: MainMetric) -> Spread | None:
    values = [
        (report.metrics[name], report.client_id, report.examples)
        for report in reports
        if isfinite(report.metrics.get(name, float("nan")))
    ]
    if not values:
        return None
    values.sort()
    total = sum(examples for *_, examples in values)
    sums = list(accumulate(examples for *_, examples in values))

    def percentile(percent: int) -> float:
        return next(value for (value, *_), upto in zip(values, sums, strict=True) if 100 * upto >= percent * total)

    lowest, highest = (ClientValue(client_id, value) for value, client_id, _ in (values[0], values[-1]))
    worst = None
    if name == main.name:
        worst = lowest if main.higher_is_better else highest
    return Spread(
        reports=len(values),
        mean=_mean([(value, examples / total) for value, _, examples in values]),
        p10=percentile(10),
        p50=percentile(50),
        p90=percentile(90),
        lowest=lowest,
        highest=highest,
        worst=worst,
    )


def _mean(shares: Sequence[tuple[float, float]]) -> float:
    """The sum of values times their shares, which are 1 in all; also of values near the largest float."""
    try:
        return fsum(value * share for value, share in shares)
    except OverflowError:
        largest = max(abs(value) for value, _ in shares)
        return largest * min(1.0, max(-1.0, fsum(value / largest * share for value, share in shares)))
