"""The effect of each fact of a run on the metrics, written out."""

import pytest
from prometheus_client.metrics import Histogram
from prometheus_client.utils import floatToGoString

from unstale.metrics import catalogue, observe
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.observe import Observation


def test_an_accepted_update_is_counted_without_a_reason_and_with_its_bytes() -> None:
    assert observe.verdict("accepted", None, 2600) == (
        Observation(catalogue.UPDATES, 1, ("accepted", "")),
        Observation(catalogue.UPDATE_BYTES, 2600, ("received",)),
    )


def test_a_rejected_update_is_counted_by_its_reason() -> None:
    counted, received = observe.verdict("rejected", "non-finite", 8)
    assert counted == Observation(catalogue.UPDATES, 1, ("rejected", "non-finite"))
    assert received.value == 8


def test_a_refused_message_and_a_sent_task_are_one_observation_each() -> None:
    assert observe.refused("unknown-type") == Observation(catalogue.MESSAGES_REFUSED, 1, ("unknown-type",))
    assert observe.model_sent(2600) == Observation(catalogue.UPDATE_BYTES, 2600, ("sent",))


def test_the_time_of_a_round_is_its_waiting_and_its_aggregation() -> None:
    made = list(
        observe.round_applied(
            7,
            [0, 2],
            [0.75, 0.25],
            wait_s=0.5,
            compensate_s=0.125,
            aggregate_s=0.25,
            device_memory_bytes=1024,
            overflowed=False,
        )
    )
    assert made == [
        Observation(catalogue.ROUNDS_OVERFLOWED, 0),
        Observation(catalogue.MODEL_VERSION, 7),
        Observation(catalogue.ROUND_DURATION, 0.875),
        Observation(catalogue.ROUND_PHASE_DURATION, 0.5, ("wait",)),
        Observation(catalogue.ROUND_PHASE_DURATION, 0.125, ("compensate",)),
        Observation(catalogue.ROUND_PHASE_DURATION, 0.25, ("aggregate",)),
        Observation(catalogue.DEVICE_MEMORY, 1024),
        Observation(catalogue.UPDATE_STALENESS, 0, further=[2]),
        Observation(catalogue.AGGREGATION_WEIGHT, 0.75, further=[0.25]),
    ]


def test_a_round_of_no_updates_has_neither_staleness_nor_weights() -> None:
    made = {
        observation.metric
        for observation in observe.round_applied(
            1, [], [], wait_s=1, compensate_s=0, aggregate_s=1, device_memory_bytes=0, overflowed=True
        )
    }
    assert catalogue.UPDATE_STALENESS not in made
    assert catalogue.AGGREGATION_WEIGHT not in made


def test_a_class_absent_from_the_test_set_has_no_accuracy() -> None:
    made = list(observe.measured({"accuracy": 0.5, "loss": 1.25, "f1": 0.75}, [1.0, None, 0.0]))
    assert made == [
        Observation(catalogue.TEST_ACCURACY, 0.5),
        Observation(catalogue.TEST_LOSS, 1.25),
        Observation(catalogue.TEST_CLASS_ACCURACY, 1.0, ("0",)),
        Observation(catalogue.TEST_CLASS_ACCURACY, 0.0, ("2",)),
    ]


def test_an_evaluation_without_accuracy_does_not_change_it() -> None:
    assert list(observe.measured({"mae": 0.5}, ())) == []


@pytest.mark.parametrize(
    ("split", "named"), [("central", ["mae"]), ("clients", ["loss", "mae"]), ("training", ["accuracy", "loss", "mae"])]
)
def test_a_metric_by_name_is_not_exported_where_it_has_a_name_of_its_own(split: str, named: list[str]) -> None:
    values = {"accuracy": 0.5, "loss": 1.25, "mae": 0.75}
    assert list(observe.named(split, values)) == [
        Observation(catalogue.METRIC, values[name], (name, split)) for name in named
    ]


def test_a_client_evaluation_gives_four_statistics() -> None:
    own = OwnEvaluations(1)
    own.answered(0, 1, {"accuracy": 0.25})
    own.answered(1, 1, {"accuracy": 0.75})
    fairness = own.fairness
    assert fairness is not None
    assert list(observe.own_evaluations(fairness)) == [
        Observation(catalogue.CLIENT_TEST_ACCURACY, 0.5, ("mean",)),
        Observation(catalogue.CLIENT_TEST_ACCURACY, pytest.approx(0.125**0.5), ("std",)),
        Observation(catalogue.CLIENT_TEST_ACCURACY, 0.25, ("worst_tenth",)),
        Observation(catalogue.CLIENT_TEST_ACCURACY, 0.75, ("best_tenth",)),
    ]


EVERY = (*catalogue.CATALOGUE, *catalogue.CLIENT_CATALOGUE, *catalogue.INJECTOR_CATALOGUE)


def test_an_ack_is_timed_only_for_updates_sent_by_this_process() -> None:
    assert list(observe.update_answered("rejected", "non-finite", None)) == [
        Observation(catalogue.CLIENT_UPDATES, 1, ("rejected", "non-finite"))
    ]
    assert list(observe.update_answered("accepted", None, 0.5)) == [
        Observation(catalogue.CLIENT_UPDATES, 1, ("accepted", "")),
        Observation(catalogue.CLIENT_ACKNOWLEDGE, 0.5),
    ]


def test_names_follow_the_conventions() -> None:
    # prometheus.io, "naming": one prefix, base units, `_total` on counters and on nothing else.
    for metric in EVERY:
        assert metric.name.startswith("unstale_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name
        assert not any(unit in metric.name for unit in ("milli", "micro", "percent", "minutes")), metric.name
    assert len({metric.name for metric in EVERY}) == len(set(EVERY))  # two metrics with the same meaning are one metric


def test_only_histograms_have_buckets_and_they_increase() -> None:
    for metric in EVERY:
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
    assert catalogue.UPDATE_STALENESS.buckets != Histogram.DEFAULT_BUCKETS  # these are for seconds


def test_a_scrape_has_the_bounds_of_the_buckets_and_infinity() -> None:
    for metric in EVERY:
        assert metric.bounds == (*(floatToGoString(bound) for bound in metric.buckets), "+Inf")


def test_no_label_is_an_identity() -> None:
    allowed = {
        "phase",
        "outcome",
        "reason",
        "direction",
        "class",
        "state",
        "statistic",
        "method",
        "measure",
        "toxic",
        "vector",
        "name",  # of metrics by name, whose number is bounded
        "split",
        "tracker",  # of the settings, 16 at most
    }
    of_a_process = (catalogue.BUILD_INFO, catalogue.RUN_INFO)  # one series each
    assert {label for metric in EVERY if metric not in of_a_process for label in metric.labels} <= allowed
