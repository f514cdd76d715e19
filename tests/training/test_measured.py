from math import nan

from unstale.training.measured import MainMetric


def test_a_metric_is_better_in_its_own_direction():
    assert MainMetric("accuracy", higher_is_better=True).is_better(0.9, 0.8)
    assert MainMetric("mae", higher_is_better=False).is_better(0.8, 0.9)


def test_an_equal_value_and_nan_are_not_better():
    for metric in (MainMetric("accuracy", higher_is_better=True), MainMetric("mae", higher_is_better=False)):
        assert not metric.is_better(0.5, 0.5)
        assert not metric.is_better(nan, 0.5)
        assert not metric.is_better(0.5, nan)
