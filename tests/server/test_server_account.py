"""The effects of verdicts on an account."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from support.wire import update_of
from unstale import translate
from unstale.config.metrics import ACCURACY, Target
from unstale.coordinator.actions import Acknowledge, Outcome
from unstale.journal.recorder import IncomingUpdate
from unstale.learner.bounds import NormBounds
from unstale.learner.learner import Compensation, RoundResult
from unstale.learner.updates import StagedUpdate
from unstale.learner.versions import Version
from unstale.metrics import catalogue
from unstale.metrics.observe import Observation
from unstale.metrics.progress import Progress
from unstale.metrics.spread import ClientValue
from unstale.server.commands import Applied, Evaluated
from unstale.server.stats import ServerStats
from unstale.training.measured import Measured
from unstale_proto.messages import OwnEvaluation, Task, Update


def incoming(update: Update) -> IncomingUpdate:
    return IncomingUpdate(
        translate.to_update_arrived(update, 0, 0, None, 1.0),
        translate.to_staged(update, 0),
        evaluation=update.evaluation,
        payload_bytes=8,
    )


UPDATE = StagedUpdate(
    client_id=3, task_id=1, base_version=0, num_examples=30, batch_examples=30, loss=2.0, local_rate=0.5
)


class Kept:
    """An account, and all that it says. Every client is asked to measure every version from the first one on."""

    def __init__(self, target: Target | None = None) -> None:
        self.observed: list[Observation] = []
        self.progress: list[Progress] = []
        self.stats = ServerStats(
            rounds=9,
            main=ACCURACY,
            record=self.observed.extend,
            on_progress=self.progress.append,
            evaluate_clients_every=1,
            target=target,
        )
        self.stats.tally.started(0.0)

    def judged(self, outcome: Outcome, accuracy: float | None = None) -> None:
        task = Task(task_id=1, number=0, version=1, learning_rate=0.5, payload_bytes=8, signature="0" * 64)
        own = None if accuracy is None else OwnEvaluation(accuracy=accuracy, loss=1.0, examples=4)
        verdict = Acknowledge(client_id=0, task_id=1, outcome=outcome, first_outcome=outcome)
        self.stats.judged(verdict, incoming(update_of(task, evaluation=own)), NormBounds(None, clients=1))

    def applied(self, metrics: Mapping[str, float] = MappingProxyType({})) -> None:
        version = Version(model_d=torch.zeros(1), buffers_b=torch.empty(0))
        result = RoundResult(
            version=1,
            sent=version,
            learning_rate=1.0,
            rate_factor=1.0,
            weights_K=(1.0,),
            staleness=(0,),
            overflowed=False,
            metrics=metrics,
        )
        self.stats.applied(Applied(result=result, frames=[], aggregate_s=0.0, device_memory_bytes=0), 0.0)

    def evaluated(self, at_s: float) -> Progress:
        self.stats.on_evaluation_started(1, {})
        evaluation = Measured(metrics={"accuracy": 0.5, "loss": 1.0}, num_examples=1)
        self.stats.evaluated(Evaluated(version=1, evaluation=evaluation, evaluate_s=0.0), at_s)
        return self.progress[-1]


def test_the_rate_is_of_updates_accepted_since_the_evaluation_before() -> None:
    kept = Kept()
    for outcome in (Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.ACCEPTED, Outcome.REJECTED, Outcome.ACCEPTED):
        kept.judged(outcome)
    assert kept.evaluated(2.0).updates_per_s == 3 / 2
    kept.judged(Outcome.ACCEPTED)
    assert kept.evaluated(6.0).updates_per_s == 1 / 4
    assert kept.evaluated(7.0).updates_per_s == 0.0


@pytest.mark.parametrize(("outcome", "counts"), [(Outcome.ACCEPTED, True), (Outcome.DUPLICATE, False)])
def test_a_clients_own_evaluation_counts_with_an_accepted_update(outcome: Outcome, counts: bool) -> None:
    kept = Kept()
    kept.judged(outcome, accuracy=0.25)
    means = [
        one.value
        for one in kept.stats.gauges()
        if one.metric is catalogue.CLIENT_TEST_ACCURACY and one.labels == ("mean",)
    ]
    assert means == ([0.25] if counts else [])
    kept.stats.flush()
    assert kept.observed[-2:] == [
        Observation(catalogue.UPDATES, 1, (outcome, "")),
        Observation(catalogue.UPDATE_BYTES, 8, ("received",)),
    ]


def test_a_note_of_compensation_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    compensation = Compensation(updates=[], errors=[], fallbacks={}, notes=["There is little memory."], made=None)
    for version in (1, 2):
        result = RoundResult(
            version=version,
            sent=Version(model_d=torch.zeros(1), buffers_b=torch.empty(0), extra_d=None),
            learning_rate=0.5,
            weights_K=(),
            staleness=(),
            rate_factor=1.0,
            overflowed=False,
            compensation=compensation,
        )
        applied = Applied(result=result, frames=[], aggregate_s=0.0, compensate_s=0.0, device_memory_bytes=0, digest="")
        kept.stats.applied(applied, wait_s=0.0)
    assert caplog.messages == ["There is little memory."]


def test_what_updates_and_models_come_to_is_recorded_once() -> None:
    kept = Kept()
    kept.judged(Outcome.ACCEPTED)
    kept.stats.model_sent(16)
    assert kept.observed == []
    for _ in range(2):
        kept.stats.flush()
        assert kept.observed == [
            Observation(catalogue.UPDATES, 1, (Outcome.ACCEPTED, "")),
            Observation(catalogue.UPDATE_BYTES, 8, ("received",)),
            Observation(catalogue.UPDATE_BYTES, 16, ("sent",)),
        ]


def test_clients_metrics_are_those_of_the_last_round_and_of_each_clients_last_own_evaluation() -> None:
    kept = Kept()
    kept.judged(Outcome.ACCEPTED, accuracy=0.25)
    update = UPDATE
    other = replace(update, client_id=4, num_examples=10, loss=4.0, metrics={"grad_norm": 8.0})
    kept.stats.round_closed([update, other])
    progress = kept.evaluated(2.0)
    # (30 * 2 + 10 * 4) / 40, and the norm of one client.
    assert {name: spread.mean for name, spread in progress.training_metrics.items()} == {"loss": 2.5, "grad_norm": 8.0}
    assert progress.training_metrics["loss"].highest == ClientValue(4, 4.0)
    assert list(progress.client_metrics) == ["accuracy", "loss"]
    assert progress.client_metrics["accuracy"].worst == ClientValue(0, 0.25)
    assert progress.metrics == {"accuracy": 0.5, "loss": 1.0}


def test_names_that_more_than_a_tenth_of_the_clients_report_are_exported() -> None:
    kept = Kept()

    def round_of(client_id: int, metrics: Mapping[str, float]) -> dict[str, float]:
        kept.stats.round_closed([replace(UPDATE, client_id=client_id, metrics=metrics)])
        kept.applied()
        return {one.labels[0]: one.value for one in kept.stats.gauges() if one.metric is catalogue.METRIC}

    # A client that is first and invents names: they are gone once nine others have reported.
    assert round_of(0, {f"m{number}": 1.0 for number in range(32)}).keys() >= {"loss", "m0", "m31"}
    for client_id in range(1, 10):
        exported = round_of(client_id, {"mae": float(client_id)})
    assert exported == {"loss": 2.0, "mae": 9.0}
    for number in range(20):  # however often it reports others
        assert round_of(0, {f"n{number}.{name}": 1.0 for name in range(32)}) == {"loss": 2.0, "mae": 9.0}
    assert round_of(1, {"rmse": 1.0}) == {"loss": 2.0, "mae": 9.0}  # one of ten is a tenth
    assert round_of(2, {"rmse": 3.0}) == {"loss": 2.0, "mae": 9.0, "rmse": 3.0}
    assert round_of(3, {"mae": 4.0}) == {"loss": 2.0, "mae": 4.0, "rmse": 3.0}  # the value before stays


def test_an_evaluation_without_accuracy_and_loss_is_exported_by_name() -> None:
    kept = Kept()
    kept.stats.on_evaluation_started(1, {})
    evaluation = Measured(metrics={"mae": 0.5}, num_examples=1)
    kept.stats.evaluated(Evaluated(version=1, evaluation=evaluation, evaluate_s=0.0), 2.0)
    assert kept.progress[-1].metrics == {"mae": 0.5}
    assert kept.stats.gauges() == [Observation(catalogue.METRIC, 0.5, ("mae", "central"))]


def test_the_numbers_of_the_policy_are_exported_by_name() -> None:
    kept = Kept()
    kept.applied({"stage": 2.0})
    assert kept.stats.gauges() == [Observation(catalogue.METRIC, 2.0, ("stage", "policy"))]
    kept.applied()
    assert kept.stats.gauges() == []  # those of the last round only


def test_a_target_that_nobody_reports_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(Target("mae", "<", 0.5))
    kept.evaluated(1.0)  # before an update, clients may still report it
    assert not caplog.messages
    kept.stats.round_closed([replace(UPDATE, metrics={"rmse": 1.0})])
    kept.applied()
    kept.judged(Outcome.ACCEPTED, accuracy=0.25)
    for at_s in (2.0, 3.0):
        kept.evaluated(at_s)
    assert caplog.messages == [
        "run.until names 'mae', which neither an evaluation nor a client reports, so it does not end the run; expected "
        "one of accuracy, loss, rmse"
    ]


def test_a_target_that_a_client_reports_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(Target("mae", "<", 0.5))
    kept.stats.round_closed([replace(UPDATE, metrics={"mae": 1.0})])
    kept.applied()
    kept.judged(Outcome.ACCEPTED, accuracy=0.25)
    kept.evaluated(2.0)
    assert not caplog.messages
