"""The effects of verdicts on an account."""

import pytest
import torch

from support.wire import update_of
from unstale import translate
from unstale.coordinator.actions import Acknowledge, Outcome
from unstale.journal.recorder import IncomingUpdate
from unstale.learner.bounds import NormBounds
from unstale.learner.learner import Compensation, RoundResult
from unstale.learner.versions import Version
from unstale.metrics import catalogue
from unstale.metrics.observe import Observation
from unstale.metrics.progress import Progress
from unstale.server.commands import Applied, Evaluated
from unstale.server.stats import ServerStats
from unstale.training.evaluate import Evaluation
from unstale_proto.messages import OwnEvaluation, Task, Update


def incoming(update: Update) -> IncomingUpdate:
    return IncomingUpdate(
        translate.to_update_arrived(update, 0, 0, None, 1.0),
        translate.to_staged(update, 0),
        evaluation=update.evaluation,
        payload_bytes=8,
    )


class Kept:
    """An account, and all that it says. Every client is asked to measure every version from the first one on."""

    def __init__(self) -> None:
        self.observed: list[Observation] = []
        self.progress: list[Progress] = []
        self.stats = ServerStats(
            rounds=9, record=self.observed.extend, on_progress=self.progress.append, evaluate_clients_every=1
        )
        self.stats.tally.started(0.0)

    def judged(self, outcome: Outcome, accuracy: float | None = None) -> None:
        task = Task(task_id=1, number=0, version=1, learning_rate=0.5, payload_bytes=8, signature="0" * 64)
        own = None if accuracy is None else OwnEvaluation(accuracy=accuracy, loss=1.0, examples=4)
        verdict = Acknowledge(client_id=0, task_id=1, outcome=outcome, first_outcome=outcome)
        self.stats.judged(verdict, incoming(update_of(task, evaluation=own)), NormBounds(None, clients=1))

    def evaluated(self, at_s: float) -> Progress:
        self.stats.on_evaluation_started(1, {})
        evaluation = Evaluation(accuracy=0.5, loss=1.0, class_accuracy=(), examples=1)
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
        one.value for one in kept.observed if one.metric is catalogue.CLIENT_TEST_ACCURACY and one.labels == ("mean",)
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
