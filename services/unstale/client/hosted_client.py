"""A client that a process hosts, and its connection."""

from dataclasses import dataclass
from math import inf

import zmq

from unstale.client.session import ClientSession, State
from unstale.client.worker import Failed, Ready


@dataclass(slots=True)
class HostedClient:
    """A hosted client. finished: the result of its newest task, held until the client's device would be done."""

    session: ClientSession
    socket: zmq.Socket[bytes]
    finished: Ready | Failed | None = None
    finished_s: float = 0.0
    run_is_over: bool = False  # the server has finished the run
    away_s: float = 0.0  # time at which it lost its connection; infinity while it has one

    @property
    def is_away(self) -> bool:
        """Whether it has no connection."""
        return self.session.state is State.AWAY

    @property
    def is_in_the_run(self) -> bool:
        """Whether it takes part, or tries to."""
        return self.session.state is not State.OVER

    @property
    def due_s(self) -> float:
        """Time of its next timer; infinity for never."""
        session_s = inf if self.session.due_s is None else self.session.due_s
        return session_s if self.finished is None else min(session_s, self.finished_s)
