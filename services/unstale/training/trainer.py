"""The work of the clients that one process hosts, on one model instance. Client processes and the simulator
share it.

Legend: d parameters, n examples of a client.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.datasets import Dataset
from unstale.training.local import LocalTraining, LocalUpdate
from unstale.training.partition import Indices


class Trainer:
    """Trains any of the clients. What a task makes depends on its own arguments, never on what was trained
    before.

    shares: for each client id the indices of its training examples; a client's examples are gathered once,
    when it is first trained. model: the workspace of all of them. seed: the run's.
    """

    def __init__(
        self,
        dataset: Dataset,
        shares: Sequence[Indices],
        model: FlatModel,
        training: LocalTraining,
        seed: int,
    ) -> None:
        self._dataset = dataset
        self._shares = shares
        self._model = model
        self._training = training
        self._seed = seed
        self._examples: dict[int, tuple[Tensor, Tensor]] = {}

    def train(self, client_id: int, number: int, base_d: Tensor, learning_rate: float) -> LocalUpdate:
        """The update of one task. number: which task of this client, from 0. base_d: [d], not written to."""
        if client_id not in self._examples:
            self._examples[client_id] = self._gathered(client_id)
        inputs_nX, labels_n = self._examples[client_id]
        rng = stream(self._seed, Stream.BATCHES, client_id, number)
        return self._training.compute(
            self._model, base_d, inputs_nX, labels_n, rng, learning_rate=learning_rate
        )

    def _gathered(self, client_id: int) -> tuple[Tensor, Tensor]:
        own_n = torch.from_numpy(self._shares[client_id])
        device = self._model.parameters_d.device
        inputs_nX = self._dataset.inputs_train_NX.index_select(0, own_n).to(device)
        return inputs_nX, self._dataset.labels_train_N.index_select(0, own_n).to(device)
