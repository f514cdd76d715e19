"""How wrong estimates turn out to be, and when that is reason to stop.

Legend: d parameters.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from unstale.compensators.compensator import MeasuredError, Received
from unstale.compensators.inversion.choice import Choice
from unstale.compensators.inversion.reconstruction import Reconstruction

NO_DIRECTION = 1e-12  # two vectors whose lengths' product is at most this have cosine 0: algorithms.md 1.5


def measured(update: Received, method: str, estimate_d: Tensor, staleness: int) -> MeasuredError:
    """The error of an estimate of what an update turned out to be; both are pseudo-gradients [d]."""
    true_d = update.vector_d.double()
    estimate_d = estimate_d.to(true_d.device, torch.float64)
    lengths = float(true_d.norm()) * float(estimate_d.norm())
    along = float(true_d @ estimate_d) / lengths if lengths > NO_DIRECTION else 0.0
    return MeasuredError(
        client_id=update.client_id,
        method=method,
        l1=update.local_rate * float((estimate_d - true_d).abs().sum()),
        cosine=1 - along,
        staleness=staleness,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is needed to say what each method would have made of a stale update at any model.

    version: of the model that estimates were made for. stale: the update. kept: what it was reconstructed to be, by
    iterations. choice: what was used of that. steps, rate: of its inversion. All tensors on the host.
    """

    version: int
    stale: Received
    kept: Mapping[int, Reconstruction]
    choice: Choice
    steps: int
    rate: float

    @property
    def size_bytes(self) -> int:
        vectors = (self.stale.vector_d, self.stale.base_d)
        kept_bytes = sum(reconstruction.size_bytes for reconstruction in self.kept.values())
        return sum(4 * vector_d.numel() for vector_d in vectors) + kept_bytes

    def state_dict(self) -> dict[str, Any]:
        stale = {field.name: getattr(self.stale, field.name) for field in fields(self.stale)}
        return {
            "version": self.version,
            "stale": stale,
            "kept": {mark: reconstruction.state_dict() for mark, reconstruction in self.kept.items()},
            "choice": list(self.choice),
            "steps": self.steps,
            "rate": self.rate,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return cls(
            version=state["version"],
            stale=Received(**state["stale"]),
            kept={mark: Reconstruction.from_state(kept) for mark, kept in state["kept"].items()},
            choice=Choice(*state["choice"]),
            steps=state["steps"],
            rate=state["rate"],
        )


class Matches:
    """Stale updates that wait for the one that tells what became of their estimates: the client's first whose base
    version is as new as the model that they were made for. Beyond `bytes_max` the oldest go.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[Waiting] = deque()
        self.size_bytes = 0

    def add(self, waiting: Waiting) -> None:
        """Wait for one more."""
        self._waiting.append(waiting)
        self.size_bytes += waiting.size_bytes
        while self.size_bytes > self._bytes_max:
            self.size_bytes -= self._waiting.popleft().size_bytes

    def of(self, update: Received) -> Waiting | None:
        """The newest that this update can tell about."""
        found = [
            one
            for one in self._waiting
            if one.stale.client_id == update.client_id and one.version <= update.base_version
        ]
        return max(found, key=lambda one: one.version, default=None)

    def settle(self, updates: Iterable[Received]) -> None:
        """These have come in: no other will tell what they can."""
        newest = {update.client_id: update.base_version for update in updates}
        self._waiting = deque(
            one for one in self._waiting if one.version > newest.get(one.stale.client_id, -1)
        )
        self.size_bytes = sum(one.size_bytes for one in self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def state_dict(self) -> list[dict[str, Any]]:
        """The oldest first."""
        return [one.state_dict() for one in self._waiting]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Wait for exactly these."""
        self._waiting.clear()
        self.size_bytes = 0
        for one in state:
            self.add(Waiting.from_state(one))


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

    smooth_rounds: T_s. off_at: t_s, None before. Source: algorithms.md 2.22.
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
