"""Training of the clients of one process on one model instance, in client processes and in the simulator.

Legend: d parameters, b numbers of the model's float buffers, n training and m test examples of a client.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.attack import Attack
from unstale.training.client_state import ClientState
from unstale.training.datasets import Dataset
from unstale.training.evaluate import evaluate
from unstale.training.initialise import draws
from unstale.training.local import LocalTask, LocalTraining, LocalUpdate, check_buffers
from unstale.training.measured import Measured
from unstale.training.partition import Indices, VariantStream
from unstale.training.workload import ClientTask, Workload


@dataclass(eq=False, slots=True)
class _ClientExamples:
    inputs_nX: Tensor
    labels_n: Tensor
    replaced: int = 0  # number of initial examples that later ones have replaced, in the order of `VariantStream`


@dataclass(eq=False, repr=False)
class Trainer(Workload):
    """Trains on shares of a data set by a local training.

    With `moon` or `scaffold` each client keeps d numbers on the host.
    """

    dataset: Dataset
    partitions: Sequence[Indices]  # of the training examples, by client id; gathered when the client first trains
    model: FlatModel  # workspace that every training overwrites
    training: LocalTraining
    seed: int
    _: KW_ONLY
    test_partitions: Sequence[Indices] | None = None  # of the test examples, by client id; None if clients have none
    changes: VariantStream | None = None  # replaces examples from version to version; None for constant data
    attack: Attack | None = None
    _examples: dict[int, _ClientExamples] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._has_draws = draws(self.model.module)  # whether the model draws numbers in training, as dropout does
        self.client_state = ClientState(adds=self.training.state_adds)
        self.keeps_state = self.training.keeps_state
        self.needs_extra = self.training.needs_extra

    @override
    def train(self, task: ClientTask) -> LocalUpdate:
        return self._compute(task, self.local_task(task))

    @override
    def train_each(self, tasks: Iterable[ClientTask]) -> Iterator[LocalUpdate]:
        drawn = [(task, self.local_task(task)) for task in tasks]  # consecutive draws are faster
        for task, local_task in drawn:
            yield self._compute(task, local_task)

    def local_task(self, task: ClientTask) -> LocalTask:
        """The task with all random numbers drawn."""
        client_id, number = task.client_id, task.number
        seed = None
        if self._has_draws:
            seed = int(stream(self.seed, Stream.BATCHES, client_id, number, 0).integers(2**63))
        _, labels_n = self.examples(client_id, task.version)
        return LocalTask(
            base_d=task.base_d,
            learning_rate=task.learning_rate,
            batches=self.training.batches(labels_n, stream(self.seed, Stream.BATCHES, client_id, number)),
            seed=seed,
            buffers_b=task.buffers_b,
            extra_d=task.extra_d,
            state=self.kept(client_id),
        )

    def _compute(self, task: ClientTask, local_task: LocalTask) -> LocalUpdate:
        inputs_nX, labels_n = self.examples(task.client_id, task.version)
        update = self.training.compute(self.model, inputs_nX, labels_n, local_task)
        self.client_state.put(task.client_id, task.number, update.state)
        return self.sent(task.client_id, task.number, update)

    def sent(self, client_id: int, number: int, update: LocalUpdate) -> LocalUpdate:
        """The update that a client sends: the trained one, or one that its attack replaces it by."""
        return update if self.attack is None else self.attack.update(client_id, number, update)

    @override
    def steps_of(self, client_id: int) -> int:
        return self.training.steps_of(self.examples_of(client_id))

    def examples_of(self, client_id: int) -> int:
        """Number of examples of a client, at every version."""
        return len(self.partitions[client_id])

    @override
    def evaluate(self, client_id: int, base_d: Tensor, buffers_b: Tensor | None = None) -> Measured | None:
        if self.test_partitions is None:
            return None
        check_buffers(self.model, buffers_b)
        own_m = torch.from_numpy(self.test_partitions[client_id])
        if not len(own_m):
            return None
        device = self.model.parameters_d.device
        inputs_mX = self.dataset.test_examples(own_m).to(device)
        labels_m = self.dataset.test.labels_N.index_select(0, own_m).to(device)
        return evaluate(self.model, base_d, inputs_mX, labels_m, self.dataset.classes, buffers_b=buffers_b)

    def examples(self, client_id: int, version: int | None = None) -> tuple[Tensor, Tensor]:
        """Inputs [n, ...] float32 and labels [n] int64 of a client, on the model's device. Read-only.

        With `changes`, valid until the next call for this client with another version.
        """
        own = self._examples.get(client_id)
        if own is None:
            own = self._examples[client_id] = self._gathered(client_id)
        if self.changes is not None:
            assert version is not None, "the data of a client depends on the version"
            self._replace(own, client_id, self.changes, version)
        return own.inputs_nX, own.labels_n

    def _gathered(self, client_id: int) -> _ClientExamples:
        own_n = torch.from_numpy(self.partitions[client_id])
        device = self.model.parameters_d.device
        labels_n = self.dataset.train.labels_N.index_select(0, own_n)
        if self.attack is not None:
            labels_n = self.attack.labels(client_id, labels_n, self.dataset.classes)
        return _ClientExamples(self.dataset.train_examples(own_n).to(device), labels_n.to(device))

    def _replace(self, own: _ClientExamples, client_id: int, changes: VariantStream, version: int) -> None:
        """Replace examples by those of a version, which may be earlier. Labels stay: a new example has the same one."""
        replaced = changes.count(client_id, version)
        if replaced == own.replaced:
            return
        positions_n, later_n = changes.replacements(client_id)
        changed = slice(*sorted((replaced, own.replaced)))
        indices_n = positions_n[changed]
        if replaced > own.replaced:
            inputs_nX = self.dataset.later_examples(later_n[changed])
        else:
            inputs_nX = self.dataset.train_examples(self.partitions[client_id][indices_n])
        device = own.inputs_nX.device
        own.inputs_nX.index_copy_(0, torch.from_numpy(indices_n).to(device), inputs_nX.to(device))
        own.replaced = replaced
