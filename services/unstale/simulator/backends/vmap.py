"""Backend `vmap`: trains clients as one batch on the model's device, if their mini-batches have equal sizes.

Legend: K clients of a batch, d parameters, X the shape of one example, b examples of a mini-batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from typing_extensions import override

from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.simulator.backends.backend import Backend, Computed, Job, Result
from unstale.training.datasets import Dataset
from unstale.training.initialise import draws
from unstale.training.local import LocalTask, LocalUpdate
from unstale.training.objectives import Objective
from unstale.training.trainer import Trainer
from unstale.training.trainings import Gradient, Sgd
from unstale.training.workload import ClientTask, Workload

_BATCH_CLIENTS_MAX = 64
"""Most clients of a batch, because each needs memory for its parameters and activations."""


class Vmap(Backend):
    """Trainings `gradient` and `sgd`, for models without buffers and without random numbers, such as dropout's.

    A batch sums in another order than one client, so its results differ from those of `loop` by rounding (decision
    0022), and depend on the clients of the batch.
    """

    at_a_time = _BATCH_CLIENTS_MAX // 8  # `LazyTraining` collects up to eight times as many jobs: a full batch

    def __init__(self, workload: Workload) -> None:
        """Raises UserError for a workload, training or model that the backend cannot compute."""
        if not isinstance(workload, Trainer):
            raise _unsupported(f"the built-in training of a data set, got {type(workload).__name__}")
        if not isinstance(workload.data, Dataset):
            raise _unsupported("a data set of labelled tensors")
        training, model = workload.training, workload.model
        if type(training) not in (Gradient, Sgd):
            raise _unsupported(f"training.name gradient or sgd, got {training.name!r}")
        if model.buffers_b.numel():
            raise _unsupported("a model without buffers, such as BatchNorm's averages")
        if draws(model.module):
            raise _unsupported("a model of known layers without random numbers, such as dropout's")
        self._trainer = workload
        self._training = training
        self._model = model
        self._gradients = _gradients(model, workload.objective)

    @override
    def compute(self, jobs: Sequence[Job]) -> list[Result]:
        trainer = self._trainer
        tasks = [job.task for job in jobs]
        local_tasks = [trainer.local_task(task) for task in tasks]
        groups: dict[tuple[int, ...], list[int]] = {}  # indexes of tasks, by the sizes of their mini-batches
        for index, local_task in enumerate(local_tasks):
            groups.setdefault(tuple(map(len, local_task.batches)), []).append(index)
        updates: dict[int, LocalUpdate] = {}
        for group in groups.values():
            for start in range(0, len(group), _BATCH_CLIENTS_MAX):
                batch = group[start : start + _BATCH_CLIENTS_MAX]
                trained = self._train([tasks[index] for index in batch], [local_tasks[index] for index in batch])
                updates.update(zip(batch, trained, strict=True))
        return [
            Computed(
                local=trainer.sent(job.client_id, job.number, updates[index]),
                evaluation=trainer.evaluate(job.client_id, job.base.model_d) if job.evaluate else None,
            )
            for index, job in enumerate(jobs)
        ]

    @override
    def keep(self, client_id: int, number: int) -> None:
        """Does nothing: these trainings have no state."""

    @override
    def drop(self, client_id: int, number: int) -> None:
        """Does nothing: these trainings have no state."""

    def _train(self, client_tasks: Sequence[ClientTask], tasks: Sequence[LocalTask]) -> list[LocalUpdate]:
        """Compute the updates of tasks whose mini-batches have equal sizes. client_tasks: of the same clients."""
        training, device = self._training, self._model.parameters_d.device
        self._model.module.train()
        examples = [self._trainer.tensors(task.client_id, task.version) for task in client_tasks]
        base_Kd = torch.stack([task.base_d for task in tasks]).to(device)
        rates_K1 = torch.tensor([[task.learning_rate] for task in tasks], device=device)
        parameters_Kd = base_Kd.clone()
        velocity_Kd: Tensor | None = None
        losses_K = torch.zeros(len(tasks), device=device)
        for step in range(len(tasks[0].batches)):
            inputs_KbX, labels_Kb = (
                torch.stack(
                    [data[part].index_select(0, task.batches[step]) for data, task in zip(examples, tasks, strict=True)]
                )
                for part in (0, 1)
            )
            vectors_Kd, loss_K = self._gradients(parameters_Kd, inputs_KbX, labels_Kb)
            losses_K += loss_K
            if isinstance(training, Sgd):  # the step of `StepTraining`
                steps_Kd = vectors_Kd.add_(parameters_Kd, alpha=training.weight_decay)
                if training.momentum:
                    velocity_Kd = (
                        steps_Kd if velocity_Kd is None else velocity_Kd.mul_(training.momentum).add_(steps_Kd)
                    )
                    steps_Kd = velocity_Kd
                parameters_Kd.sub_(rates_K1 * steps_Kd)
        if training.kind == "delta":
            vectors_Kd = base_Kd.sub_(parameters_Kd)
        means = (losses_K / len(tasks[0].batches)).tolist()
        return [
            LocalUpdate(
                vector_d=vector_d,
                kind=training.kind,
                num_examples=len(labels_n),
                batch_examples=len(task.batches[0]) if training.kind == "gradient" else len(labels_n),
                steps=len(task.batches),
                loss=mean,
                learning_rate=task.learning_rate,
            )
            for vector_d, (_, labels_n), task, mean in zip(vectors_Kd, examples, tasks, means, strict=True)
        ]


def _gradients(model: FlatModel, objective: Objective):  # type: ignore[no-untyped-def]
    """A function of (parameters_Kd, inputs_KbX, labels_Kb) that gives gradients [K, d] and mean losses [K]."""
    named = model.parameters
    sizes = [parameter.numel() for _, parameter in named]

    def loss(parameters_d: Tensor, inputs_bX: Tensor, labels_b: Tensor) -> Tensor:
        parts = zip(named, torch.split(parameters_d, sizes), strict=True)
        parameters = {name: part.view(like.shape) for (name, like), part in parts}
        return objective.loss(functional_call(model.module, parameters, inputs_bX), labels_b)

    return vmap(grad_and_value(loss))


def _unsupported(expected: str) -> UserError:
    return UserError(f"simulation.backend is 'vmap', expected {expected}; leave simulation.backend at auto")
