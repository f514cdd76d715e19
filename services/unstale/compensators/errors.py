"""How wrong estimates turn out to be, and when that is reason to stop.

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

NO_DIRECTION = 1e-12  # two vectors whose lengths' product is at most this have cosine 0
WAITS_ROUNDS_MAX = 500  # who has sent nothing for so long is hardly going to


def measured(update: StaleUpdate, method: str, estimate_d: Tensor, staleness: int) -> MeasuredError:
    """The error of an estimate of what an update turned out to be; both are pseudo-gradients [d]."""
    where = "cpu" if update.vector_d.device.type == "mps" else update.vector_d.device  # mps has no float64
    true_d = update.vector_d.to(where, torch.float64)
    estimate_d = estimate_d.to(where, torch.float64)
    lengths = float(true_d.norm()) * float(estimate_d.norm())
    along = float(true_d @ estimate_d) / lengths if lengths > NO_DIRECTION else 0.0
    return MeasuredError(
        client_id=update.client_id,
        method=method,
        l1=update.local_rate * float((estimate_d - true_d).abs().sum()),
        cosine=1 - along,
        staleness=staleness,
    )


def is_finite(error: MeasuredError) -> bool:
    """Whether both numbers of an error are; means know no others."""
    return isfinite(error.l1) and isfinite(error.cosine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is needed to say what each method would have made of a stale update at any model.

    version: of the model that estimates were made for. stale: the update. kept: what it was reconstructed to be, by
    iterations; on the host. choice: what was used of that. steps, rate: of its inversion.
    """

    version: int
    stale: StaleUpdate
    kept: Mapping[int, Reconstruction]
    choice: Choice
    steps: int
    rate: float

    @property
    def size_bytes(self) -> int:
        """Without the base model, which others may share."""
        kept_bytes = sum(reconstruction.size_bytes for reconstruction in self.kept.values())
        return self.stale.vector_d.nbytes + kept_bytes

    def state_dict(self) -> dict[str, Any]:
        """Without the base model."""
        stale = {field.name: getattr(self.stale, field.name) for field in fields(self.stale)}
        return {
            "version": self.version,
            "stale": {**stale, "kept_base_d": None},
            "kept": {mark: reconstruction.state_dict() for mark, reconstruction in self.kept.items()},
            "choice": list(self.choice),
            "steps": self.steps,
            "rate": self.rate,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return cls(
            version=state["version"],
            stale=StaleUpdate(**state["stale"]),
            kept={mark: Reconstruction.from_state(kept) for mark, kept in state["kept"].items()},
            choice=Choice(*state["choice"]),
            steps=state["steps"],
            rate=state["rate"],
        )


class Matches:
    """Stale updates that wait for the one that tells what became of their estimates: the client's first whose base
    version is as new as the model that they were made for. They lie on the host; a base model that several were made
    from lies there once.

    bytes_max: where there is no room for one, it does not wait. Those that wait longest stay, being the next to be told
    about.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: list[Waiting] = []
        self._base_ds: dict[int, Tensor] = {}  # by version
        self.size_bytes = 0

    def add(self, waiting: Waiting) -> bool:
        """Wait for one more, if there is room for it; whether there was. Its update is copied."""
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
        """The newest that this update can tell about."""
        found = [
            one
            for one in self._waiting
            if one.stale.client_id == update.client_id and one.version <= update.base_version
        ]
        return max(found, key=lambda one: one.version, default=None)

    def settle(self, updates: Iterable[StaleUpdate], version: int) -> None:
        """These have come in: no other will tell what they can. version: of the current model; what was made for one
        that is much older goes."""
        newest: dict[int, int] = {}
        for update in updates:
            newest[update.client_id] = max(update.base_version, newest.get(update.client_id, -1))
        self._keep(
            [
                one
                for one in self._waiting
                if one.version > newest.get(one.stale.client_id, -1)
                and one.version >= version - WAITS_ROUNDS_MAX
            ]
        )

    def clear(self) -> None:
        """Nothing waits any more."""
        self._keep([])

    def _keep(self, waiting: list[Waiting]) -> None:
        self._waiting = waiting
        self._base_ds = {one.stale.base_version: one.stale.base_d for one in waiting}
        self.size_bytes = sum(one.size_bytes for one in waiting)
        self.size_bytes += sum(base_d.nbytes for base_d in self._base_ds.values())

    def __len__(self) -> int:
        return len(self._waiting)

    def state_dict(self) -> dict[str, Any]:
        """The oldest first; the base models by version."""
        return {"waiting": [one.state_dict() for one in self._waiting], "bases": dict(self._base_ds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Wait for exactly these."""
        found = [Waiting.from_state(one) for one in state["waiting"]]
        bases = state["bases"]
        self._keep(
            [
                replace(one, stale=replace(one.stale, kept_base_d=bases[one.stale.base_version]))
                for one in found
            ]
        )


class Recent:
    """The newest errors of each method. window: how many of each are kept."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._of: dict[str, deque[tuple[float, float]]] = {}

    def add(self, error: MeasuredError) -> None:
        self._of.setdefault(error.method, deque(maxlen=self._window)).append((error.l1, error.cosine))

    def is_full(self, method: str) -> bool:
        """Whether there are as many as the window holds."""
        return len(self._of.get(method, ())) == self._window

    def mean(self, method: str) -> tuple[float, float]:
        """L1 and cosine error; of a method that has some."""
        errors = self._of[method]
        return sum(l1 for l1, _ in errors) / len(errors), sum(cosine for _, cosine in errors) / len(errors)

    def state_dict(self) -> dict[str, list[list[float]]]:
        return {method: [list(one) for one in errors] for method, errors in self._of.items()}

    def load_state_dict(self, state: Mapping[str, Iterable[Iterable[float]]]) -> None:
        self._of.clear()
        for method, errors in state.items():
            kept: deque[tuple[float, float]] = deque(maxlen=self._window)
            for l1, cosine in errors:
                kept.append((l1, cosine))
            self._of[method] = kept


class Switch:
    """From inversion to the stale updates themselves, for good: a share that falls from 1 to 0.

        a = 1 before t_s,   max(0, 1 - (t - t_s) / T_s) from it on

    smooth_rounds: T_s. off_at: t_s, None before.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """

    def __init__(self, smooth_rounds: int) -> None:
        self._smooth_rounds = smooth_rounds
        self.off_at: int | None = None

    def share(self, version: int) -> float:
        """a, in the round that makes the next version out of this one."""
        if self.off_at is None:
            return 1.0
        if self._smooth_rounds == 0:
            return 0.0
        return max(0.0, 1 - (version - self.off_at) / self._smooth_rounds)
