"""Local training `moon`: `sgd` with a contrastive loss between the representations of three models.

Legend: d parameters, n examples of the client, b examples of a mini-batch, m different examples of a
task, f numbers of z, the input of the last linear layer.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus
from typing_extensions import override

from unstale.flat import FlatModel
from unstale.training.local import LocalTask, LocalUpdate, own_buffers
from unstale.training.models import features
from unstale.training.steps import LossFunction, Sgd

TRAINED = "trained_d"
TRAINED_BUFFERS = "trained_buffers_b"

_ZERO = 1e-12  # a z that is not longer than this has no direction: its cosine is 0
_FROZEN_BATCH = 512  # examples in one pass through a frozen model; limits the memory


class Moon(Sgd):
    """Minimises, in the steps of `sgd`,

        CE + mu * mean(l_con),   l_con = -log( e^(cos(z, z_glob)/T) / (e^(cos(z, z_glob)/T) + e^(cos(z, z_prev)/T)) )

    z, z_glob, z_prev: the input of the last linear layer of the model in training, of w_b, and of the model that this
    client trained in its last accepted task. Only z has a gradient. A client's first task has no w_prev and is `sgd`.
    T: temperature; mu: 5 for CIFAR-10, else 1, in the source.

    The frozen models compute in evaluation mode, as in the released code: without dropout, BatchNorm with their own
    averages. Each computes each example of the task once, before training.
    Source: MOON (Li et al., CVPR 2021), docs/methods/training.md#moon
    """

    name: ClassVar[str] = "moon"
    keeps_state: ClassVar[bool] = True

    mu: float
    temperature: float

    @override
    def compute(self, model: FlatModel, inputs_nX: Tensor, labels_n: Tensor, task: LocalTask) -> LocalUpdate:
        update = super().compute(model, inputs_nX, labels_n, task)
        kept = {TRAINED: model.parameters_d.clone()}
        if (buffers_b := own_buffers(model)) is not None:
            kept[TRAINED_BUFFERS] = buffers_b
        return replace(update, state=kept)

    @override
    def loss_fn(self, model: FlatModel, inputs_nX: Tensor, task: LocalTask) -> LossFunction:
        if self.mu == 0 or TRAINED not in task.state:
            return super().loss_fn(model, inputs_nX, task)
        seen_m, places = torch.unique(torch.cat(list(task.batches)), return_inverse=True)
        places_of = torch.split(places, [len(batch_b) for batch_b in task.batches])
        inputs_mX = inputs_nX.index_select(0, seen_m)
        model.load(task.state[TRAINED], task.state.get(TRAINED_BUFFERS))
        away_mf = _directions(model, inputs_mX)
        model.load(task.base_d, task.buffers_b)
        # l_con = log(1 + e^x) with x = (cos(z, z_prev) - cos(z, z_glob)) / T = cos(z, away): one product a step.
        away_mf.sub_(_directions(model, inputs_mX)).div_(self.temperature)
        forward = features(model.module)

        def losses(number: int, inputs_bX: Tensor, labels_b: Tensor) -> tuple[Tensor, Tensor]:
            logits_bC, z_bf = forward(inputs_bX)
            loss = cross_entropy(logits_bC, labels_b)
            away_bf = away_mf.index_select(0, places_of[number])
            return loss, loss + self.mu * softplus(_along(z_bf.flatten(1), away_bf)).mean()

        return losses


@torch.no_grad()
def _directions(model: FlatModel, inputs_mX: Tensor) -> Tensor:
    """z / |z| [m, f] of each example under the model in the workspace, 0 where z is 0."""
    model.module.eval()
    forward = features(model.module)
    directions = []
    for inputs_bX in torch.split(inputs_mX, _FROZEN_BATCH):
        z_bf = forward(inputs_bX)[1].flatten(1)
        length_b1 = torch.linalg.vector_norm(z_bf, dim=1, keepdim=True)
        directions.append(torch.where(length_b1 > _ZERO, z_bf / length_b1, 0.0))
    return torch.cat(directions)


def _along(z_bf: Tensor, towards_bf: Tensor) -> Tensor:
    """z . towards / |z| [b], 0 and without a gradient where z is 0."""
    length_b = torch.linalg.vector_norm(z_bf, dim=1)
    has_direction_b = length_b > _ZERO
    product_b = (z_bf * towards_bf).sum(dim=1)
    return torch.where(has_direction_b, product_b / torch.where(has_direction_b, length_b, 1.0), 0.0)
