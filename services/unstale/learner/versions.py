"""A model version.

Legend: d parameters, b floats of the buffers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unstale import flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The vectors of one model version, as clients receive them. Read-only."""

    model_d: Tensor  # [d] float32, parameters
    buffers_b: Tensor  # [b] float32; b = 0 for most models
    extra_d: Tensor | None = None  # [d] float32, `Policy.extra_d`; None for most policies

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The vectors in the order of the wire and of the digest, without empty ones."""
        vectors = (self.model_d, self.buffers_b, self.extra_d)
        return tuple(part for part in vectors if part is not None and part.numel())

    @property
    def digest(self) -> str:
        """SHA-256 of all parts, in hexadecimal. Each access computes it, which takes longer than a round."""
        return flat.digest(*self.parts)

    def state_dict(self) -> dict[str, Any]:
        """The vectors by attribute name, for checkpoints; not copied."""
        return {"model_d": self.model_d, "buffers_b": self.buffers_b, "extra_d": self.extra_d}

    @staticmethod
    def from_state(state: Mapping[str, Any], device: torch.device) -> "Version":
        """Restore a version from `state_dict()`. Copies only vectors that are on another device."""
        vectors: dict[str, Any] = {name: None if part is None else part.to(device) for name, part in state.items()}
        return Version(**vectors)
