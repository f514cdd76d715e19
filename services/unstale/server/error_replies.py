"""Error replies to messages that are refused, and quarantine of clients whose messages are refused repeatedly."""

from collections.abc import Callable

from unstale.coordinator import events
from unstale.log_rate_limit import about_peer, logger
from unstale.server.client_limits import ClientLimits
from unstale.server.executor import ActionExecutor
from unstale.server.sender import Sender
from unstale.server.sessions import Sessions
from unstale.server.stats import ServerStats
from unstale_proto.errors import RemoteContractError
from unstale_proto.messages import Error

log = logger("unstale.server")


class ErrorReplies:
    """Protocol thread only. clock: seconds of the run."""

    def __init__(
        self,
        clock: Callable[[], float],
        client_limits: ClientLimits,
        stats: ServerStats,
        sender: Sender,
        sessions: Sessions,
        executor: ActionExecutor,
    ) -> None:
        self._clock, self._client_limits, self._stats = clock, client_limits, stats
        self._sender, self._sessions, self._executor = sender, sessions, executor

    def refuse(self, route: bytes, error: RemoteContractError) -> None:
        """Count a message that is refused, and answer it."""
        self._stats.refused(error.reason)
        if self._client_limits.may_answer(route, error.reason, self._clock()):
            self._sender.send(route, Error(reason=error.reason, message=str(error)))

    def quarantine_if_due(self, route: bytes, client_id: int) -> None:
        """Quarantine a client whose messages were refused too often in a row."""
        if self._client_limits.is_quarantine_due(client_id):  # else it is in quarantine
            self.quarantine(route, client_id)

    def quarantine(self, route: bytes, client_id: int) -> None:
        """Exclude a client from the run for a while."""
        why = self._client_limits.quarantine(client_id, self._clock())
        log.warning("%s", why, extra=about_peer(client_id))
        self._stats.quarantined()
        self.refuse(route, why)
        self._sessions.forget(client_id)
        self._executor.handle(events.ClientLeft(client_id=client_id, at_s=self._clock()))
