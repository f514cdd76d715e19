"""The interface of local training: a model and a client's own data in, one update out.

Legend: d parameters, n examples of the client.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from unstale.flat import FlatModel

Kind = Literal["gradient", "delta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUpdate:
    """What one task made.

    vector_d: [d] float32, its own memory. `gradient`: of the mean cross-entropy of one mini-batch at the base model;
        `delta`: base - trained, in parameter units (algorithms.md 1.4).
    num_examples: n_i, examples the client holds; in `gradient` mode the size of the mini-batch. steps: optimiser steps
    taken. loss: mean over the steps of the mini-batch loss before the step. learning_rate: eta_l used.
    """

    vector_d: Tensor
    kind: Kind
    num_examples: int
    steps: int
    loss: float
    learning_rate: float


class LocalTraining(Protocol):
    """One way to train. Holds settings only; anything that stays on a client comes later as an argument."""

    kind: Kind

    def compute(
        self, model: FlatModel, base_d: Tensor, inputs_nX: Tensor, labels_n: Tensor, rng: np.random.Generator
    ) -> LocalUpdate:
        """Train from `base_d` on the client's examples; `model` is the workspace and is overwritten.

        base_d: [d] float32, not written to. inputs_nX: [n, ...] float32 and labels_n: [n] int64 on the model's device.
        rng: the client's stream `Stream.BATCHES` for this task; the only source of randomness.
        """
        ...
