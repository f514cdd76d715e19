"""A whole run in virtual time, and its curves.

Source: docs/methods/measures.md#measures

Legend: K updates of a round.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import fsum, nan
from typing import Any

import torch
from typing_extensions import override

from unstale.config.data import read_dataset
from unstale.config.metrics import ACCURACY, main_metric
from unstale.config.settings import Settings
from unstale.config.workspace import TrainingContext, training_context
from unstale.coordinator import actions, events
from unstale.coordinator.divergence import DivergedError
from unstale.learner.learner import RoundResult
from unstale.learner.updates import RoundUpdate
from unstale.learner.versions import Version
from unstale.settings.learning import DataSettings
from unstale.simulator.assemble import simulation
from unstale.simulator.synchronous_compute import Watcher
from unstale.training.datasets import Dataset, labelled
from unstale.training.evaluate import evaluate
from unstale.training.measured import Measured
from unstale_client.net.clock import now_s
from unstale_papers.record import MAIN_METRIC, Record

COUNTED = 0.1
"""An update counts with at least this share of its round's largest weight: 1 / mu of 7.6."""

HEAVY = 0.1
"""An update is heavy with a weight above this, of WKAFL's Figure 2a."""

_CURVES = (
    *("version_E", "time_E", "accuracy_E", "loss_E", "class_accuracy_EC"),
    *("training_loss_R", "staleness_R", "counted_R", "heavy_R", "errors"),
)
_EXAMPLES_AT_A_TIME = 5000  # bounds the memory of normalised examples


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """Simulate the run. If training diverges on all clients, the run ends, and `found["ended"]` has the reason.

    options: `training_loss_every`, evaluations between two losses over all training examples, also of the last model;
    `found["training_loss"]` has version and nats; without the option there are none. `found["refused"]`: number of
    refused updates, if any, by reason of the wire contract. `found["main_metric"]`: name and values of the main metric,
    if that is not the accuracy.
    """
    started_s = now_s()
    context = training_context(settings, data=dataset_of(settings.data))
    watcher = _Curves(settings, context, options.get("training_loss_every"), on_progress)
    run = simulation(settings, on_progress=lambda _: None, observe=watcher.acted, context=context, watcher=watcher)
    try:
        digest = run.run().model_digest
    except DivergedError as error:
        watcher.found["ended"], digest = str(error), run.sent.digest
    if watcher.refused:
        watcher.found["refused"] = dict(watcher.refused)
    return Record(
        **watcher.curves,
        client_accuracy_N=_client_accuracies(context, settings.clients, run.sent),
        found=watcher.found,
        seconds=now_s() - started_s,
        steps=watcher.steps,
        model_digest=digest,
    )


@lru_cache(maxsize=1)
def dataset_of(data: DataSettings) -> Dataset:
    """The data set of some settings; the last one is cached for the next job of this process."""
    return labelled(read_dataset(Settings(data=data).data))


class _Curves(Watcher):
    """Collects the results of a run by round. curves: fields of `Record`. found: other results. refused: updates by
    reason. steps: of all clients.
    """

    def __init__(
        self,
        settings: Settings,
        context: TrainingContext,
        training_loss_every: int | None,
        on_progress: Callable[[float], None],
    ) -> None:
        self.curves: dict[str, list[Any]] = {name: [] for name in _CURVES}
        self.found: dict[str, Any] = {}
        self.refused: Counter[str] = Counter()
        self.steps = 0
        self._rounds = settings.rounds
        self._main = main_metric(settings, context.main)
        self._context = context
        self._every = training_loss_every
        self._on_progress = on_progress
        self._sent: Version | None = None

    def acted(self, _: events.Event, acts: Iterable[actions.Action]) -> None:
        """Count refused updates in the coordinator's actions."""
        self.refused.update(refusals(acts))

    @override
    def round_applied(self, result: RoundResult, updates: Sequence[RoundUpdate]) -> None:
        self._sent = result.sent
        heaviest = max(map(abs, result.weights_K), default=0.0)
        values = {
            "training_loss_R": _rounded(fsum(update.loss for update in updates) / len(updates) if updates else nan),
            "staleness_R": _rounded(
                fsum(weight * staleness for weight, staleness in zip(result.weights_K, result.staleness, strict=True))
            ),
            "counted_R": sum(abs(weight) >= COUNTED * heaviest for weight in result.weights_K),
            "heavy_R": sum(weight > HEAVY for weight in result.weights_K),
        }
        for name, value in values.items():
            self.curves[name].append(value)
        if result.compensation is not None:
            self.curves["errors"] += [
                (result.version, error.method, _rounded(error.l1), _rounded(error.cosine))
                for error in result.compensation.errors
            ]
        self.steps += sum(self._context.trainer.steps_of(update.client_id) for update in updates)
        self._on_progress(result.version / self._rounds)

    @override
    def evaluated(self, version: int, evaluation: Measured, at_s: float) -> None:
        values = {
            "version_E": version,
            "time_E": at_s,
            "accuracy_E": evaluation.metrics.get("accuracy", nan),
            "loss_E": _rounded(evaluation.metrics.get("loss", nan)),
            "class_accuracy_EC": list(evaluation.class_accuracy),
        }
        for name, value in values.items():
            self.curves[name].append(value)
        if self._main != ACCURACY:
            more = self.found.setdefault(MAIN_METRIC, {"name": self._main.name, "values_E": []})
            more["values_E"].append(_rounded(evaluation.metrics.get(self._main.name, nan)))
        count = len(self.curves["version_E"])
        is_due = self._every is not None and (count % self._every == 0 or version == self._rounds)
        if is_due and self._sent is not None:
            self.found.setdefault("training_loss", []).append([version, _rounded(self._training_loss(self._sent))])

    def _training_loss(self, sent: Version) -> float:
        """Mean over all training examples, nats."""
        context, dataset = self._context, self._context.dataset
        assert context.objective is not None, "a paper's clients train on a data set"
        losses = [
            len(part_n)
            * evaluate(
                context.model,
                sent.model_d,
                dataset.examples("train", part_n.numpy(), context.device),
                context.objective,
                buffers_b=sent.buffers_b,
            ).metrics["loss"]
            for part_n in torch.split(torch.arange(len(dataset.train.labels_N)), _EXAMPLES_AT_A_TIME)
        ]
        return fsum(losses) / len(dataset.train.labels_N)


def refusals(acts: Iterable[actions.Action]) -> Iterator[str]:
    """Reasons of the refused updates among the coordinator's actions."""
    for act in acts:
        if isinstance(act, actions.Acknowledge) and act.outcome is actions.Outcome.REJECTED and act.reason is not None:
            yield act.reason


def _rounded(value: float) -> float:
    """Round to float32's 7 digits, which halves the length of a stored run."""
    return float(f"{value:.7g}")


def _client_accuracies(context: TrainingContext, clients: int, sent: Version) -> list[float | None]:
    """Accuracy of each client on its own test examples; empty where the test set does not name owners."""
    if context.trainer.test_partitions is None:
        return []
    measured = (context.trainer.evaluate(client_id, sent.model_d, sent.buffers_b) for client_id in range(clients))
    return [None if one is None else one.metrics.get("accuracy") for one in measured]
