"""Detects refusals that the model causes, not a client. Pure.

After a jump of the model, or with too low a bound, most clients send updates that are zero, not finite or too long at
the same time. No client is quarantined for that.
"""

from collections import Counter

from unstale.learner.bounds import NormBounds
from unstale_proto.errors import Reason

REASONS = frozenset({Reason.ZERO_UPDATE, Reason.NON_FINITE, Reason.NORM_TOO_LARGE})
"""Reasons that the model can cause."""
CLIENTS_MIN = 2
"""Clients that must be refused at the same time: one alone says nothing of the model."""


class ModelHealth:
    """Counts for each client whether its last update was refused for one of `REASONS`. One thread."""

    def __init__(self) -> None:
        self._accepted: set[int] = set()
        self._refused: dict[int, Reason] = {}
        self._was_unhealthy = False

    @property
    def is_unhealthy(self) -> bool:
        """Whether most clients' last updates were refused."""
        return len(self._refused) >= CLIENTS_MIN and len(self._refused) > len(self._accepted)

    def on_accepted(self, client_id: int) -> None:
        """A client's update was accepted."""
        self._refused.pop(client_id, None)
        self._accepted.add(client_id)

    def on_refused(self, client_id: int, reason: Reason) -> None:
        """A client's update was refused for one of `REASONS`."""
        self._accepted.discard(client_id)
        self._refused[client_id] = reason

    def forget(self, client_id: int) -> None:
        """A client takes part no longer."""
        self._accepted.discard(client_id)
        self._refused.pop(client_id, None)

    def take_warning(self, bounds: NormBounds) -> str | None:
        """A warning when most clients have begun to be refused, once each time; else None. bounds: with the figures."""
        if not self._refused:
            self._was_unhealthy = False
            return None
        was_general, self._was_unhealthy = self._was_unhealthy, self.is_unhealthy
        if was_general or not self._was_unhealthy:
            return None
        by_reason = Counter(self._refused.values())
        counted = ", ".join(f"{count} {reason}" for reason, count in sorted(by_reason.items()))
        sentence = (
            f"the last updates of {len(self._refused)} of {len(self._refused) + len(self._accepted)} clients were "
            f"refused ({counted}); no client is kept out for that"
        )
        what_to_do = bounds.advice if by_reason[Reason.NORM_TOO_LARGE] else bounds.cause
        return sentence if what_to_do is None else f"{sentence}: {what_to_do}"
