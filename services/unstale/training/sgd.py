"""Local training `sgd`: some steps of stochastic gradient descent on the client's own examples.

Legend: d parameters, n examples of the client, b examples of a mini-batch.
"""

from collections.abc import Iterator
from itertools import islice
from math import ceil
from typing import ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy

from unstale.flat import FlatModel
from unstale.seeds import Generator
from unstale.training.local import Kind, LocalUpdate


class Sgd(BaseModel):
    """Sends u_i = w_b - w_end after k steps, or E epochs of ceil(n_i / B) steps, from w_b:

        h <- grad(w) + weight_decay * w;   z <- momentum * z + h   (z = h at first);   w <- w - eta_l * z

    The mini-batches walk through a permutation of the n_i examples, reshuffled for each epoch; the last short
    one of an epoch is kept. Each step is what `torch.optim.SGD` does, on the flat vectors. Source:
    algorithms.md 1.4 and 1.5, mode `delta`; k is `steps`, E `epochs`, B `batch_size`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[Kind] = "delta"

    batch_size: int = Field(default=32, ge=1, description="examples of a mini-batch")
    steps: int | None = Field(default=None, ge=1, description="steps of a task, whatever the client holds")
    epochs: int | None = Field(
        default=None, ge=1, description="passes over the client's examples, in place of steps"
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="share of the last step that is kept")
    weight_decay: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="pull towards 0, per parameter"
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("expected exactly one of steps and epochs")
        return self

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
        """See `LocalTraining.compute`."""
        held = len(labels_n)
        steps = self.steps or (self.epochs or 0) * ceil(held / self.batch_size)
        model.load(base_d)
        model.module.train()
        velocity_d = torch.zeros_like(model.parameters_d) if self.momentum else None
        losses = []
        for batch_b in islice(_batches(held, self.batch_size, rng, labels_n.device), steps):
            model.gradient_d.zero_()
            loss = cross_entropy(
                model.module(inputs_nX.index_select(0, batch_b)), labels_n.index_select(0, batch_b)
            )
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            step_d = model.gradient_d
            if self.weight_decay:
                step_d.add_(model.parameters_d, alpha=self.weight_decay)
            if velocity_d is not None:
                step_d = velocity_d.mul_(self.momentum).add_(step_d)
            model.parameters_d.add_(step_d, alpha=-learning_rate)
        return LocalUpdate(
            vector_d=base_d.to(model.parameters_d.device) - model.parameters_d,
            kind=self.kind,
            num_examples=held,
            steps=steps,
            loss=sum(torch.stack(losses).tolist()) / steps,
            learning_rate=learning_rate,
        )


def _batches(held: int, batch_size: int, rng: Generator, device: torch.device) -> Iterator[Tensor]:
    """Indices of mini-batches without end, each epoch in a new order. One transfer to the device an epoch."""
    while True:
        yield from torch.split(torch.from_numpy(rng.permutation(held)).to(device), batch_size)
