"""Distances between two local updates, which an inversion minimises.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.linalg import vector_norm

from unstale.compensators.network import Parts


def l1(estimate: Parts, update: Parts) -> Tensor:
    """|a - b|_1."""
    nothing = torch.zeros((), device=update[0].device)
    return sum(((a - b).abs().sum() for a, b in zip(estimate, update, strict=True)), nothing)


def l2(estimate: Parts, update: Parts) -> Tensor:
    """|a - b|_2."""
    return _length(tuple(a - b for a, b in zip(estimate, update, strict=True)))


def cosine(estimate: Parts, update: Parts) -> Tensor:
    """1 - cos(a, b), independent of both lengths; not a number where one is 0."""
    along = torch.stack([(a * b).sum() for a, b in zip(estimate, update, strict=True)]).sum()
    lengths = _length(estimate) * _length(update)
    return (lengths - along) / lengths  # a number beside a scalar tensor would be copied to the device


def _length(parts: Parts) -> Tensor:
    """The Euclidean length, whose slope at 0 is 0."""
    length: Tensor = vector_norm(torch.stack([vector_norm(part) for part in parts]))
    return length


DISPARITIES: Mapping[str, Callable[[Parts, Parts], Tensor]] = MappingProxyType({"l1": l1, "l2": l2, "cosine": cosine})
"""Scalars D(LU(w_b; x, l), u), by the setting `disparity`."""
