"""The counts of an injector, as Prometheus reads them."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from unstale.injector.numbers import Numbers, Scrape, Tally
from unstale.metrics import catalogue


def numbers_of(tally: Tally, *, refused: dict[str, int], faults: dict[str, int] | None = None) -> Numbers:
    return Numbers(
        scenario_s=1.0,
        connections=2,
        in_flight_messages=3,
        in_flight_bytes=400,
        up=tally.up,
        down=tally.down,
        overflowed=tally.overflowed,
        touched={},
        faults=faults or {},
        refused=refused,
        delays=tuple(tally.delays),
        delay_s=tally.delay_s,
    )


def scraped(numbers: Numbers | None) -> dict[str, Family]:
    """numbers: None if the injector does not answer."""

    def answer() -> Numbers:
        if numbers is None:
            raise TimeoutError
        return numbers

    registry = CollectorRegistry()
    registry.register(Scrape(answer))
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family: Family) -> dict[tuple[str, ...], float]:
    return {(one.name, *one.labels.values()): one.value for one in family.samples}


def test_every_metric_of_the_injector_is_exported_with_its_kind_and_help() -> None:
    found = scraped(numbers_of(Tally(), refused={}))
    for metric in catalogue.INJECTOR_CATALOGUE:
        family = found[metric.name.removesuffix("_total")]
        assert (family.documentation, family.type) == (metric.help, metric.kind)
    assert len(found) == len(catalogue.INJECTOR_CATALOGUE)


def test_the_scrape_contains_the_counts_and_no_series_of_refusals_that_never_occurred() -> None:
    tally = Tally()
    tally.count_forwarded(up=True, delay_s=0.0)
    tally.count_forwarded(up=False, delay_s=0.25)
    found = scraped(numbers_of(tally, refused={"no-key": 4, "not-the-owner": 0}, faults={"latency": 1}))
    assert values(found["unstale_injected_faults"]) == {("unstale_injected_faults_total", "latency"): 1}
    refused = {labels[1:]: count for labels, count in values(found["unstale_injector_refused"]).items()}
    assert refused == {("no-key",): 4, ("not-the-owner",): 0, ("unknown-key",): 0, ("wrong-server-key",): 0}
    delays = values(found["unstale_injected_delay_seconds"])
    name = "unstale_injected_delay_seconds"
    assert (delays[name + "_count",], delays[name + "_sum",]) == (2, 0.25)
    assert [delays[name + "_bucket", bound] for bound in ("0.001", "0.1", "0.25", "+Inf")] == [1, 1, 2, 2]
    assert values(found["unstale_injector_in_flight_bytes"]) == {("unstale_injector_in_flight_bytes",): 400}


def test_an_injector_that_does_not_answer_has_no_series() -> None:
    assert scraped(None) == {}
