"""Training of the clients of one process on one model instance, in client processes and in the simulator.

Legend: d parameters, b numbers of the model's float buffers, n training and m test examples of a client.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor
from typing_extensions import override

from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.attack import Attack
from unstale.training.client_state import ClientState
from unstale.training.datasets import Data, labelled
from unstale.training.evaluate import evaluate
from unstale.training.examples import Count, Examples, Pool, ReadError, TensorExamples
from unstale.training.initialise import draws
from unstale.training.local import LocalTask, LocalTraining, LocalUpdate, check_buffers
from unstale.training.measured import Measured
from unstale.training.objectives import Classification, Objective
from unstale.training.partition import Indices, VariantStream
from unstale.training.workload import ClientTask, FailureLog, NotTrained, TrainingFailed, Workload


@dataclass(eq=False, repr=False)
class Trainer(Workload):
    """Trains on shares of a data set by a local training.

    With `moon` or `scaffold` each client keeps d numbers on the host.
    """

    data: Data
    # of the training examples, by client id; gathered when the client first trains
    partitions: Mapping[int, Indices] | Sequence[Indices]
    model: FlatModel  # workspace that every training overwrites
    training: LocalTraining
    seed: int
    _: KW_ONLY
    objective: Objective = field(default_factory=Classification)
    # of the test examples, by client id; None if clients have none
    test_partitions: Mapping[int, Indices] | Sequence[Indices] | None = None
    changes: VariantStream | None = None  # replaces examples from version to version; None for constant data
    attack: Attack | None = None
    _examples: dict[int, Examples] = field(default_factory=dict, init=False)
    _pool: Pool | None = field(default=None, init=False)  # where the examples of clients are; None for tensors of each
    # by client, number of initial examples that later ones have replaced, in the order of `VariantStream`
    _replaced: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._failures = FailureLog()
        self._has_draws = draws(self.model.module)  # whether the model draws numbers in training, as dropout does
        self.client_state = ClientState(adds=self.training.state_adds)
        self.keeps_state = self.training.keeps_state
        self.needs_extra = self.training.needs_extra

    @override
    def train(self, task: ClientTask) -> LocalUpdate:
        return self._compute(task, self.local_task(task))

    @override
    def train_each(self, tasks: Iterable[ClientTask]) -> Iterator[LocalUpdate | NotTrained]:
        drawn = [(task, self.local_task(task)) for task in tasks]  # consecutive draws are faster
        for task, local_task in drawn:
            try:
                yield self._compute(task, local_task)
            except NotTrained as error:
                yield error

    def local_task(self, task: ClientTask, indices_on: torch.device | None = None) -> LocalTask:
        """The task with all random numbers drawn. indices_on: the device of the mini-batches' indices; None for that of
        the examples.
        """
        client_id, number = task.client_id, task.number
        examples = self.examples(client_id, task.version)
        seed = None
        if self._has_draws or not isinstance(examples, TensorExamples):  # a data set may draw when it is read
            seed = int(stream(self.seed, Stream.BATCHES, client_id, number, 0).integers(2**63))
        if examples.in_order:
            batches = self.training.batches_in_order(len(examples), number)
        else:
            countable = examples if indices_on is None else Count(len(examples), indices_on)
            batches = self.training.batches(countable, stream(self.seed, Stream.BATCHES, client_id, number))
        return LocalTask(
            base_d=task.base_d,
            learning_rate=task.learning_rate,
            batches=batches,
            seed=seed,
            buffers_b=task.buffers_b,
            extra_d=task.extra_d,
            state=self.kept(client_id),
        )

    def _compute(self, task: ClientTask, local_task: LocalTask) -> LocalUpdate:
        examples = self.examples(task.client_id, task.version)
        try:
            with self._failures.failing("the training", task.client_id, passes=(UserError,)):
                update = self.training.compute(self.model, examples, self.objective, local_task)
        except ReadError as error:
            raise TrainingFailed(str(error)) from error
        state = self.client_state.put(task.client_id, task.number, update.state)
        if state:
            update = replace(update, state=state)
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
        own_m = self.test_partitions[client_id]
        if not len(own_m):
            return None
        device = self.model.parameters_d.device
        examples = self.data.examples("test", own_m, device)
        try:
            with self._failures.failing("the evaluation", client_id, passes=(UserError,)):
                return evaluate(self.model, base_d, examples, self.objective, buffers_b=buffers_b)
        except (ReadError, TrainingFailed):
            return None  # the log has the cause; the client can still train

    @property
    def counts(self) -> dict[int, int]:
        """`examples_of` by client."""
        ids = self.partitions if isinstance(self.partitions, Mapping) else range(len(self.partitions))
        return {client_id: self.examples_of(client_id) for client_id in ids}

    def pool(self) -> Pool:
        """From now on the examples of all clients of a labelled data set are rows of these tensors. A client's rows are
        copied when it first trains.
        """
        if self._pool is None:
            self._pool = Pool(self.counts, self.data.input_shape, self.model.parameters_d.device)
            self._examples.clear()
            self._replaced.clear()
        return self._pool

    def tensors(self, client_id: int, version: int = 0) -> tuple[Tensor, Tensor]:
        """Inputs [n, ...] float32 and labels [n] int64 of a client of a labelled data set, as in `examples`."""
        examples = self.examples(client_id, version)
        assert isinstance(examples, TensorExamples), "the data set has labelled tensors"
        return examples.inputs, examples.targets

    def examples(self, client_id: int, version: int = 0) -> Examples:
        """The examples of a client at a version. Read-only.

        With `changes`, valid until the next call for this client with another version.
        """
        own = self._examples.get(client_id)
        if own is None:
            own = self._examples[client_id] = self._gathered(client_id)
        if self.changes is not None:
            self._replace(client_id, self.changes, version)
        return own

    def _gathered(self, client_id: int) -> Examples:
        examples = self.data.examples("train", self.partitions[client_id], self.model.parameters_d.device)
        if self.attack is not None:
            examples = self.attack.examples(client_id, examples, self.data)
        if self._pool is not None:
            assert isinstance(examples, TensorExamples), "the data set has labelled tensors"
            return self._pool.put(client_id, examples)
        return examples

    def _replace(self, client_id: int, changes: VariantStream, version: int) -> None:
        """Replace examples by those of a version, which may be earlier. Labels stay: a new example has the same one."""
        replaced, before = changes.count(client_id, version), self._replaced.get(client_id, 0)
        if replaced == before:
            return
        dataset = labelled(self.data)
        positions_n, later_n = changes.replacements(client_id)
        changed = slice(*sorted((replaced, before)))
        indices_n = positions_n[changed]
        if replaced > before:
            inputs_nX = dataset.later_examples(later_n[changed])
        else:
            inputs_nX = dataset.train_examples(self.partitions[client_id][indices_n])
        examples = self._examples[client_id]
        assert isinstance(examples, TensorExamples), "the data set has labelled tensors"
        own_nX = examples.inputs
        own_nX.index_copy_(0, torch.from_numpy(indices_n).to(own_nX.device), inputs_nX.to(own_nX.device))
        self._replaced[client_id] = replaced
