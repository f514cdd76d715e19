"""Listening sockets, which the server keeps while its gateways come and go: connections wait in their backlog."""

import errno
import socket
import time

from unstale.errors import UserError
from unstale_client.net.clock import now_s
from unstale_client.net.sockets import BACKLOG

ORPHANS_S = 2.0  # in which the gateways of a server that was killed end
PAUSE_S = 0.05


def listen(address: str, sockets: int) -> list[socket.socket]:
    """Sockets that listen at one address, among which the system shares out the connections. Raises UserError.

    address: `tcp://HOST:PORT`; port 0 or * is any free port.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    listening: list[socket.socket] = []
    try:
        family, where = _resolved(host.strip("[]"), 0 if port == "*" else int(port))
        for _ in range(sockets):
            one = socket.socket(family, socket.SOCK_STREAM)
            listening.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sockets > 1:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _bind(one, where)
            where = (where[0], one.getsockname()[1])
            one.listen(BACKLOG)
    except (OSError, ValueError) as error:
        for one in listening:
            one.close()
        raise _mistake(address, error) from None
    return listening


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    is_any = host == "*"
    family, _, _, _, where = socket.getaddrinfo(
        None if is_any else host,
        port,
        type=socket.SOCK_STREAM,
        family=socket.AF_INET if is_any else socket.AF_UNSPEC,
        flags=socket.AI_PASSIVE,
    )[0]
    return family, (str(where[0]), int(where[1]))


def _bind(one: socket.socket, where: tuple[str, int]) -> None:
    """Bind, once the gateways of a server that was killed have ended. Raises OSError."""
    end_s = now_s() + ORPHANS_S
    while True:
        try:
            one.bind(where)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or now_s() >= end_s:
                raise
            time.sleep(PAUSE_S)
        else:
            return


def _mistake(address: str, error: OSError | ValueError) -> UserError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return UserError(f"server.address {address} is in use; stop the program that uses it, or choose another port")
    why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not an address"
    return UserError(f"server.address {address!r} cannot be bound ({why}); expected tcp://HOST:PORT of this machine")
