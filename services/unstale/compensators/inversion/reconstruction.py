"""What would have made an update.

Legend: r reconstructed examples, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """inputs_rX: x, [r, ...] in the network's input space. labels_rC: l, label logits. Both float32, any device; not
    written to."""

    inputs_rX: Tensor
    labels_rC: Tensor

    def __len__(self) -> int:
        return len(self.labels_rC)

    def to(self, device: torch.device | str) -> Self:
        """The same on a device, without a copy where it lies there already."""
        return type(self)(inputs_rX=self.inputs_rX.to(device), labels_rC=self.labels_rC.to(device))

    def on_host(self) -> Self:
        """A copy on the host, which keeps nothing else in memory."""
        return type(self)(
            inputs_rX=self.inputs_rX.to("cpu", copy=True), labels_rC=self.labels_rC.to("cpu", copy=True)
        )

    @property
    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.inputs_rX, self.labels_rC))

    def state_dict(self) -> dict[str, Any]:
        return {"inputs": self.inputs_rX, "labels": self.labels_rC}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return cls(inputs_rX=state["inputs"], labels_rC=state["labels"])
