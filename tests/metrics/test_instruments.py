"""Observations as Prometheus reads them."""

from prometheus_client import Metric as Family
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from unstale.metrics import catalogue
from unstale.metrics.instruments import Instruments
from unstale.metrics.observe import Observation


def families(instruments: Instruments) -> dict[str, Family]:
    text = generate_latest(instruments.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(instruments: Instruments, family: str) -> dict[tuple[str, ...], float]:
    """By name and label values."""
    return {(s.name, *s.labels.values()): s.value for s in families(instruments)[family].samples}


def test_every_metric_of_the_catalogue_is_exported_with_its_help_and_kind() -> None:
    found = families(Instruments(catalogue.CATALOGUE))
    for metric in catalogue.CATALOGUE:
        family = found[metric.name.removesuffix("_total")]
        assert (family.documentation, family.type) == (metric.help, metric.kind)
    assert len(found) == len(catalogue.CATALOGUE)


def test_a_counter_adds_a_gauge_sets_and_a_histogram_counts() -> None:
    instruments = Instruments(catalogue.CATALOGUE)
    instruments.record_all(
        [
            Observation(catalogue.UPDATES, 1, ("accepted", "")),
            Observation(catalogue.UPDATES, 2, ("accepted", "")),
            Observation(catalogue.UPDATES, 1, ("rejected", "non-finite")),
            Observation(catalogue.MODEL_VERSION, 4),
            Observation(catalogue.MODEL_VERSION, 3),
            Observation(catalogue.UPDATE_STALENESS, 0),
            Observation(catalogue.UPDATE_STALENESS, 3),
        ]
    )
    counted = values(instruments, "unstale_updates")
    assert counted["unstale_updates_total", "accepted", ""] == 3
    assert counted["unstale_updates_total", "rejected", "non-finite"] == 1
    assert values(instruments, "unstale_model_version") == {("unstale_model_version",): 3}
    staleness = values(instruments, "unstale_update_staleness_rounds")
    name = "unstale_update_staleness_rounds"
    assert (staleness[name + "_count",], staleness[name + "_sum",]) == (2, 3)
    # bounds are inclusive, and each counts the values up to it
    assert [staleness[name + "_bucket", bound] for bound in ("0.0", "2.0", "3.0", "+Inf")] == [1, 1, 2, 2]


def test_a_callback_gauge_is_evaluated_at_every_scrape() -> None:
    instruments = Instruments(catalogue.CATALOGUE)
    now = [5.0]
    instruments.follow(catalogue.CLIENTS, ("working",), lambda: now[0])
    assert values(instruments, "unstale_clients") == {("unstale_clients", "working"): 5}
    now[0] = 6.0
    assert values(instruments, "unstale_clients") == {("unstale_clients", "working"): 6}


def test_buckets_cover_the_range_of_runs() -> None:
    """A round for each update of 10,000 clients; one for all of theirs; and one that takes hours."""
    for metric, value in (
        (catalogue.UPDATE_STALENESS, 9_999),
        (catalogue.AGGREGATION_WEIGHT, 1 / 10_000),
        (catalogue.ROUND_DURATION, 8 * 3600),
    ):
        assert metric.buckets[0] <= value <= metric.buckets[-1]


def test_gauges_that_are_followed_together_are_those_of_the_scrape() -> None:
    instruments = Instruments(catalogue.CATALOGUE)
    now = {"mae": 0.5, "r2": 0.25}
    instruments.follow_all(lambda: [Observation(catalogue.METRIC, now[name], (name, "clients")) for name in now])
    exported = {("unstale_metric", "mae", "clients"): 0.5, ("unstale_metric", "r2", "clients"): 0.25}
    assert values(instruments, "unstale_metric") == exported
    del now["r2"]
    assert values(instruments, "unstale_metric") == {("unstale_metric", "mae", "clients"): 0.5}
