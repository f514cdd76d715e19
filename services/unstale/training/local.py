"""The interface of local training: a model and a client's own data in, one update out.

Legend: d parameters, n examples of the client.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from unstale.flat import FlatModel
from unstale.seeds import Generator

Kind = Literal["gradient", "delta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUpdate:
    """What one task made.

    vector_d: [d] float32, its own memory. `gradient`: of the mean cross-entropy of one mini-batch at the base
        model; `delta`: base - trained, in parameter units (algorithms.md 1.4).
    num_examples: n_i, examples the client holds; in `gradient` mode m_i, the size of the mini-batch.
    steps: optimiser steps taken, 1 for a `gradient`. loss: mean over the steps of the mini-batch loss before
        the step. learning_rate: eta_l.
    """

    vector_d: Tensor
    kind: Kind
    num_examples: int
    steps: int
    loss: float
    learning_rate: float


class LocalTraining(Protocol):
    """One way to train. Holds settings only; anything that stays on a client comes later as an argument."""

    kind: ClassVar[Kind]

    def compute(
        self,
        model: FlatModel,
        base_d: Tensor,
        inputs_nX: Tensor,
        labels_n: Tensor,
        rng: Generator,
        *,
        learning_rate: float,
    ) -> LocalUpdate:
        """Train from `base_d` on the client's examples; `model` is the workspace and is overwritten.

        base_d: [d] float32, any device, not written to. inputs_nX: [n, ...] float32 and labels_n: [n] int64,
        n >= 1, on the model's device. rng: the client's stream `Stream.BATCHES` for this task; the only
        source of randomness. learning_rate: eta_l, > 0, as the task says; a `gradient` takes no step and only
        reports it.
        """
        ...
