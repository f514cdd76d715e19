"""The work of the clients that one process hosts, on one model instance. Client processes and the simulator
share it.

Legend: d parameters, b numbers of the model's float buffers, n training and m test examples of a client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.attack import Attack
from unstale.training.datasets import Dataset
from unstale.training.evaluate import Evaluation, evaluate
from unstale.training.initialise import draws
from unstale.training.local import LocalTask, LocalTraining, LocalUpdate, check_buffers
from unstale.training.partition import Indices, VariantStream

PENDING_MAX = 16
"""Updates of one client whose fate is open; beyond it the oldest is forgotten. A client has one task at a time, so that
only verdicts that were lost on the way pile up.
"""


@dataclass(eq=False, slots=True)
class _Held:
    """What a client holds. replaced: how many of its examples have given way to later ones."""

    inputs_nX: Tensor
    labels_n: Tensor
    replaced: int = 0


class Trainer:
    """Trains any of the clients. What a task makes depends on its own arguments and on what its client has kept,
    never on what was trained before.

    shares: for each client id the indices of its training examples; a client's examples are gathered once,
    when it is first trained. model: the workspace of all of them. seed: the run's. test_shares: for each client id the
    indices of its own test examples, some perhaps none; None where the test set is not shared out. changes: which
    examples clients hold at each version; None where they keep them. attack: by some of the clients, for experiments;
    None where all are honest.

    What a client keeps lies on the host, one vector of the size of the model for each of its names, made when it first
    keeps it: N clients that train with `moon` or `scaffold` cost N * d numbers. One thread at a time.
    """

    def __init__(
        self,
        dataset: Dataset,
        shares: Sequence[Indices],
        model: FlatModel,
        training: LocalTraining,
        seed: int,
        *,
        test_shares: Sequence[Indices] | None = None,
        changes: VariantStream | None = None,
        attack: Attack | None = None,
    ) -> None:
        self._dataset = dataset
        self._shares = shares
        self._model = model
        self._training = training
        self._seed = seed
        self._test_shares = test_shares
        self._changes = changes
        self._attack = attack
        self._draws = draws(model.module)
        self._examples: dict[int, _Held] = {}
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._pending: dict[int, dict[int, Mapping[str, Tensor]]] = {}

    def train(
        self,
        client_id: int,
        number: int,
        base_d: Tensor,
        learning_rate: float,
        *,
        buffers_b: Tensor | None = None,
        extra_d: Tensor | None = None,
        version: int | None = None,
    ) -> LocalUpdate:
        """The update of one task. number: which task of this client, from 0. The rest: as in `LocalTask`.

        What the client is to keep from it waits for `keep` or `drop`.
        """
        task = self.task(
            *(client_id, number, base_d, learning_rate),
            buffers_b=buffers_b,
            extra_d=extra_d,
            version=version,
        )
        return self.compute(client_id, number, task)

    def task(
        self,
        client_id: int,
        number: int,
        base_d: Tensor,
        learning_rate: float,
        *,
        buffers_b: Tensor | None = None,
        extra_d: Tensor | None = None,
        version: int | None = None,
    ) -> LocalTask:
        """What `train` computes, with everything drawn. To draw for several tasks in a row takes less time."""
        seed = None
        if self._draws:
            seed = int(stream(self._seed, Stream.BATCHES, client_id, number, 0).integers(2**63))
        _, labels_n = self.examples(client_id, version)
        rng = stream(self._seed, Stream.BATCHES, client_id, number)
        return LocalTask(
            base_d=base_d,
            learning_rate=learning_rate,
            batches=self._training.batches(labels_n, rng),
            seed=seed,
            buffers_b=buffers_b,
            extra_d=extra_d,
            version=version,
        )

    def compute(self, client_id: int, number: int, task: LocalTask) -> LocalUpdate:
        """The update of a task that `task` made for this client and number."""
        inputs_nX, labels_n = self.examples(client_id, task.version)
        update = self._training.compute(self._model, inputs_nX, labels_n, task, self.kept(client_id))
        if update.state:
            pending = self._pending.setdefault(client_id, {})
            pending[number] = {key: tensor.to("cpu") for key, tensor in update.state.items()}
            if len(pending) > PENDING_MAX:
                del pending[next(iter(pending))]
        return self.sent(client_id, number, update)

    def sent(self, client_id: int, number: int, made: LocalUpdate) -> LocalUpdate:
        """The update that a client sends: `made` by its training, unless it attacks. `compute` gives this one."""
        return made if self._attack is None else self._attack.update(client_id, number, made)

    def steps_of(self, client_id: int) -> int:
        """Optimiser steps of each of a client's tasks."""
        return self._training.steps_of(len(self._shares[client_id]))

    def held(self, client_id: int) -> int:
        """Examples that a client holds, at every version."""
        return len(self._shares[client_id])

    def keep(self, client_id: int, number: int) -> bool:
        """The update of this task was accepted: the client keeps what it made, from now on. Once for a task: a second
        time does nothing, and neither does a task of which nothing is kept. Whether anything changed.
        """
        made = self._pending.get(client_id, {}).get(number, {})
        self.drop(client_id, number)
        for key, tensor in made.items():
            kept = self._kept.setdefault(client_id, {})
            adds = self._training.state_adds and key in kept
            kept[key] = kept[key] + tensor if adds else tensor  # not in place: others may hold it
        return bool(made)

    def drop(self, client_id: int, number: int) -> None:
        """The update of this task was not accepted: forget what the client would have kept."""
        pending = self._pending.get(client_id, {})
        pending.pop(number, None)
        if not pending:
            self._pending.pop(client_id, None)

    def kept(self, client_id: int) -> Mapping[str, Tensor]:
        """What the client keeps, by name: no copies, and never written to. Empty for most trainings."""
        return self._kept.get(client_id, {})

    def restore(
        self, client_id: int, kept: Mapping[str, Tensor], pending: Mapping[int, Mapping[str, Tensor]]
    ) -> None:
        """Take over what a client has from a process before this one. kept: as `kept` gave it. pending: by number of
        the task, the `LocalUpdate.state` of updates whose fate is open, oldest first."""
        self._kept[client_id] = dict(kept)
        newest = list(pending.items())[-PENDING_MAX:]
        if newest:
            self._pending[client_id] = dict(newest)

    def state_dict(self) -> dict[str, Tensor]:
        """All that clients have kept, by `CLIENT.NAME`: no copies, and never written to. What is pending is left out:
        whoever trains its task again has it again.
        """
        return {
            f"{client_id}.{key}": tensor
            for client_id, kept in sorted(self._kept.items())
            for key, tensor in kept.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` gave, in place of all that was kept or pending."""
        self._pending.clear()
        self._kept.clear()
        for name, tensor in state.items():
            client_id, _, key = name.partition(".")
            self._kept.setdefault(int(client_id), {})[key] = tensor.to("cpu")

    @property
    def has_own_tests(self) -> bool:
        """Whether the test set says whose its examples are."""
        return self._test_shares is not None

    def evaluate_own(
        self, client_id: int, base_d: Tensor, buffers_b: Tensor | None = None
    ) -> Evaluation | None:
        """How good a model is on the client's own test examples; None where the client has none, or nobody has.

        base_d: [d] and buffers_b: [b], as in `LocalTask`.
        """
        if self._test_shares is None:
            return None
        check_buffers(self._model, buffers_b)
        own_m = torch.from_numpy(self._test_shares[client_id])
        if not len(own_m):
            return None
        device = self._model.parameters_d.device
        return evaluate(
            self._model,
            base_d,
            self._dataset.test_examples(own_m).to(device),
            self._dataset.test.labels_N.index_select(0, own_m).to(device),
            self._dataset.classes,
            buffers_b=buffers_b,
        )

    def examples(self, client_id: int, version: int | None = None) -> tuple[Tensor, Tensor]:
        """The client's own at a version: [n, ...] float32 and labels [n] int64, on the model's device. Not to be
        written to. Where data changes, good until the client is asked for at another version.
        """
        held = self._examples.get(client_id)
        if held is None:
            held = self._examples[client_id] = self._gathered(client_id)
        if self._changes is not None:
            assert version is not None, "what a client holds depends on the version"
            self._bring_to(held, client_id, self._changes, version)
        return held.inputs_nX, held.labels_n

    def _gathered(self, client_id: int) -> _Held:
        own_n = torch.from_numpy(self._shares[client_id])
        device = self._model.parameters_d.device
        labels_n = self._dataset.train.labels_N.index_select(0, own_n)
        if self._attack is not None:
            labels_n = self._attack.labels(client_id, labels_n, self._dataset.classes)
        return _Held(inputs_nX=self._dataset.train_examples(own_n).to(device), labels_n=labels_n.to(device))

    def _bring_to(self, held: _Held, client_id: int, changes: VariantStream, version: int) -> None:
        """Put the examples of a version, before or after, in their places. Their labels are those that were there."""
        replaced = changes.count(client_id, version)
        if replaced == held.replaced:
            return
        positions_n, later_n = changes.replacements(client_id)
        others = slice(*sorted((replaced, held.replaced)))
        places_n = positions_n[others]
        if replaced > held.replaced:
            inputs_nX = self._dataset.later_examples(later_n[others])
        else:
            inputs_nX = self._dataset.train_examples(self._shares[client_id][places_n])
        device = held.inputs_nX.device
        held.inputs_nX.index_copy_(0, torch.from_numpy(places_n).to(device), inputs_nX.to(device))
        held.replaced = replaced
