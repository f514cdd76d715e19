"""The simplified local update LU of gradient inversion: the update that a client with these data sends.

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
    """

    # k or E of a task; neither for the gradient of one mini-batch
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 1  # B
    # of the clients
    momentum: float = 0.0
    weight_decay: float = 0.0
    mu: float = 0.0  # FedProx's
    unknown: str | None = None  # name of a local training that full-batch steps cannot express; else None

    def of(self, num_examples: int, local_rate: float) -> tuple[int, float]:
        """kg and eta_gi. An epoch is one step, with the rates of its mini-batch steps added up."""
        if self.epochs is not None:
            return self.epochs, local_rate * ceil(num_examples / self.batch_size)
        return self.steps or 1, local_rate

    def reach(self, steps: int) -> float:
        """How many gradients a local update of so many steps adds up to, if all are equal."""
        velocity = total = 0.0
        for _ in range(steps):
            velocity = self.momentum * velocity + 1
            total += velocity
        return total


def soft(logits_rC: Tensor, labels_rC: Tensor) -> Tensor:
    """Cross-entropy against softmax(labels)."""
    return -(softmax(labels_rC, -1) * log_softmax(logits_rC, -1)).sum(-1).mean()


def bce_raw(logits_rC: Tensor, labels_rC: Tensor) -> Tensor:
    """The loss of the released code: BCE-with-logits on log-softmax outputs, with raw labels as targets."""
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

    Args:
        start: w.
        inputs_rX: x.
        labels_rC: l, label logits.
        rate: eta_gi, a scalar.

    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """
    gradient_of = grad(lambda parameters: loss(network.logits(parameters, inputs_rX), labels_rC))
    now, velocity = start, None
    for _ in range(steps):
        gradient = gradient_of(now)
        if like.weight_decay:
            gradient = _plus(gradient, like.weight_decay, now)
        if like.mu:
            gradient = _plus(gradient, like.mu, _minus(now, start))
        if velocity is not None and like.momentum:
            gradient = tuple(like.momentum * z + h for z, h in zip(velocity, gradient, strict=True))
        velocity = gradient
        now = tuple(w - rate * z for w, z in zip(now, velocity, strict=True))
    return _minus(start, now)


def _plus(parts: Parts, factor: float, others: Parts) -> Parts:
    return tuple(part + factor * other for part, other in zip(parts, others, strict=True))


def _minus(parts: Parts, others: Parts) -> Parts:
    return tuple(part - other for part, other in zip(parts, others, strict=True))


def as_vector(parts: Parts) -> Tensor:
    """The vector [d] of parts."""
    return torch.cat([part.flatten() for part in parts])
