"""Detects refused updates whose cause is the global model, not a client. No I/O and no clock.

After a large change of the model, or with too low a bound on norms, the updates of most clients are zero, not finite,
or too large at the same time. Then no client is quarantined.
"""

from collections import Counter

from unstale.learner.bounds import NormBounds
from unstale_proto.errors import Reason

REASONS = frozenset({Reason.ZERO_UPDATE, Reason.NON_FINITE, Reason.NORM_TOO_LARGE})
"""Reasons that the model can cause."""
CLIENTS_MIN = 2
"""Fewest clients whose last update was refused; a single one proves nothing about the model."""


class ModelHealth:
    """Stores for each client whether its last update was refused for one of `REASONS`. One thread."""

    def __init__(self) -> None:
        self._accepted: set[int] = set()
        self._refused: dict[int, Reason] = {}
        self._was_unhealthy = False

    @property
    def is_unhealthy(self) -> bool:
        """Whether more last updates were refused for `REASONS` than accepted, of at least `CLIENTS_MIN` clients."""
        return len(self._refused) >= CLIENTS_MIN and len(self._refused) > len(self._accepted)

    def on_accepted(self, client_id: int) -> None:
        """Record an accepted update."""
        self._refused.pop(client_id, None)
        self._accepted.add(client_id)

    def on_refused(self, client_id: int, reason: Reason) -> None:
        """Record an update that was refused for one of `REASONS`."""
        self._accepted.discard(client_id)
        self._refused[client_id] = reason

    def forget(self, client_id: int) -> None:
        """Forget a client that left."""
        self._accepted.discard(client_id)
        self._refused.pop(client_id, None)

    def take_warning(self, bounds: NormBounds) -> str | None:
        """Return a warning whenever `is_unhealthy` becomes true. bounds: Supply the advice or the cause."""
        if not self._refused:
            self._was_unhealthy = False
            return None
        was_unhealthy, self._was_unhealthy = self._was_unhealthy, self.is_unhealthy
        if was_unhealthy or not self._was_unhealthy:
            return None
        by_reason = Counter(self._refused.values())
        counted = ", ".join(f"{count} {reason}" for reason, count in sorted(by_reason.items()))
        sentence = (
            f"the last updates of {len(self._refused)} of {len(self._refused) + len(self._accepted)} clients were "
            f"refused ({counted}); no client is kept out for that"
        )
        explanation = bounds.advice if by_reason[Reason.NORM_TOO_LARGE] else bounds.cause
        return sentence if explanation is None else f"{sentence}: {explanation}"
