"""Whether a run can still learn: a sentence for the user when it cannot."""

from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError

CONSECUTIVE_FAILURES_MAX = (
    10  # in a row, by every client: bad luck and single bad batches do not last so long
)


class DivergedError(UserError):
    """A run was given up, for what `reason` says."""


def reason(coordinator: Coordinator, cause: str | None = None) -> str | None:
    """Why the run should be given up, or None while some client may still send an update that counts.

    cause: what the shell knows of it, with what to do; None for nothing.

    It should when every client that takes part has failed, or been refused, so many times in a row. One that sends
    nonsense on purpose ends nobody's run: the others do not fail.
    """
    clients, active = coordinator.membership.clients, coordinator.membership.active
    if coordinator.consecutive_failures < CONSECUTIVE_FAILURES_MAX * max(1, len(active)):
        return None
    if not active or any(
        clients[client_id].consecutive_failures < CONSECUTIVE_FAILURES_MAX for client_id in active
    ):
        return None
    return (
        f"training diverges: the last {coordinator.consecutive_failures} tasks made no update that counts, all of them "
        f"zero, not finite or otherwise refused, at version {coordinator.version}; "
        f"{cause or 'lower training.learning_rate'}"
    )
