"""Reconstructed training data of an update, and the last reconstruction of each client.

Legend: B updates, r reconstructed examples, X the shape of an input, C classes.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """Reconstructed examples. Tensors are float32, on one device, and read-only."""

    inputs_rX: Tensor  # [r, ...], as inputs of the network
    labels_rC: Tensor  # [r, C], label logits

    @classmethod
    def row(cls, stacked: tuple[Tensor, Tensor], index: int) -> Self:
        """A view of one of B reconstructions, which are stacked to [B, r, ...] and [B, r, C]."""
        return cls(inputs_rX=stacked[0][index], labels_rC=stacked[1][index])

    def __len__(self) -> int:
        return len(self.labels_rC)

    def to(self, device: torch.device | str) -> Self:
        """The reconstruction on a device, without a copy if it is there already."""
        return type(self)(inputs_rX=self.inputs_rX.to(device), labels_rC=self.labels_rC.to(device))

    def on_host(self) -> Self:
        """A copy on the host: a view would keep all stacked reconstructions in memory."""
        return type(self)(inputs_rX=self.inputs_rX.to("cpu", copy=True), labels_rC=self.labels_rC.to("cpu", copy=True))

    @property
    def size_bytes(self) -> int:
        return self.inputs_rX.nbytes + self.labels_rC.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {"inputs": self.inputs_rX, "labels": self.labels_rC}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return cls(inputs_rX=state["inputs"], labels_rC=state["labels"])


class WarmStarts:
    """The last reconstruction of each client, to start its next inversion; beyond `bytes_max` the oldest is removed."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[int, Reconstruction] = OrderedDict()
        self.size_bytes = 0

    def put(self, client_id: int, reconstruction: Reconstruction) -> None:
        """Replace the reconstruction of a client. reconstruction: on the host."""
        self._drop(client_id)
        self._kept[client_id] = reconstruction
        self.size_bytes += reconstruction.size_bytes
        while self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._kept)))

    def get(self, client_id: int) -> Reconstruction | None:
        return self._kept.get(client_id)

    def clear(self) -> None:
        self._kept.clear()
        self.size_bytes = 0

    def _drop(self, client_id: int) -> None:
        if client_id in self._kept:
            self.size_bytes -= self._kept.pop(client_id).size_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def state_dict(self) -> list[dict[str, Any]]:
        """All reconstructions, the least recently inverted client first."""
        return [{"client": client_id, **kept.state_dict()} for client_id, kept in self._kept.items()]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        self.clear()
        for entry in state:
            self.put(entry["client"], Reconstruction.from_state(entry))
