"""Errors of estimates, measured when the client's next update arrives, and the end of inversion that depends on them.

Legend: d parameters.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, Self

import torch
from torch import Tensor

from unstale.compensators.compensator import MeasuredError, StaleUpdate
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.stopping import Choice

NO_DIRECTION = 1e-12  # two vectors whose product of lengths is at most this have cosine 0
WAITS_ROUNDS_MAX = 500  # a client that has sent nothing for longer is unlikely to


def measured(update: StaleUpdate, method: str, estimate_d: Tensor, staleness: int) -> MeasuredError:
    """The error of an estimate of this update; both are pseudo-gradients [d]."""
    device = "cpu" if update.vector_d.device.type == "mps" else update.vector_d.device  # mps has no float64
    true_d = update.vector_d.to(device, torch.float64)
    estimate_d = estimate_d.to(device, torch.float64)
    numbers = (true_d.norm(), estimate_d.norm(), true_d @ estimate_d, (estimate_d - true_d).abs().sum())
    true_length, estimate_length, product, distance = torch.stack(numbers).tolist()  # one read of the device
    lengths = true_length * estimate_length
    cosine = product / lengths if lengths > NO_DIRECTION else 0.0
    return MeasuredError(
        client_id=update.client_id,
        method=method,
        l1=update.local_rate * distance,
        cosine=1 - cosine,
        staleness=staleness,
    )


def is_finite(*errors: MeasuredError) -> bool:
    """Whether both numbers of each error are finite, so that means can contain them."""
    return all(isfinite(error.l1) and isfinite(error.cosine) for error in errors)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A compensated update whose estimates wait for the client's next update, to be measured."""

    version: int  # of the model for which the estimates were made
    stale: StaleUpdate  # the update
    kept: Mapping[int, Reconstruction]  # its reconstructions, by iterations, on the host
    choice: Choice  # that was used
    # of its inversion
    steps: int
    rate: float

    @property
    def size_bytes(self) -> int:
        """Memory without the base model, which others may share."""
        kept_bytes = sum(reconstruction.size_bytes for reconstruction in self.kept.values())
        return self.stale.vector_d.nbytes + kept_bytes

    def state_dict(self) -> dict[str, Any]:
        """The state without the base model."""
        stale = {field.name: getattr(self.stale, field.name) for field in fields(self.stale)}
        return {
            "version": self.version,
            "stale": {**stale, "kept_base_d": None},
            "kept": {mark: kept.state_dict() for mark, kept in self.kept.items()},
            "choice": list(self.choice),
            "steps": self.steps,
            "rate": self.rate,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], base_ds: Mapping[int, Tensor]) -> Self:
        """base_ds: base models, by version."""
        stale = StaleUpdate(**{**state["stale"], "kept_base_d": base_ds[state["stale"]["base_version"]]})
        kept = {mark: Reconstruction.from_state(kept) for mark, kept in state["kept"].items()}
        return cls(state["version"], stale, kept, Choice(*state["choice"]), state["steps"], state["rate"])


class Matches:
    """Compensated updates that wait for the client's first update whose base version is as new as their estimates.

    They are on the host; updates with the same base model share it. bytes_max: of memory; beyond it no update is
    added, because the oldest ones are the next to be measured.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: list[Waiting] = []
        self._base_ds: dict[int, Tensor] = {}  # by version
        self.size_bytes = 0

    def add(self, waiting: Waiting) -> bool:
        """Add a copy of an update if there is memory for it; whether there was."""
        stale = waiting.stale
        base_d = self._base_ds.get(stale.base_version)
        more_bytes = waiting.size_bytes + (stale.base_d.nbytes if base_d is None else 0)
        if self.size_bytes + more_bytes > self._bytes_max:
            return False
        if base_d is None:
            base_d = self._base_ds[stale.base_version] = stale.base_d.to("cpu", copy=True)
        vector_d = stale.vector_d.to("cpu", copy=True)
        self._waiting.append(replace(waiting, stale=replace(stale, vector_d=vector_d, kept_base_d=base_d)))
        self.size_bytes += more_bytes
        return True

    def of(self, update: StaleUpdate) -> Waiting | None:
        """The newest one that this update can measure."""
        candidates = [
            one
            for one in self._waiting
            if one.stale.client_id == update.client_id and one.version <= update.base_version
        ]
        return max(candidates, key=lambda one: one.version, default=None)

    def settle(self, updates: Iterable[StaleUpdate], version: int) -> None:
        """Remove those that these updates measured, and those much older than the current version."""
        newest: dict[int, int] = {}
        for update in updates:
            newest[update.client_id] = max(update.base_version, newest.get(update.client_id, -1))
        oldest = version - WAITS_ROUNDS_MAX
        self._keep(
            [
                one
                for one in self._waiting
                if one.version > newest.get(one.stale.client_id, -1) and one.version >= oldest
            ]
        )

    def clear(self) -> None:
        self._keep([])

    def _keep(self, waiting: list[Waiting]) -> None:
        self._waiting = waiting
        self._base_ds = {one.stale.base_version: one.stale.base_d for one in waiting}
        self.size_bytes = sum(one.size_bytes for one in waiting)
        self.size_bytes += sum(base_d.nbytes for base_d in self._base_ds.values())

    def __len__(self) -> int:
        return len(self._waiting)

    def state_dict(self) -> dict[str, Any]:
        """All that wait, the oldest first, and their base models by version."""
        return {"waiting": [one.state_dict() for one in self._waiting], "bases": dict(self._base_ds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._keep([Waiting.from_state(one, state["bases"]) for one in state["waiting"]])


class Recent:
    """The last `window` errors of each method."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._of: dict[str, deque[tuple[float, float]]] = {}

    def add(self, error: MeasuredError) -> None:
        self._of.setdefault(error.method, deque(maxlen=self._window)).append((error.l1, error.cosine))

    def mean(self, method: str) -> tuple[float, float] | None:
        """Mean L1 and cosine error of a method; None while it has fewer than `window` errors."""
        errors = self._of.get(method, ())
        if len(errors) < self._window:
            return None
        return sum(l1 for l1, _ in errors) / len(errors), sum(cosine for _, cosine in errors) / len(errors)

    def state_dict(self) -> dict[str, list[list[float]]]:
        return {method: [list(one) for one in errors] for method, errors in self._of.items()}

    def load_state_dict(self, state: Mapping[str, Iterable[Iterable[float]]]) -> None:
        self._of = {
            method: deque(((l1, cosine) for l1, cosine in errors), maxlen=self._window)
            for method, errors in state.items()
        }


def share_after_switch(version: int, off_at: int | None, smooth_rounds: int) -> float:
    """The share of estimates in a round, which falls to 0 when stale updates themselves replace them for good:

        a = 1 before t_s,   max(0, 1 - (t - t_s) / T_s) from it on

    version: t, before the round. off_at: t_s; None if the switch has not come. smooth_rounds: T_s.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """
    if off_at is None:
        return 1.0
    return max(0.0, 1 - (version - off_at) / smooth_rounds) if smooth_rounds else 0.0
