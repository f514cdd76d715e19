"""Initial examples and labels of an inversion: random examples, and labels estimated from the update.

Legend: d parameters, r reconstructed examples, C classes.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softmax

from unstale.compensators.network import Network, Parts
from unstale.seeds import Generator

CLAMP = 2.0
"""Examples stay in [-2, 2] in the network's input space.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
"""

MARGIN = 3.0
"""Added to the logit of an example's label, where labels are estimated from the gradient."""

SPREAD = 0.1
"""Standard deviation of the noise on these logits."""


def drawn(network: Network, examples: int, rng: Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """x and l from N(0, 1): [r, *input_shape] clamped, and [r, C]."""
    inputs = rng.standard_normal((examples, *network.input_shape), dtype=np.float32)
    labels = rng.standard_normal((examples, network.classes), dtype=np.float32)
    return torch.from_numpy(inputs).clamp_(-CLAMP, CLAMP).to(device), torch.from_numpy(labels).to(device)


def labels_of(network: Network, base: Parts, inputs_rX: Tensor, slope_C: Tensor) -> Tensor:
    """Estimate the share of each class in the data of an update: [C], sum 1.

    The mean gradient of cross-entropy in the bias of the logits is mean(p) - y: the model's mean prediction, here for
    random examples, minus the labels' shares. base: w_b. inputs_rX: random examples. slope_C: that gradient.
    """
    with network.in_use(), torch.no_grad():
        predicted_C = softmax(network.logits(base, inputs_rX), -1).mean(0)
    shares_C = (predicted_C - slope_C).clamp(min=0.0)
    total = shares_C.sum()
    if not float(total) > 0:
        return torch.full_like(shares_C, 1 / len(shares_C))
    return shares_C / total


def with_labels(noise_rC: Tensor, shares_C: Tensor) -> Tensor:
    """Label logits [r, C] with these shares of the classes, by largest remainder. noise_rC: from N(0, 1)."""
    examples = len(noise_rC)
    counts_C = apportioned(shares_C.to("cpu", torch.float64).numpy(), examples)
    label_r = torch.repeat_interleave(torch.arange(len(counts_C)), torch.from_numpy(counts_C))
    logits_rC = noise_rC * SPREAD
    logits_rC[torch.arange(examples), label_r.to(noise_rC.device)] += MARGIN
    return logits_rC


def apportioned(shares_C: NDArray[np.float64], whole: int) -> NDArray[np.int64]:
    """Integers proportional to the shares, with sum `whole`: the largest remainders are rounded up."""
    exact_C = shares_C * whole
    counts_C = np.floor(exact_C).astype(np.int64)
    missing = whole - int(counts_C.sum())
    counts_C[np.argsort(counts_C - exact_C, kind="stable")[:missing]] += 1
    return counts_C
