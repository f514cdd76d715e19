"""The catalogue as Prometheus instruments, and observations into them."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from unstale.metrics.catalogue import CATALOGUE, Metric
from unstale.metrics.observe import Observation


class Instruments:
    """One registry with every metric of the catalogue. Thread-safe, as prometheus_client is."""

    def __init__(self) -> None:
        # A second series for each counter and histogram, with the time of its first value, is in no catalogue.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        self._instruments: dict[Metric, Counter | Gauge | Histogram] = {m: self._make(m) for m in CATALOGUE}
        # Finding the child of some labels anew takes ten times as long as counting, for every update.
        self._takers: dict[tuple[str, tuple[str, ...]], Callable[[float], None]] = {}

    def record(self, observation: Observation) -> None:
        """Count one observation."""
        metric, value, labels = observation
        take = self._takers.get((metric.name, labels))
        if take is None:
            take = self._takers[metric.name, labels] = self._taker(metric, labels)
        take(value)

    def record_all(self, observations: Iterable[Observation]) -> None:
        for observation in observations:
            self.record(observation)

    def follow(self, metric: Metric, labels: tuple[str, ...], value: Callable[[], float]) -> None:
        """Ask for a gauge's value whenever it is scraped, from the thread that serves the scrape."""
        instrument = self._instruments[metric]
        gauge = instrument.labels(*labels) if labels else instrument
        assert isinstance(gauge, Gauge)
        gauge.set_function(value)

    def _taker(self, metric: Metric, labels: tuple[str, ...]) -> Callable[[float], None]:
        """What a value with these labels is given to."""
        instrument = self._instruments[metric]
        child = instrument.labels(*labels) if labels else instrument
        if isinstance(child, Counter):
            return child.inc
        if isinstance(child, Gauge):
            return child.set
        return child.observe

    def _make(self, metric: Metric) -> Counter | Gauge | Histogram:
        if metric.kind == "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=self.registry)
        if metric.kind == "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
        return Histogram(
            metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
        )
