# mypy: disable-error-code="import-not-found"
"""Federated averaging in pfl-research, on the data, shares and model of a run's settings. Only `benchmarks.pfl_cifar10`
starts it.

    python -m torch.distributed.run ... -m benchmarks.pfl_app SETTINGS.json

Runs in an environment that has pfl-research. The first process prints, as one line of JSON, the `time.perf_counter` of
each applied round and the accuracy of the last model. Follows its documentation (0.6) and its own benchmark, with
simple speed-ups: the examples are tensors already, and there is no evaluation between rounds.
"""

import json
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from unstale.config.build import evaluation
from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.learner.versions import Version
from unstale.training.models import build

_EVALUATED_AT_A_TIME = 1000  # examples


class _Classifier(nn.Module):
    """The model with the methods that pfl-research calls."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs_bX: Tensor) -> Tensor:
        logits_bC: Tensor = self.module(inputs_bX)
        return logits_bC

    def loss(self, inputs_bX: Tensor, labels_b: Tensor, eval: bool = False) -> Tensor:  # noqa: A002  (their name)
        self.train(not eval)
        return cross_entropy(self(inputs_bX), labels_b)

    @torch.no_grad()
    def metrics(self, inputs_bX: Tensor, labels_b: Tensor, eval: bool = True) -> dict[str, Any]:  # noqa: A002
        self.train(not eval)
        right = (self(inputs_bX).argmax(dim=1) == labels_b).sum().item()
        return {"accuracy": Weighted(right, len(labels_b))}


class _Marks(TrainingProcessCallback):  # type: ignore[misc]
    """Records the time of each applied round."""

    def __init__(self) -> None:
        self.applied_s: list[float] = []

    @override
    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.applied_s.append(time.perf_counter())
        return False, Metrics()


def play(settings_file: str) -> dict[str, object]:
    """Run the rounds."""
    settings = Settings(**json.loads(Path(settings_file).read_text(encoding="utf-8")))
    context = training_context(settings)  # also sets the number of threads
    dataset, training = context.dataset, settings.training
    np.random.seed(settings.seed)  # noqa: NPY002  (pfl-research draws clients from it, in all processes the same)
    module = build(settings.model.name, dataset.input_shape, dataset.classes, settings.seed)

    @cache
    def examples_of(client_id: int) -> Any:
        return Dataset(raw_data=list(context.trainer.tensors(client_id)), user_id=str(client_id))

    clients = FederatedDataset(examples_of, get_user_sampler("random", list(range(settings.clients))))
    marks = _Marks()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=settings.rounds,
            evaluation_frequency=settings.rounds + 1,
            train_cohort_size=settings.selector.size,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=None, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            model=_Classifier(module),
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=training.learning_rate,
            local_num_epochs=training.epochs,
            local_batch_size=training.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=_EVALUATED_AT_A_TIME),
        callbacks=[marks],
    )
    model_d = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    last = evaluation(context)(Version(model_d=model_d, buffers_b=torch.empty(0)))
    return {"applied_s": marks.applied_s, **last.metrics}


def main() -> None:
    figures = play(sys.argv[1])
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
