"""Models of earlier versions, which updates may refer to.

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
    """The vectors of one model version that clients receive. Read-only."""

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
        extra_d = state["extra_d"]
        return Version(
            model_d=state["model_d"].to(device),
            buffers_b=state["buffers_b"].to(device),
            extra_d=None if extra_d is None else extra_d.to(device),
        )


class VersionStore:
    """Models by version number. The coordinator counts references and decides when a version is deleted.

    `forget` may be called while another thread reads or adds: every call is one operation on a dict.
    """

    def __init__(self, limit: int) -> None:
        """limit: Most versions at a time, >= 1. More than that is a leak."""
        self._limit = limit
        self._versions: dict[int, Version] = {}

    def add(self, number: int, version: Version) -> None:
        """Store a version without a copy."""
        assert number not in self._versions, f"version {number} is already kept"
        assert len(self._versions) < self._limit, f"{self._limit} versions are kept and none was forgotten"
        self._versions[number] = version

    def get(self, number: int) -> Version:
        """Return a stored version."""
        assert number in self._versions, f"version {number} is not kept; kept are {sorted(self._versions)}"
        return self._versions[number]

    def forget(self, number: int) -> None:
        """Delete a stored version."""
        assert number in self._versions, f"version {number} is not kept; kept are {sorted(self._versions)}"
        del self._versions[number]

    def __contains__(self, number: int) -> bool:
        return number in self._versions

    @property
    def numbers(self) -> list[int]:
        """Numbers of the stored versions."""
        return list(self._versions)

    def __len__(self) -> int:
        return len(self._versions)

    def state_dict(self) -> dict[int, dict[str, Any]]:
        """State of each stored version by number, not copied."""
        return {number: version.state_dict() for number, version in self._versions.items()}

    def load(self, versions: Mapping[int, Version]) -> None:
        """Replace all stored versions."""
        assert len(versions) <= self._limit, f"{len(versions)} versions, expected at most {self._limit}"
        self._versions = dict(versions)
