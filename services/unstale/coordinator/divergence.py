"""Detects that no client makes an update that counts: training diverges, or the clients' own code raises."""

from collections.abc import Sequence

from unstale.coordinator.actions import Outcome
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.membership import ACTIVE, Client
from unstale.errors import UserError

CONSECUTIVE_FAILURES_MAX = 10  # by every client: single bad batches do not repeat that often


class DivergedError(UserError):
    """The run was given up because training diverges, or because the code of every client raises."""


def reason(coordinator: Coordinator, cause: str | None = None, client_error: str | None = None) -> str | None:
    """Error message where every active client has failed `CONSECUTIVE_FAILURES_MAX` times in a row, else None.

    Errors of a client's own code are no divergence. Where every active client fails because of them alone, the run
    ends only if no other client can come back: see `_is_awaited`. A single client cannot end a run on purpose.

    cause: with the remedy, if the shell knows it. client_error: what a client said of the last task, if it gave that
    back.
    """
    active = _failing(coordinator)
    if not active:
        return None
    diverges = _diverges(active)
    if not diverges and any(map(_is_awaited, coordinator.membership.clients)):
        return None
    last = f"the last {coordinator.consecutive_failures} tasks made no update that counts"
    if not diverges or (cause is None and client_error is not None):
        of_the_last = "" if client_error is None else f"; the last one: {client_error}"
        return (
            f"every task fails: {last}, at version {coordinator.version}{of_the_last}; mend its "
            "cause, or lower training.learning_rate where training diverges"
        )
    return (
        f"training diverges: {last}, all of them zero, not finite or otherwise refused, at version "
        f"{coordinator.version}; {cause or 'lower training.learning_rate'}"
    )


def _failing(coordinator: Coordinator) -> list[Client]:
    """The active clients if each of them has failed `CONSECUTIVE_FAILURES_MAX` times in a row, else none."""
    membership = coordinator.membership
    if coordinator.consecutive_failures < CONSECUTIVE_FAILURES_MAX * len(membership.active):
        return []
    active = [membership.clients[client_id] for client_id in membership.active]
    return active if all(client.consecutive_failures >= CONSECUTIVE_FAILURES_MAX for client in active) else []


def _diverges(clients: Sequence[Client]) -> bool:
    """Whether a client has failed `CONSECUTIVE_FAILURES_MAX` times in a row without an error of its own code."""
    return any(client.consecutive_failures - client.code_errors >= CONSECUTIVE_FAILURES_MAX for client in clients)


def _is_awaited(client: Client) -> bool:
    """Whether a client has left or was lost after an accepted update, without a failure since."""
    return (
        client.state not in ACTIVE
        and client.consecutive_failures == 0
        and any(verdict.outcome is Outcome.ACCEPTED for _, verdict in client.tasks.verdicts)
    )
