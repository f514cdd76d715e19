"""What an injector counts, and how it tells a scrape."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.registry import Collector

from unstale.metrics import catalogue, process
from unstale.metrics.catalogue import Metric
from unstale.metrics.instruments import Family, Series, family
from unstale.net.zap import REASONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """How the injector stands. touched: by toxic that applies now, faults: by type of toxic, since the start; pieces of
    the stream where the toxic is on the tcp layer. up, down: messages that went on. overflowed: lost because the server
    took none for too long. refused: for want of the right key, by reason. delays: by bucket of the catalogue, the last
    one for more. delay_s: all of them together.
    """

    scenario_s: float
    connections: int
    in_flight_messages: int
    in_flight_bytes: int
    up: int
    down: int
    overflowed: int
    touched: dict[str, int]
    faults: dict[str, int]
    refused: dict[str, int]
    delays: tuple[int, ...]
    delay_s: float


@dataclass(slots=True)
class Tally:
    """Counts from the start on."""

    up: int = 0
    down: int = 0
    overflowed: int = 0
    delay_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    delays: list[int] = field(default_factory=lambda: [0] * (len(catalogue.INJECTED_DELAY.buckets) + 1))
    _told: Counter[str] = field(default_factory=Counter)

    def went_on(self, *, up: bool, delay_s: float) -> None:
        """A message was let go. delay_s: how long it was held up on purpose."""
        if up:
            self.up += 1
        else:
            self.down += 1
        self.delay_s += delay_s
        self.delays[bisect_left(catalogue.INJECTED_DELAY.buckets, delay_s)] += 1

    def touched(self, types: Mapping[str, str], touched: Mapping[str, int]) -> None:
        """Take what has been touched since the last time. types: of all toxics that there are, by name. touched: so
        far, by name; less than the last time where counting began anew."""
        for name, type_ in types.items():
            self.faults[type_] += max(0, touched[name] - self._told[name])
        self._told = Counter(touched)


class Scrape(Collector):
    """numbers: asked for at each scrape; None where there is no answer in time."""

    def __init__(self, numbers: Callable[[], Numbers | None]) -> None:
        self._numbers = numbers

    def describe(self) -> list[Family]:
        """Nothing, so that registering asks no numbers."""
        return []

    def collect(self) -> Iterator[Family]:
        numbers = self._numbers()
        if numbers is None:
            return
        build = process.build()
        now: dict[Metric, dict[tuple[str, ...], Series]] = {
            build.metric: {build.labels: Series(build.value)},
            catalogue.INJECTED_DELAY: {(): Series(numbers.delay_s, list(numbers.delays))},
            catalogue.INJECTED_FAULTS: _by_label(numbers.faults),
            # A counter that is not there cannot be told from one that nobody asks for.
            catalogue.INJECTOR_REFUSED: _by_label(dict.fromkeys(REASONS, 0) | numbers.refused),
            catalogue.INJECTOR_MESSAGES_IN_FLIGHT: {(): Series(numbers.in_flight_messages)},
            catalogue.INJECTOR_BYTES_IN_FLIGHT: {(): Series(numbers.in_flight_bytes)},
            catalogue.INJECTOR_CONNECTIONS: {(): Series(numbers.connections)},
        }
        for metric in catalogue.INJECTOR_CATALOGUE:
            yield family(metric, now[metric])


def _by_label(counts: Mapping[str, int]) -> dict[tuple[str, ...], Series]:
    return {(label,): Series(count) for label, count in sorted(counts.items())}
