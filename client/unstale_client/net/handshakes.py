"""Reports failed handshakes of a socket that connects.

The socket itself reports no error when a key is wrong; only its monitor does. libzmq does not retry after a refusal.
"""

import logging
import struct
from dataclasses import dataclass

import zmq

from unstale_client.errors import UserError

log = logging.getLogger("unstale.keys")

FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
CRYPTOGRAPHIC = zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC  # the client expects the key of another server
MISMATCH = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH  # one side uses keys, the other plain text
FAILURES_TO_WARN = 3  # in a row; a server that is just starting may cause fewer


def parsed(event: list[bytes]) -> tuple[int, int]:
    """Return kind and value of a monitor's event."""
    kind, value = struct.unpack("=HI", event[0])
    return kind, value


@dataclass(eq=False)
class Handshakes:
    """Watches the handshakes of one socket, in its thread. Create it before the socket connects."""

    socket: zmq.Socket[bytes]
    address: str  # of the server
    public: str | None  # public key of this side; None in plain text
    settings: tuple[str, str]  # names of the configuration keys for `public` and for the server's key
    _failures: int = 0  # failed handshakes in a row

    def __post_init__(self) -> None:
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def check(self) -> None:
        """Read new events. Raises UserError if the server refuses the key, or only one side uses keys."""
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
            self._failures = 0 if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED else self._failures + 1
            if self._failures == FAILURES_TO_WARN and self.public is not None:
                log.warning(
                    "connections to %s break during the handshake; is the key in %s that server's?",
                    self.address,
                    server_setting,
                )

    def close(self) -> None:
        """Close the monitor. Call it before the socket closes: unread events would block that."""
        if not self.monitor.closed:
            self.socket.disable_monitor()
            self.monitor.close()

    def _mismatch(self) -> str:
        if self.public is None:
            return f"the server at {self.address} requires a key; set {self.settings[0]}, see unstale keys"
        return f"the server at {self.address} uses plain text; start it with keys, or omit {self.settings[0]}"
