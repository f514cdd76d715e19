"""Connections of the injector to the server, and a probe that waits for the server at the start."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from unstale.errors import UserError
from unstale_client.net import sockets
from unstale_client.net.handshakes import Handshakes

log = logging.getLogger("unstale.injector")

WARNING_AFTER_S = 3.0  # time without an answer before a warning


@dataclass(slots=True, kw_only=True)
class Upstream:
    """Makes connections to the server. Raises UserError if the address is invalid."""

    address: str
    dealer: Callable[[], zmq.Socket[bytes]]  # makes an unconnected DEALER socket
    public: str | None  # public key of the injector; None in plain text
    patience_s: float | None  # time to reach the server from started_s on; None for no limit
    started_s: float
    _probe: Handshakes | None = field(init=False)  # None after `close`, which leaves connections open
    _has_warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._probe = Handshakes(self.dealer(), self.address, self.public, ("injector.keys", "injector.keys"))
        try:
            sockets.connect(self._probe.socket, self.address, key="injector.upstream")
        except UserError:
            self.close()
            raise

    def connect(self) -> zmq.Socket[bytes]:
        """Return a new socket that connects to the server, also if the server starts later."""
        socket = self.dealer()
        try:
            sockets.connect(socket, self.address, key="injector.upstream")
        except UserError:
            socket.close()
            raise
        return socket

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors of the probe to poll; empty after `close`."""
        return () if self._probe is None else (self._probe.socket.FD, self._probe.monitor.FD)

    @property
    def due_s(self) -> float | None:
        """When to call `check_patience` next; None for never."""
        if self._probe is None:
            return None
        dues_s = [] if self._has_warned else [self.started_s + WARNING_AFTER_S]
        if self.patience_s is not None:
            dues_s.append(self.started_s + self.patience_s)
        return min(dues_s, default=None)

    def is_reached(self) -> bool:
        """Whether the server is reached. Raises UserError if it refuses the injector."""
        if self._probe is None:
            return True
        self._probe.check()
        return bool(self._probe.socket.poll(0, zmq.POLLOUT))

    def check_patience(self, at_s: float) -> None:
        """Warn about a server that does not answer. Raises UserError after `patience_s`."""
        if self._probe is None:
            return
        silence_s = at_s - self.started_s
        if self.patience_s is not None and silence_s >= self.patience_s:
            raise UserError(
                f"no server answered at {self.address} for {self.patience_s:g} s; start it, or check injector.upstream"
            )
        if silence_s >= WARNING_AFTER_S and not self._has_warned:
            self._has_warned = True
            limit = (
                "without a limit, because injector.patience_s is null"
                if self.patience_s is None
                else f"until {self.patience_s:g} s have passed (injector.patience_s)"
            )
            log.warning("no server answers at %s yet; retrying %s", self.address, limit)

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe.socket.close(linger=0)
            self._probe = None
