"""The vectors of one model version.

Legend: d parameters, b numbers of float buffers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unstale import flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The vectors that clients receive. Read-only."""

    model_d: Tensor  # [d] float32, parameters
    buffers_b: Tensor  # [b] float32; b = 0 for most models
    extra_d: Tensor | None = None  # [d] float32, the policy's second vector; None for most policies

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The vectors in the order in which they are sent, without empty ones."""
        vectors = (self.model_d, self.buffers_b, self.extra_d)
        return tuple(part for part in vectors if part is not None and part.numel())

    @property
    def digest(self) -> str:
        """SHA-256 of all parts, in hexadecimal. Computed at each access; it takes longer than a round."""
        return flat.digest(*self.parts)

    def state_dict(self) -> dict[str, Any]:
        """The vectors, not copied."""
        return {"model_d": self.model_d, "buffers_b": self.buffers_b, "extra_d": self.extra_d}

    @staticmethod
    def from_state(state: Mapping[str, Any], device: torch.device) -> "Version":
        """Restore a version from `state_dict()` on a device; copies only between devices."""
        here: dict[str, Any] = {name: None if part is None else part.to(device) for name, part in state.items()}
        return Version(**here)
