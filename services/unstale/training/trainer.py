"""Training of the clients of one process on one model instance, in client processes and in the simulator.

Legend: d parameters, b numbers of the model's float buffers, n training and m test examples of a client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.attack import Attack
from unstale.training.datasets import Dataset
from unstale.training.evaluate import evaluate
from unstale.training.initialise import draws
from unstale.training.local import LocalTask, LocalTraining, LocalUpdate, check_buffers
from unstale.training.measured import Measured
from unstale.training.partition import Indices, VariantStream

PENDING_MAX = 16
"""Maximum of a client's updates that wait for a verdict, whose state is stored; more remove the oldest.

A client has one task at a time, so there are several only if verdicts were lost in transit.
"""


class TaskOptions(TypedDict, total=False):
    """Optional values of `LocalTask`."""

    buffers_b: Tensor | None
    extra_d: Tensor | None
    version: int | None


@dataclass(eq=False, slots=True)
class _ClientExamples:
    inputs_nX: Tensor
    labels_n: Tensor
    replaced: int = 0  # number of initial examples that later ones have replaced, in the order of `VariantStream`


@dataclass(eq=False, repr=False)
class Trainer:
    """Trains any of the clients. An update depends on its task and its client's state only, not on earlier training.

    The state of a client is on the host, one vector [d] per name: with `moon` or `scaffold` each client needs d
    numbers. One thread at a time.
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
    _kept: dict[int, dict[str, Tensor]] = field(default_factory=dict, init=False)
    _pending: dict[int, dict[int, Mapping[str, Tensor]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._has_draws = draws(self.model.module)  # whether the model draws numbers in training, as dropout does

    def train(
        self, client_id: int, number: int, base_d: Tensor, learning_rate: float, **options: Unpack[TaskOptions]
    ) -> LocalUpdate:
        """The update of one task. number: of the client's task, from 0. Other arguments: as in `LocalTask`.

        Stores its `state` until the verdict on it, which the caller reports by `keep` or `drop`.
        """
        return self.compute(client_id, number, self.task(client_id, number, base_d, learning_rate, **options))

    def task(
        self, client_id: int, number: int, base_d: Tensor, learning_rate: float, **options: Unpack[TaskOptions]
    ) -> LocalTask:
        """The first half of `train`: the task with all random numbers drawn. `compute` is the second half."""
        seed = None
        if self._has_draws:
            seed = int(stream(self.seed, Stream.BATCHES, client_id, number, 0).integers(2**63))
        _, labels_n = self.examples(client_id, options.get("version"))
        batches = self.training.batches(labels_n, stream(self.seed, Stream.BATCHES, client_id, number))
        state = self.kept(client_id)
        return LocalTask(base_d=base_d, learning_rate=learning_rate, batches=batches, seed=seed, state=state, **options)

    def compute(self, client_id: int, number: int, task: LocalTask) -> LocalUpdate:
        """The update of a task, made by `task` for the same client and number. Stores its `state` as `train` does."""
        inputs_nX, labels_n = self.examples(client_id, task.version)
        update = self.training.compute(self.model, inputs_nX, labels_n, task)
        if update.state:
            pending = self._pending.setdefault(client_id, {})
            pending[number] = {key: tensor.to("cpu") for key, tensor in update.state.items()}
            if len(pending) > PENDING_MAX:
                del pending[next(iter(pending))]
        return self.sent(client_id, number, update)

    def sent(self, client_id: int, number: int, update: LocalUpdate) -> LocalUpdate:
        """The update that a client sends: the trained one, or one that its attack replaces it by."""
        return update if self.attack is None else self.attack.update(client_id, number, update)

    def steps_of(self, client_id: int) -> int:
        """Optimiser steps of each of a client's tasks."""
        return self.training.steps_of(self.examples_of(client_id))

    def examples_of(self, client_id: int) -> int:
        """Number of examples of a client, at every version."""
        return len(self.partitions[client_id])

    def keep(self, client_id: int, number: int) -> bool:
        """Make the state of an accepted update the client's. Returns whether it changed: not on a second call."""
        state = self._pending.get(client_id, {}).get(number, {})
        self.drop(client_id, number)
        for key, tensor in state.items():
            kept = self._kept.setdefault(client_id, {})
            adds = self.training.state_adds and key in kept
            kept[key] = kept[key] + tensor if adds else tensor  # not in place: callers of `kept` may reference it
        return bool(state)

    def drop(self, client_id: int, number: int) -> None:
        """Delete the stored state of an update that was not accepted."""
        pending = self._pending.get(client_id, {})
        pending.pop(number, None)
        if not pending:
            self._pending.pop(client_id, None)

    def kept(self, client_id: int) -> Mapping[str, Tensor]:
        """The state of a client after its accepted updates, by name: no copies, read-only. Empty for most trainings."""
        return self._kept.get(client_id, {})

    def restore(self, client_id: int, kept: Mapping[str, Tensor], pending: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Restore the state of a client from an earlier process.

        kept: as from `kept`. pending: `LocalUpdate.state` of updates without a verdict, by task, oldest first.
        """
        self._kept[client_id] = dict(kept)
        newest = list(pending.items())[-PENDING_MAX:]
        if newest:
            self._pending[client_id] = dict(newest)

    def evaluate_own(self, client_id: int, base_d: Tensor, buffers_b: Tensor | None = None) -> Measured | None:
        """Evaluate a model on the client's own test examples; None if it has none."""
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
