"""Reports failed handshakes of a socket that connects.

A handshake without the right key is silence on the wire; only the socket's monitor reports it. libzmq does not retry
after a refusal.
"""

import logging
import struct
from dataclasses import dataclass

import zmq

from unstale_client.errors import UserError

log = logging.getLogger("unstale.keys")

FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
CRYPTOGRAPHIC = zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
MISMATCH = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH  # one side uses keys, and the other plain text
BREAKS_SHOWN = 3  # broken handshakes in a row; fewer may be a server that is just starting


def parsed(event: list[bytes]) -> tuple[int, int]:
    """Kind and value of a monitor's event."""
    kind, value = struct.unpack("=HI", event[0])
    return kind, value


@dataclass(eq=False)
class Handshakes:
    """Watches a socket that is not yet connected, in that socket's thread."""

    socket: zmq.Socket[bytes]
    address: str  # of the server
    public: str | None  # own key; None in plain text
    settings: tuple[str, str]  # configuration keys of the own key and of the server's
    _broken: int = 0  # handshakes in a row

    def __post_init__(self) -> None:
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def check(self) -> None:
        """Read the monitor. Raises UserError for a failure that only a person can fix."""
        own_setting, server_setting = self.settings
        while self.monitor.poll(0):
            kind, value = parsed(self.monitor.recv_multipart())
            if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise UserError(
                    f"the server at {self.address} refuses the key {self.public} of {own_setting}: "
                    "the server has not authorized it, or has revoked it"
                )
            if value == MISMATCH:
                raise UserError(self._mismatch())
            self._broken = 0 if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED else self._broken + 1
            if self._broken == BREAKS_SHOWN and self.public is not None:
                log.warning(
                    "connections to %s break during the handshake; is the key in %s that server's?",
                    self.address,
                    server_setting,
                )

    def close(self) -> None:
        """Call it before the socket is closed: an unread monitor would block it."""
        if not self.monitor.closed:
            self.socket.disable_monitor()
            self.monitor.close()

    def _mismatch(self) -> str:
        if self.public is None:
            return f"the server at {self.address} requires a key; set {self.settings[0]}, see unstale keys"
        return f"the server at {self.address} uses plain text; start it with keys, or omit {self.settings[0]}"
