"""The simplified local update LU of gradient inversion: what a client would send if these were its data.

Legend: d parameters, r reconstructed examples, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, softmax

from unstale.compensators.network import Network, Parts

LabelLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits of the model [r, C], label logits [r, C]) -> mean loss over the r examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps:
    """How clients train, as full-batch steps.

    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion

    steps: k, of a task, or epochs: E; neither for the gradient of one mini-batch. batch_size: B. momentum,
    weight_decay: of the clients. mu: FedProx's. unknown: the local training that cannot be written so; None for one
    that can.
    """

    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    mu: float = 0.0
    unknown: str | None = None

    def of(self, num_examples: int, local_rate: float) -> tuple[int, float]:
        """kg, and eta_gi. An epoch is one step, as long as its mini-batch steps together."""
        if self.epochs is not None:
            return self.epochs, local_rate * ceil(num_examples / self.batch_size)
        return self.steps or 1, local_rate

    def reach(self, steps: int) -> float:
        """How many gradients a local update of so many steps adds up to, were all the same."""
        velocity = total = 0.0
        for _ in range(steps):
            velocity = self.momentum * velocity + 1
            total += velocity
        return total


def soft(logits_rC: Tensor, labels_rC: Tensor) -> Tensor:
    """Cross-entropy against softmax(labels)."""
    return -(softmax(labels_rC, -1) * log_softmax(logits_rC, -1)).sum(-1).mean()


def bce_raw(logits_rC: Tensor, labels_rC: Tensor) -> Tensor:
    """What the released code minimises: raw labels as targets of BCE-with-logits on log-softmax outputs."""
    return binary_cross_entropy_with_logits(log_softmax(logits_rC, -1), labels_rC)


LABEL_LOSSES: dict[str, LabelLoss] = {"soft": soft, "bce-raw": bce_raw}


def local_update(
    network: Network,
    start: Parts,
    inputs_rX: Tensor,
    labels_rC: Tensor,
    rate: Tensor,
    *,
    steps: int,
    like: LocalSteps,
    loss: LabelLoss,
) -> Parts:
    """LU(w; x, l) = w - w_end after full-batch steps from w, a function of all its tensors:

        h <- grad(w) + weight_decay * w + mu * (w - w_start)
        z <- momentum * z + h (z = h at first);   w <- w - rate * z

    start: w. inputs_rX: x. labels_rC: l, label logits. rate: eta_gi, a number.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """
    slope_of = grad(lambda parameters: loss(network.logits(parameters, inputs_rX), labels_rC))
    now, velocity = start, None
    for _ in range(steps):
        slope = slope_of(now)
        if like.weight_decay:
            slope = tuple(h + like.weight_decay * w for h, w in zip(slope, now, strict=True))
        if like.mu:
            slope = tuple(h + like.mu * (w - w_0) for h, w, w_0 in zip(slope, now, start, strict=True))
        if velocity is not None and like.momentum:
            slope = tuple(like.momentum * z + h for z, h in zip(velocity, slope, strict=True))
        velocity = slope
        now = tuple(w - rate * z for w, z in zip(now, slope, strict=True))
    return tuple(w_0 - w for w_0, w in zip(start, now, strict=True))


def as_vector(parts: Parts, lead: int = 0) -> Tensor:
    """The vector of parts. lead: how many leading dimensions each has beside its shape."""
    return torch.cat([part.flatten(lead) for part in parts], dim=-1)
