"""The numbers of an injector, and their exposition to Prometheus."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.registry import Collector

from unstale.metrics import catalogue, process
from unstale.metrics.catalogue import Metric
from unstale.metrics.instruments import Family, Series, family
from unstale.net.zap import REASONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The state of an injector."""

    scenario_s: float  # time of the scenario
    connections: int
    in_flight_messages: int
    in_flight_bytes: int
    up: int  # forwarded messages
    down: int
    overflowed: int  # messages that were lost because the server did not read
    touched: dict[str, int]  # messages, or pieces of the stream for the layer tcp, by name of current toxics
    faults: dict[str, int]  # the same since the start, by type of toxic
    refused: dict[str, int]  # handshakes and messages with a wrong key, by reason
    delays: list[int]  # messages by bucket of the catalogue, the last one for more
    delay_s: float  # sum of all delays


@dataclass(slots=True)
class Tally:
    """Counts since the start."""

    up: int = 0
    down: int = 0
    overflowed: int = 0
    delay_s: float = 0.0
    delays: list[int] = field(default_factory=lambda: [0] * (len(catalogue.INJECTED_DELAY.buckets) + 1))

    def count_forwarded(self, *, up: bool, delay_s: float) -> None:
        """Count a forwarded message. delay_s: by toxics."""
        if up:
            self.up += 1
        else:
            self.down += 1
        self.delay_s += delay_s
        self.delays[bisect_left(catalogue.INJECTED_DELAY.buckets, delay_s)] += 1


class Scrape(Collector):
    """Exposition of numbers. numbers: called at each scrape; it raises TimeoutError if there is no answer."""

    def __init__(self, numbers: Callable[[], Numbers]) -> None:
        self._numbers = numbers

    def describe(self) -> list[Family]:
        """Nothing, so that the registration does not ask for numbers."""
        return []

    def collect(self) -> Iterator[Family]:
        try:
            numbers = self._numbers()
        except TimeoutError:
            return
        build = process.build()
        series: dict[Metric, dict[tuple[str, ...], Series]] = {
            build.metric: {build.labels: Series(build.value)},
            catalogue.INJECTED_DELAY: {(): Series(numbers.delay_s, numbers.delays)},
            catalogue.INJECTED_FAULTS: _by_label(numbers.faults),
            # Counters of 0 as well: a missing counter looks like one that does not exist.
            catalogue.INJECTOR_REFUSED: _by_label(dict.fromkeys(REASONS, 0) | numbers.refused),
            catalogue.INJECTOR_MESSAGES_IN_FLIGHT: {(): Series(numbers.in_flight_messages)},
            catalogue.INJECTOR_BYTES_IN_FLIGHT: {(): Series(numbers.in_flight_bytes)},
            catalogue.INJECTOR_CONNECTIONS: {(): Series(numbers.connections)},
        }
        for metric in catalogue.INJECTOR_CATALOGUE:
            yield family(metric, series[metric])


def _by_label(counts: Mapping[str, int]) -> dict[tuple[str, ...], Series]:
    return {(label,): Series(count) for label, count in sorted(counts.items())}
