"""Reconstructed training data of an update.

Legend: B updates, r reconstructed examples, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """Examples and label logits, float32 on any device. Read-only."""

    inputs_rX: Tensor  # x, [r, ...] in the network's input space
    labels_rC: Tensor  # l, label logits

    @classmethod
    def row(cls, stacked: tuple[Tensor, Tensor], index: int) -> Self:
        """One of several reconstructions that are stacked to [B, r, ...] and [B, r, C]."""
        return cls(inputs_rX=stacked[0][index], labels_rC=stacked[1][index])

    def __len__(self) -> int:
        return len(self.labels_rC)

    def to(self, device: torch.device | str) -> Self:
        """The reconstruction on a device, without a copy if it is there already."""
        return type(self)(inputs_rX=self.inputs_rX.to(device), labels_rC=self.labels_rC.to(device))

    def on_host(self) -> Self:
        """A copy on the host, which keeps no other tensor in memory."""
        return type(self)(inputs_rX=self.inputs_rX.to("cpu", copy=True), labels_rC=self.labels_rC.to("cpu", copy=True))

    @property
    def size_bytes(self) -> int:
        return self.inputs_rX.nbytes + self.labels_rC.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {"inputs": self.inputs_rX, "labels": self.labels_rC}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return cls(inputs_rX=state["inputs"], labels_rC=state["labels"])
