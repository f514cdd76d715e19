"""Scrapes, compared with prometheus_client's own instruments of the same observations."""

import sys
import threading
from collections.abc import Iterator, Sequence

import prometheus_client
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics import exposition as openmetrics

from unstale.metrics import catalogue
from unstale.metrics.catalogue import CATALOGUE, Metric
from unstale.metrics.instruments import Instruments
from unstale.metrics.observe import Observation

LABELS = st.sampled_from(["accepted", "rejected", "", "non-finite", 'with "quotes"', "back\\slash", "line\nbreak", "ü"])
AT_BOUNDS = st.sampled_from(sorted({bound for metric in CATALOGUE for bound in metric.buckets}))
NUMBERS = st.floats() | st.integers(-5, 10**20) | AT_BOUNDS


@pytest.fixture(autouse=True, scope="module")
def nothing_created() -> Iterator[None]:
    """No series with the time of a first value: none is in the catalogue."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    yield
    prometheus_client.enable_created_metrics()  # type: ignore[no-untyped-call]


class PrometheusInstruments:
    """The same interface over prometheus_client's instruments."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._instruments = {metric: self._made(metric) for metric in CATALOGUE}

    def record(self, observation: Observation) -> None:
        child = self._child(observation.metric, observation.labels)
        for value in (observation.value, *observation.further):
            if isinstance(child, Counter):
                child.inc(value)
            elif isinstance(child, Gauge):
                child.set(value)
            else:
                child.observe(value)

    def follow(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        child = self._child(metric, labels)
        assert isinstance(child, Gauge)
        child.set_function(lambda: value)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Counter | Gauge | Histogram:
        instrument = self._instruments[metric]
        return instrument.labels(*labels) if labels else instrument

    def _made(self, metric: Metric) -> Counter | Gauge | Histogram:
        about = metric.name, metric.help, metric.labels
        if metric.kind == "counter":
            return Counter(*about, registry=self.registry)
        if metric.kind == "gauge":
            return Gauge(*about, registry=self.registry)
        return Histogram(*about, buckets=metric.buckets, registry=self.registry)


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    metric = draw(st.sampled_from(CATALOGUE))
    value = draw(NUMBERS.filter(lambda number: not number < 0) if metric.kind == "counter" else NUMBERS)
    further = draw(st.lists(NUMBERS, max_size=4)) if metric.kind == "histogram" else ()
    return Observation(metric, value, draw(labels_of(metric)), further)


def labels_of(metric: Metric) -> st.SearchStrategy[tuple[str, ...]]:
    return st.tuples(*[LABELS] * len(metric.labels))


@st.composite
def followed(draw: st.DrawFn) -> tuple[Metric, tuple[str, ...], float]:
    metric = draw(st.sampled_from([metric for metric in CATALOGUE if metric.kind == "gauge"]))
    return metric, draw(labels_of(metric)), draw(NUMBERS)


def one_of_each() -> list[Observation]:
    return [Observation(metric, 1, tuple("abcdefghi"[: len(metric.labels)])) for metric in CATALOGUE]


@given(st.lists(st.lists(observations(), max_size=8), max_size=8), st.lists(followed(), max_size=3), st.data())
@example([one_of_each()], [], None)
@example([], [], None)
def test_a_scrape_equals_that_of_prometheus_clients_own_instruments(
    batches: Sequence[Sequence[Observation]],
    gauges: Sequence[tuple[Metric, tuple[str, ...], float]],
    data: st.DataObject | None,
) -> None:
    instruments, own = Instruments(catalogue.CATALOGUE), PrometheusInstruments()
    followed_from = data.draw(st.integers(0, len(batches))) if data else 0
    for number, batch in enumerate([*batches, []]):
        if number == followed_from:
            for metric, labels, value in gauges:
                instruments.follow(metric, labels, lambda value=value: value)  # type: ignore[misc]
                own.follow(metric, labels, value)
        instruments.record_all(batch)
        for observation in batch:
            own.record(observation)
    for written in (prometheus_client.generate_latest, openmetrics.generate_latest):
        assert written(instruments.registry) == written(own.registry)


def test_a_single_family_can_be_scraped() -> None:
    instruments, own = Instruments(catalogue.CATALOGUE), PrometheusInstruments()
    for observation in one_of_each():
        instruments.record(observation)
        own.record(observation)
    for metric in CATALOGUE:
        names = [metric.name + suffix for suffix in ("", "_bucket", "_count", "_sum")]
        alone, its_own = (registry.restricted_registry(names) for registry in (instruments.registry, own.registry))
        text = prometheus_client.generate_latest(alone)
        assert metric.name.encode() in text
        assert text == prometheus_client.generate_latest(its_own)


def test_a_counter_does_not_decrease_and_the_number_of_labels_must_match() -> None:
    instruments = Instruments(catalogue.CATALOGUE)
    with pytest.raises(AssertionError, match="would fall by 1"):
        instruments.record(Observation(catalogue.QUARANTINES, -1))
    with pytest.raises(AssertionError, match="has the labels"):
        instruments.record(Observation(catalogue.UPDATES, 1, ("accepted",)))
    with pytest.raises(AssertionError, match="has the labels"):
        instruments.record(Observation(catalogue.QUARANTINES, 1, ("accepted",)))


@pytest.fixture
def threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_change_often")
def test_every_scrape_contains_complete_batches_of_several_threads() -> None:
    # Each batch: an update of 3 bytes, and two values of a histogram that sum to 5, one of them at most 2.
    batch = [
        Observation(catalogue.UPDATES, 1, ("accepted", "")),
        Observation(catalogue.UPDATE_STALENESS, 1, (), (4,)),
        Observation(catalogue.UPDATE_BYTES, 3, ("received",)),
    ]
    instruments = Instruments(catalogue.CATALOGUE)
    asked = instruments.registry.get_sample_value

    def count() -> None:
        for _ in range(3000):
            instruments.record_all(batch)

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    scrapes = 0
    while any(thread.is_alive() for thread in threads) or scrapes == 0:
        check_whole(instruments)
        scrapes += 1
    for thread in threads:
        thread.join()
    check_whole(instruments)
    assert asked("unstale_updates_total", {"outcome": "accepted", "reason": ""}) == 3 * 3000


def check_whole(instruments: Instruments) -> None:
    """One scrape in which all numbers are of the same batches."""
    seen = {
        (sample.name, *sample.labels.values()): sample.value
        for family in instruments.registry.collect()
        for sample in family.samples
    }
    batches = seen.get(("unstale_updates_total", "accepted", ""), 0)
    assert seen.get(("unstale_update_bytes_total", "received"), 0) == 3 * batches
    name = "unstale_update_staleness_rounds"
    assert seen[name + "_sum",] == 5 * batches
    assert seen[name + "_count",] == seen[name + "_bucket", "+Inf"] == 2 * batches
    assert seen[name + "_bucket", "2.0"] == batches
