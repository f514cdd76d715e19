"""Reports failed handshakes of a socket that connects.

A handshake without the right key is silence on the wire; only the socket's monitor reports it. libzmq does not retry
after a refusal.
"""

import logging
import struct

import zmq

from unstale.errors import UserError

log = logging.getLogger("unstale.keys")

FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
CRYPTOGRAPHIC = zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
MISMATCH = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH  # one side uses keys, and the other plain text
BREAKS_SHOWN = 3  # broken handshakes in a row; fewer may be a server that is just starting


def parsed(event: list[bytes]) -> tuple[int, int]:
    """Kind and value of a monitor's event."""
    kind, value = struct.unpack("=HI", event[0])
    return kind, value


class Handshakes:
    """Watches a socket that is not yet connected, in that socket's thread.

    Args:
        address: of the server.
        public: own key; None in plain text.
        settings: configuration keys of the own key and of the server's.
    """

    def __init__(self, socket: zmq.Socket[bytes], address: str, public: str | None, settings: tuple[str, str]) -> None:
        self.socket = socket
        self.monitor: zmq.Socket[bytes] = socket.get_monitor_socket(FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._address = address
        self._public = public
        self._own_setting, self._server_setting = settings
        self._broken = 0

    def check(self) -> None:
        """Read the monitor. Raises UserError for a failure that only a person can fix."""
        while self.monitor.poll(0):
            kind, value = parsed(self.monitor.recv_multipart())
            if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise UserError(
                    f"the server at {self._address} refuses the key {self._public} of {self._own_setting}: "
                    "the server has not authorized it, or has revoked it"
                )
            if value == MISMATCH:
                raise UserError(self._mismatch())
            self._broken = 0 if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED else self._broken + 1
            if self._broken == BREAKS_SHOWN and self._public is not None:
                log.warning(
                    "connections to %s break during the handshake; is the key in %s that server's?",
                    self._address,
                    self._server_setting,
                )

    def close(self) -> None:
        """Call it before the socket is closed: an unread monitor would block it."""
        if not self.monitor.closed:
            self.socket.disable_monitor()
            self.monitor.close()

    def _mismatch(self) -> str:
        if self._public is None:
            return f"the server at {self._address} requires a key; set {self._own_setting}, see unstale keys"
        return f"the server at {self._address} uses plain text; start it with keys, or omit {self._own_setting}"
