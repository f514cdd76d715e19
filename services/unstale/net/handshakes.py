"""Why a socket that connects gets no connection: its failed handshakes, told to the person who waits.

A handshake that fails for want of the right key is silence on the wire; only the socket's monitor knows. After a
refusal libzmq does not try again.
"""

import logging
import struct

import zmq

from unstale.errors import UserError

log = logging.getLogger("unstale.keys")

FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
CRYPTOGRAPHIC = zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
MISMATCH = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH  # one side wants keys, and the other plain text
BREAKS_SHOWN = 3  # handshakes in a row that broke off; fewer may be a server that is just starting


def parsed(event: list[bytes]) -> tuple[int, int]:
    """Kind and value of an event from a monitor."""
    kind, value = struct.unpack("=HI", event[0])
    return kind, value


class Handshakes:
    """Watches a socket that is not yet connected, in the thread that uses it.

    address: that it connects to. public: its own key, None in plain text. settings: keys of the configuration that hold
    the own key and the server's.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], address: str, public: str | None, settings: tuple[str, str]
    ) -> None:
        self.socket = socket
        self.monitor: zmq.Socket[bytes] = socket.get_monitor_socket(FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._address = address
        self._public = public
        self._own, self._servers = settings
        self._broken = 0

    def check(self) -> None:
        """Read what the monitor has. Raises UserError for what only a person can mend."""
        while self.monitor.poll(0):
            kind, value = parsed(self.monitor.recv_multipart())
            if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise UserError(
                    f"the server at {self._address} refuses the key {self._public} of {self._own}: "
                    "it is not, or no longer, among those that the server admits"
                )
            if value == MISMATCH:
                raise UserError(self._mismatch())
            self._broken = 0 if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED else self._broken + 1
            if self._broken == BREAKS_SHOWN and self._public is not None:
                log.warning(
                    "connections to %s break off before anything is said; is the key in %s that server's?",
                    self._address,
                    self._servers,
                )

    def close(self) -> None:
        """Before the socket is closed: a monitor that nobody reads would block it."""
        if not self.monitor.closed:
            self.socket.disable_monitor()
            self.monitor.close()

    def _mismatch(self) -> str:
        if self._public is None:
            return f"the server at {self._address} takes nothing without a key; give {self._own}, see unstale keys"
        return f"the server at {self._address} speaks in plain text; start it with keys, or leave out {self._own}"
