"""Backend `vmap`: trains clients as one batch on the model's device."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from unstale.device_memory import memory_bytes
from unstale.errors import UserError
from unstale.graphs import CudaGraphs, Graphs
from unstale.simulator.backends.backend import Backend, Computed, Job, Result, one_by_one
from unstale.simulator.backends.batched_model import BatchedModel, unsupported
from unstale.simulator.backends.local_loops import CapturedLoops, EagerLoops
from unstale.training.datasets import Dataset
from unstale.training.local import LocalTask, LocalUpdate
from unstale.training.objectives import Classification
from unstale.training.trainer import Trainer
from unstale.training.trainings import FedProx, Gradient, Sgd
from unstale.training.workload import Workload
from unstale_proto.limits import FLOAT_BYTES

_BATCH_CLIENTS_MAX = 64
"""Most clients of a batch, because each needs memory for its parameters and activations."""

_UPDATES_BYTES_MAX = 1 << 30
"""Most memory of the host for the updates of a batch that a GPU computes."""

_NOISE_BYTES_MAX = 1 << 30
"""Most memory for the noise of a batch's dropout layers, which is drawn before the first step."""

_HOST = torch.device("cpu")


class Vmap(Backend):
    """Trainings `gradient`, `sgd` and `fedprox`, for models without buffers whose only random numbers are dropout's.

    A batch sums in another order than one client, so its results differ from those of `loop` by rounding (decision
    0022), and depend on the clients of the batch.

    Without graphs, as on the CPU, the clients of a batch have mini-batches of equal sizes. With graphs all clients are
    trained together: smaller mini-batches are filled up with examples without a loss, and clients with fewer steps end
    earlier.
    """

    at_a_time = _BATCH_CLIENTS_MAX // 8  # `LazyTraining` collects up to eight times as many jobs, if they fit

    def __init__(self, workload: Workload, graphs: Graphs | None = None) -> None:
        """graphs: of the device; None for those of CUDA, and none on the CPU. Raises UserError for a workload, training
        or model that the backend cannot compute.
        """
        if (expected := expectation(workload, graphs)) is not None:
            raise UserError(f"simulation.backend is 'vmap', expected {expected}; leave simulation.backend at auto")
        assert isinstance(workload, Trainer) and isinstance(workload.training, Gradient | Sgd)
        assert isinstance(workload.data, Dataset)
        device = workload.model.parameters_d.device
        if graphs is None and device.type == "cuda":
            graphs = CudaGraphs(device)
        self._trainer, self._training, self._graphs = workload, workload.training, graphs
        self._fills_up = graphs is not None
        self._pool = workload.pool()
        self._model = BatchedModel(workload.model, workload.objective, workload.data, fills_up=self._fills_up)
        counts = workload.counts.values()
        self._steps = set(map(self._training.steps_of, counts))
        self._size = min(self._training.batch_size, max(counts))
        noise_bytes = FLOAT_BYTES * self._model.noise_numbers * max(self._steps) * self._size
        self._together = max(1, min(_BATCH_CLIENTS_MAX, _NOISE_BYTES_MAX // max(1, noise_bytes)))
        self._loops: EagerLoops | None = None
        if graphs is not None:
            fit = _UPDATES_BYTES_MAX // (FLOAT_BYTES * workload.model.dimension)
            self.at_a_time = max(self.at_a_time, min(self._together, fit))

    @override
    def compute(self, jobs: Sequence[Job]) -> list[Result]:
        if self._fills_up and len(jobs) == 1:  # a batch of one takes longer than the loop
            return list(one_by_one(self._trainer, jobs))
        trainer = self._trainer
        batch = [self._batched(job) for job in jobs]
        updates: dict[int, LocalUpdate] = {}
        for group in self._groups(batch):
            updates.update(self._trained(batch, group))
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

    def _batched(self, job: Job) -> "_Client":
        task, trainer = job.task, self._trainer
        trainer.examples(task.client_id, task.version)
        return _Client(
            task=trainer.local_task(task, _HOST),
            start=self._pool.starts[task.client_id],
            examples=trainer.examples_of(task.client_id),
        )

    def _groups(self, batch: Sequence["_Client"]) -> Iterator[list[int]]:
        """Indexes of clients that are trained together, those with more steps first."""
        if self._fills_up:
            yield sorted(range(len(batch)), key=lambda index: -len(batch[index].task.batches))
            return
        groups: dict[tuple[int, ...], list[int]] = {}  # by the sizes of their mini-batches
        for index, client in enumerate(batch):
            groups.setdefault(tuple(map(len, client.task.batches)), []).append(index)
        yield from groups.values()

    def _trained(self, batch: Sequence["_Client"], group: Sequence[int]) -> Iterator[tuple[int, LocalUpdate]]:
        """The updates of a group by their indexes.

        Halves the batches while the device's memory is too small. Raises OutOfMemoryError if it is too small for one.
        """
        start = 0
        while start < len(group):
            indexes = group[start : start + self._together]
            clients = [batch[index] for index in indexes]
            try:
                if self._loops is None:
                    self._loops = self._new_loops()
                vectors_Kd, losses = self._loops.train(
                    [client.task for client in clients], [client.start for client in clients]
                )
            except torch.OutOfMemoryError:
                self._loops = None
                if len(clients) == 1:
                    raise
                self._together = (1 << (len(clients) - 1).bit_length()) // 2
                continue
            for index, client, vector_d, loss in zip(indexes, clients, vectors_Kd, losses, strict=True):
                yield index, self._update(client, vector_d, loss)
            start += len(clients)

    def _new_loops(self) -> EagerLoops:
        if self._graphs is None:
            return EagerLoops(self._model, self._training, self._pool)
        return CapturedLoops(
            self._model,
            self._training,
            self._pool,
            self._graphs,
            clients=self._together,
            steps=self._steps,
            size=self._size,
        )

    def _update(self, client: "_Client", vector_d: Tensor, loss: float) -> LocalUpdate:
        training, task = self._training, client.task
        return LocalUpdate(
            vector_d=vector_d,
            kind=training.kind,
            num_examples=client.examples,
            batch_examples=len(task.batches[0]) if training.kind == "gradient" else client.examples,
            steps=len(task.batches),
            loss=loss,
            learning_rate=task.learning_rate,
        )


class _Client(NamedTuple):
    """A client of a batch."""

    task: LocalTask
    start: int  # of its rows in the pool
    examples: int


def expectation(workload: Workload, graphs: Graphs | None = None) -> str | None:
    """The kind of run that `Vmap` computes, where this is another one; else None. graphs: as for `Vmap`."""
    if not isinstance(workload, Trainer):
        return f"the built-in training of a data set, got {type(workload).__name__}"
    if not isinstance(workload.data, Dataset):
        return "a data set of labelled tensors"
    if type(workload.training) not in (Gradient, Sgd, FedProx):
        return f"training.name gradient, sgd or fedprox, got {workload.training.name!r}"
    device = workload.model.parameters_d.device
    if (graphs is not None or device.type == "cuda") and type(workload.objective) is not Classification:
        return f"objective.name classification on a GPU, got {type(workload.objective).__name__}"
    if device.type == "cuda" and _pool_bytes(workload) > memory_bytes(device) // 2:
        return "examples of all clients in half of the device's memory"
    return unsupported(workload.model, workload.data.input_shape)


def _pool_bytes(trainer: Trainer) -> int:
    return FLOAT_BYTES * prod(trainer.data.input_shape) * sum(trainer.counts.values())
