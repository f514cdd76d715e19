"""Detects that training diverges."""

from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError

CONSECUTIVE_FAILURES_MAX = 10  # by every client: single bad batches do not repeat that often


class DivergedError(UserError):
    """The run was given up because training diverges."""


def reason(coordinator: Coordinator, cause: str | None = None, client_error: str | None = None) -> str | None:
    """Error message where every active client has failed `CONSECUTIVE_FAILURES_MAX` times in a row, else None.

    A single client that sends bad updates on purpose cannot end a run. cause: with the remedy, if the shell knows it.
    client_error: what a client said of the last task, if it gave that back.
    """
    clients, active = coordinator.membership.clients, coordinator.membership.active
    if coordinator.consecutive_failures < CONSECUTIVE_FAILURES_MAX * max(1, len(active)):
        return None
    if not active or any(clients[client_id].consecutive_failures < CONSECUTIVE_FAILURES_MAX for client_id in active):
        return None
    last = f"the last {coordinator.consecutive_failures} tasks made no update that counts"
    if cause is None and client_error is not None:
        return (
            f"every task fails: {last}, at version {coordinator.version}; the last one: {client_error}; mend its "
            "cause, or lower training.learning_rate where training diverges"
        )
    return (
        f"training diverges: {last}, all of them zero, not finite or otherwise refused, at version "
        f"{coordinator.version}; {cause or 'lower training.learning_rate'}"
    )
