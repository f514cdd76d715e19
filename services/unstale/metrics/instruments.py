"""The catalogue as Prometheus reads it, and observations into it.

Numbers are plain while they are counted, and become Prometheus' families when they are scraped: an instrument of
prometheus_client's own takes ten calls and two locks for every number, several times for every update.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from unstale.metrics.catalogue import Metric
from unstale.metrics.observe import Observation

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


@dataclass(slots=True)
class Series:
    """The numbers of a metric with some values of its labels."""

    number: float = 0.0  # of a counter or a gauge; the sum of a histogram
    counts: list[int] = field(default_factory=list)  # of a histogram, by bucket, the last one for more
    ask: Callable[[], float] | None = None  # gives the number of a gauge instead

    def count(self, buckets: tuple[float, ...], values: Iterable[float]) -> None:
        for value in values:
            self.number += value
            if value == value:  # nan is in no bucket, not even in the last one
                self.counts[bisect_left(buckets, value)] += 1


class Instruments(Collector):
    """One registry with every metric of a catalogue. Any thread may call any method."""

    def __init__(self, catalogue: Sequence[Metric]) -> None:
        # By name and labels; what has no labels is there from the start.
        self._catalogue = catalogue
        self._series: dict[str, dict[tuple[str, ...], Series]] = {m.name: {} for m in catalogue}
        self._lock = threading.Lock()
        self._followed: list[Callable[[], Iterable[Observation]]] = []
        for metric in catalogue:
            if not metric.labels:
                self._begin(metric, ())
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def record(self, observation: Observation) -> None:
        """Count one observation."""
        self.record_all((observation,))

    def record_all(self, observations: Iterable[Observation]) -> None:
        """Count some observations, of which a scrape sees all or none."""
        with self._lock:
            for metric, value, labels, further in observations:
                series = self._series[metric.name].get(labels) or self._begin(metric, labels)
                if metric.kind == "histogram":
                    series.count(metric.buckets, (value, *further))
                elif metric.kind == "counter":
                    assert not value < 0, f"{metric.name} would fall by {-value}"
                    series.number += value
                else:
                    series.number = value

    def follow(self, metric: Metric, labels: tuple[str, ...], value: Callable[[], float]) -> None:
        """Ask for a gauge's value whenever it is scraped, from the thread that serves the scrape."""
        assert metric.kind == "gauge"
        with self._lock:
            series = self._series[metric.name].get(labels) or self._begin(metric, labels)
            series.ask = value

    def follow_all(self, gauges: Callable[[], Iterable[Observation]]) -> None:
        """Ask for these gauges at each scrape, from the thread that serves it. A scrape has those of its time only."""
        with self._lock:
            self._followed.append(gauges)

    def describe(self) -> list[Family]:
        """Every family without its numbers."""
        return [family(metric, {}) for metric in self._catalogue]

    def collect(self) -> Iterator[Family]:
        """Every family as it stands now. What is followed is asked without the lock: it may take its time."""
        with self._lock:
            now = {
                name: {labels: replace(one, counts=one.counts.copy()) for labels, one in series.items()}
                for name, series in self._series.items()
            }
            followed = self._followed.copy()
        for metric, value, labels, _ in chain.from_iterable(gauges() for gauges in followed):
            now[metric.name][labels] = Series(value)
        for metric in self._catalogue:
            yield family(metric, now[metric.name])

    def _begin(self, metric: Metric, labels: tuple[str, ...]) -> Series:
        assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}"
        counts = [0] * (len(metric.buckets) + 1) if metric.kind == "histogram" else []
        series = self._series[metric.name][labels] = Series(counts=counts)
        return series


def family(metric: Metric, series: Mapping[tuple[str, ...], Series]) -> Family:
    """A metric as prometheus_client writes it. series: by the values of its labels."""
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, one in series.items():
            histogram.add_metric(labels, list(zip(metric.bounds, accumulate(one.counts), strict=True)), one.number)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, one in series.items():
        family.add_metric(labels, one.number if one.ask is None else float(one.ask()))
    return family
