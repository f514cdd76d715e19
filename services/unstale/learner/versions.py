"""Old models that an update may still refer to.

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
    """What clients are sent of a version. Never written to.

    model_d: [d] float32, the parameters. buffers_b: [b] float32, b = 0 for most models. extra_d: [d] float32, what the
    policy sends beside the model; None for most.
    """

    model_d: Tensor
    buffers_b: Tensor
    extra_d: Tensor | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The vectors that travel, in their order; none is empty."""
        vectors = (self.model_d, self.buffers_b, self.extra_d)
        return tuple(part for part in vectors if part is not None and part.numel())

    @property
    def digest(self) -> str:
        """SHA-256 of all that is sent, in hex. Computed when asked for: it takes longer than a round."""
        return flat.digest(*self.parts)

    def state_dict(self) -> dict[str, Any]:
        """The vectors themselves, not to be written to."""
        return {"model_d": self.model_d, "buffers_b": self.buffers_b, "extra_d": self.extra_d}

    @staticmethod
    def from_state(state: Mapping[str, Any], device: torch.device) -> "Version":
        """The version of a `state_dict`, on a device; without a copy where it lies there already."""
        extra_d = state["extra_d"]
        return Version(
            model_d=state["model_d"].to(device),
            buffers_b=state["buffers_b"].to(device),
            extra_d=None if extra_d is None else extra_d.to(device),
        )


class VersionStore:
    """What was sent, by version. It holds and forgets; the coordinator counts who refers to which and says when.

    `forget` may be called while another thread reads or adds: every call is one operation on a dict.
    """

    def __init__(self, limit: int) -> None:
        """limit: most versions at a time, >= 1; to exceed it means that somebody does not forget."""
        self._limit = limit
        self._versions: dict[int, Version] = {}

    def add(self, number: int, version: Version) -> None:
        """Keep a version, without a copy: nobody writes to it any more."""
        assert number not in self._versions, f"version {number} is already kept"
        assert len(self._versions) < self._limit, f"{self._limit} versions are kept and none was forgotten"
        self._versions[number] = version

    def get(self, number: int) -> Version:
        """A version that is kept."""
        assert number in self._versions, f"version {number} is not kept; kept are {sorted(self._versions)}"
        return self._versions[number]

    def forget(self, number: int) -> None:
        """Let go of a version that was added."""
        assert number in self._versions, f"version {number} is not kept; kept are {sorted(self._versions)}"
        del self._versions[number]

    def __contains__(self, number: int) -> bool:
        return number in self._versions

    @property
    def numbers(self) -> list[int]:
        """Those that are kept."""
        return list(self._versions)

    def __len__(self) -> int:
        return len(self._versions)

    def state_dict(self) -> dict[int, dict[str, Any]]:
        """number -> version, not to be written to."""
        return {number: version.state_dict() for number, version in self._versions.items()}

    def load(self, versions: Mapping[int, Version]) -> None:
        """Keep exactly these."""
        assert len(versions) <= self._limit, f"{len(versions)} versions, expected at most {self._limit}"
        self._versions = dict(versions)
