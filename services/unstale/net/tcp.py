"""TCP connections that a library owns, known to us by their file descriptors.

libzmq tells the descriptor of each connection that it accepts. These functions read facts of such a connection and end
it. They never close the descriptor, because it belongs to libzmq.
"""

import ctypes
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

Peer = tuple[str, int]
"""Address and port of the other side."""

TCP_INFO_BYTES = 136
SOCKADDR_BYTES = 16  # all zero: of the family AF_UNSPEC
RECEIVED_AT = 128  # offset of tcpi_bytes_received in struct tcp_info of Linux 4.1 and later, 8 bytes


def peer_of(fd: int) -> Peer | None:
    """The other side of a connection; None where the descriptor is no connection any more."""
    try:
        with borrowed(fd) as connection:
            address = connection.getpeername()
    except OSError:
        return None
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None


def read_bytes(fd: int) -> int | None:
    """Bytes that this process has read from a connection since it was accepted.

    Returns:
        The number, or None where the system does not tell it or the connection has ended.
    """
    if sys.platform != "linux":
        return None
    import fcntl
    import termios

    try:
        with borrowed(fd) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
            in_kernel = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    except OSError:
        return None
    if len(info) < TCP_INFO_BYTES:
        return None
    received = int.from_bytes(info[RECEIVED_AT : RECEIVED_AT + 8], sys.byteorder)
    return max(0, received - int.from_bytes(in_kernel, sys.byteorder))


def end(fd: int, peer: Peer) -> bool:
    """End a connection; its owner then finds an error or the end of it, and closes the descriptor.

    On Linux by `connect` to no address, which drops what was received and not read yet. `shutdown` alone, as elsewhere,
    lets the owner read on for as long as the other side sends faster than it reads.

    Args:
        fd: its descriptor, as it was when it was accepted.
        peer: its other side then. A descriptor that has another one by now is left alone.

    Returns:
        Whether the descriptor still was this connection.
    """
    if peer_of(fd) != peer:
        return False
    try:
        with borrowed(fd) as connection:
            if sys.platform != "linux" or not _disconnected(fd):
                connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


def _disconnected(fd: int) -> bool:
    """Reset a connection by `connect` with the family AF_UNSPEC, which Python's own does not know."""
    return bool(_system().connect(fd, bytes(SOCKADDR_BYTES), SOCKADDR_BYTES) == 0)


@cache
def _system() -> ctypes.CDLL:
    """The C library of this process, looked up once."""
    return ctypes.CDLL(None)


@contextmanager
def borrowed(fd: int) -> Iterator[socket.socket]:
    """A socket object for a descriptor that stays open afterwards. Raises OSError where that is no socket."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
    try:
        yield connection
    finally:
        connection.detach()
