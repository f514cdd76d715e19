"""Connections to the server, and a probe that waits for the server at the start."""

import logging
from collections.abc import Callable

import zmq

from unstale.errors import UserError
from unstale.net import sockets
from unstale.net.handshakes import Handshakes

log = logging.getLogger("unstale.injector")

FIRST_WORD_S = 3.0  # time without an answer before a warning


class Upstream:
    """Makes connections to the server. Raises UserError if the address is invalid.

    Args:
        dealer: makes a socket that is not connected.
        public: public key of the injector; None in plain text.
        patience_s: time to reach the server from started_s on; None for no limit.
    """

    def __init__(
        self,
        address: str,
        dealer: Callable[[], zmq.Socket[bytes]],
        *,
        public: str | None,
        patience_s: float | None,
        started_s: float,
    ) -> None:
        self._address = address
        self._dealer = dealer
        self._patience_s = patience_s
        self._started_s = started_s
        self._has_warned = False
        self._probe: Handshakes | None = Handshakes(dealer(), address, public, ("injector.keys", "injector.keys"))
        try:
            sockets.connect(self._probe.socket, address, key="injector.upstream")
        except UserError:
            self.close()
            raise
        self.descriptors = (self._probe.socket.FD, self._probe.monitor.FD)  # of the probe

    def connect(self) -> zmq.Socket[bytes]:
        """Make a connection to the server, which may start later."""
        socket = self._dealer()
        try:
            sockets.connect(socket, self._address, key="injector.upstream")
        except UserError:
            socket.close()
            raise
        return socket

    @property
    def due_s(self) -> float | None:
        """When to call `check_patience` next; None for never."""
        dues_s = [] if self._has_warned else [self._started_s + FIRST_WORD_S]
        if self._patience_s is not None:
            dues_s.append(self._started_s + self._patience_s)
        return min(dues_s, default=None)

    def is_reached(self) -> bool:
        """Whether the server is reached. Raises UserError if it refuses the injector."""
        if self._probe is None:
            return True
        self._probe.check()
        return bool(self._probe.socket.poll(0, zmq.POLLOUT))

    def check_patience(self, at_s: float) -> None:
        """Warn about a server that does not answer. Raises UserError after `patience_s`."""
        silence_s = at_s - self._started_s
        if self._patience_s is not None and silence_s >= self._patience_s:
            raise UserError(
                f"no server answered at {self._address} for {self._patience_s:g} s; "
                "start it, or check injector.upstream"
            )
        if silence_s >= FIRST_WORD_S and not self._has_warned:
            self._has_warned = True
            limit = (
                "without a limit, because injector.patience_s is null"
                if self._patience_s is None
                else f"until {self._patience_s:g} s are over (injector.patience_s)"
            )
            log.warning("no server answers at %s yet; retrying %s", self._address, limit)

    def close(self) -> None:
        """End the probe."""
        if self._probe is not None:
            self._probe.close()
            self._probe.socket.close(linger=0)
            self._probe = None
