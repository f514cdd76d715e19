"""Runs with other objectives than classification, on data sets and models that the user names."""

from dataclasses import replace
from typing import Any

import pytest

from support.running import small
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.metrics.progress import Outcome, Progress
from unstale.simulator.assemble import simulation
from unstale.simulator.synchronous_compute import Watcher
from unstale.training.measured import Measured
from unstale.training.objectives.regression import Regression


class Measurements(Watcher):
    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def round_applied(self, *_: Any) -> None:
        """Nothing is kept of it."""

    def evaluated(self, version: int, evaluation: Measured, at_s: float) -> None:
        self.metrics.append(dict(evaluation.metrics))


def run(settings: Settings) -> tuple[Outcome, list[dict[str, float]]]:
    watcher = Measurements()
    progress: list[Progress] = []
    outcome = simulation(settings, on_progress=progress.append, watcher=watcher).run()
    return outcome, watcher.metrics


def regression(**changes: Any) -> Settings:
    values: dict[str, Any] = {
        "clients": 4,
        "rounds": 60,
        "model": {"name": "support.factories:line"},
        "data": {"name": "support.factories:planes"},
        "objective": {"name": "regression"},
        "partition": {"name": "iid"},
        "training": {"steps": 4, "batch_size": 8, "learning_rate": 0.1},
        "trigger": {"name": "sync"},
        "policy": {"name": "fedavg"},
        "evaluate_every": 10,
        "evaluate_clients_every": 20,
    }
    return small(**{**values, **changes})


def language_model(**changes: Any) -> Settings:
    return regression(
        model={"name": "support.factories:bigrams"},
        data={"name": "support.factories:letters"},
        objective={"name": "language-model", "settings": {"ignore_index": -1}},
        **{"training": {"steps": 4, "batch_size": 16, "learning_rate": 2.0}, **changes},
    )


@pytest.mark.parametrize("training", ["sgd", "fedprox"])
def test_a_regression_finds_the_planes(training: str) -> None:
    _, metrics = run(regression(training={"name": training, "steps": 4, "batch_size": 8, "learning_rate": 0.1}))
    assert set(metrics[-1]) == {"mae", "loss", "r2"}
    assert metrics[0]["mae"] > 0.3
    assert metrics[-1]["mae"] < 0.01
    assert metrics[-1]["r2"] > 0.999


def test_a_regression_trains_by_gradients_and_with_control_variates() -> None:
    _, metrics = run(regression(training={"name": "gradient", "batch_size": 15, "learning_rate": 0.3}))
    assert metrics[-1]["mae"] < 0.01
    scaffold = {"name": "scaffold", "steps": 4, "batch_size": 8, "learning_rate": 0.1}
    _, metrics = run(regression(training=scaffold, policy={"name": "scaffold"}))
    assert metrics[-1]["mae"] < 0.02


def test_a_language_model_learns_letters_from_a_data_set_that_is_read_when_needed() -> None:
    _, metrics = run(language_model())
    assert set(metrics[-1]) == {"perplexity", "loss"}
    assert metrics[0]["perplexity"] > 8  # of 14 letters
    assert metrics[-1]["perplexity"] < 3


def test_a_run_is_the_same_bits_again_and_in_processes() -> None:
    for settings in (regression(rounds=5), language_model(rounds=5)):
        first, again = (run(settings)[0] for _ in range(2))
        assert replace(again, fairness=first.fairness).model_digest == first.model_digest
        processes = settings.model_copy(
            update={"simulation": settings.simulation.model_copy(update={"backend": "processes", "processes": 2})}
        )
        assert run(processes)[0].model_digest == first.model_digest


def test_a_data_set_without_test_examples_is_not_evaluated() -> None:
    untested = {"data": {"name": "support.factories:untested"}, "evaluate_clients_every": None}
    outcome, metrics = run(regression(**untested, rounds=10))
    assert metrics == [{}, {}]
    assert (outcome.versions, outcome.metrics) == (10, {})


def test_a_labelled_data_set_takes_another_objective() -> None:
    # One linear output for each of ten digits; the targets of a regression are the digits themselves.
    settings = small(objective={"name": "regression"}, model={"name": "support.factories:digit"}, rounds=3)
    _, metrics = run(settings)
    assert set(metrics[-1]) == {"mae", "loss", "r2"}


def test_an_iterable_data_set_is_read_in_order_by_the_only_client() -> None:
    stream = {"data": {"name": "support.factories:stream"}, "clients": 1}
    _, metrics = run(regression(**stream, evaluate_clients_every=None))
    assert metrics[-1]["mae"] < 0.01
    first, again = (run(regression(**stream, rounds=7))[0].model_digest for _ in range(2))
    assert first == again


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"name": "moon"}}, "objective.name is 'regression' with training.name 'moon'"),
        ({"simulation": {"backend": "vmap"}}, "expected a data set of labelled tensors"),
        ({"model": {"name": "support.factories:bigrams"}}, "model 'support.factories:bigrams' cannot be trained with"),
        ({"objective": {"name": "segmentation"}}, r"outputs of shape \[2, 2\] for targets of shape \[2, 2\]"),
        ({"partition": {"name": "natural"}}, "natural"),
        ({"data": {"name": "support.factories:planes", "share": 0.5}}, "has no classes, which this needs"),
        (
            {"data": {"name": "support.factories:stream"}},
            "is iterable, so that one client has all of it, but there are 4",
        ),
        (
            {"data": {"name": "support.factories:untested"}},
            "20, but data.name 'support.factories:untested' has no test",
        ),
        ({"attack": {"name": "label-flip"}}, "has no classes, which this needs"),
        ({"compensator": {"name": "gradient-inversion"}}, "which inverts updates of a classification"),
    ],
)
def test_what_does_not_fit_an_objective_is_refused_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(regression(**changes))


class Unmeasured(Regression):
    """An objective of a user whose scores raise."""

    def scores(self, outputs: Any, targets: Any) -> Any:
        raise KeyError("weights")


def test_scores_that_raise_leave_versions_unmeasured_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    changes: dict[str, Any] = {"rounds": 10, "evaluate_clients_every": 2}
    outcome, _ = run(regression(objective={"name": f"{__name__}:Unmeasured"}, **changes))
    same, _ = run(regression(**changes))
    assert outcome.model_digest == same.model_digest  # the loss is that of the regression
    assert (outcome.reason, outcome.metrics, outcome.client_metrics) == ("finished", {}, {})
    assert "the evaluation raised KeyError: 'weights'" in caplog.text  # on the server
    assert ": the evaluation raised an exception" in caplog.text  # by the first client
