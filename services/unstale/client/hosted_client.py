"""A client that a process hosts, and its connection."""

from dataclasses import dataclass
from math import inf

import zmq

from unstale.client.session import ClientSession, State
from unstale.client.worker import Failed, Ready


@dataclass(slots=True)
class HostedClient:
    """A hosted client and its connection. finished: what came of its newest task, held until its device is done, at
    finished_s. run_is_over: its server has said so. away_s: since when it has had no connection, while it has none.
    """

    session: ClientSession
    socket: zmq.Socket[bytes]
    finished: Ready | Failed | None = None
    finished_s: float = 0.0
    run_is_over: bool = False
    away_s: float = 0.0

    @property
    def is_away(self) -> bool:
        """Whether it has no connection."""
        return self.session.state is State.AWAY

    @property
    def is_in_the_run(self) -> bool:
        """Whether it takes part, or is on the way there."""
        return self.session.state is not State.OVER

    @property
    def due_s(self) -> float:
        """When there is something to do for it; infinity is never."""
        session_s = inf if self.session.due_s is None else self.session.due_s
        return session_s if self.finished is None else min(session_s, self.finished_s)
