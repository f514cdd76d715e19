"""Reads and ends TCP connections that libzmq owns, by their file descriptors, which it never closes."""

import ctypes
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

Peer = tuple[str, int]
"""Address and port of the other side."""

TCP_INFO_BYTES = 136
SOCKADDR_BYTES = 16  # zeros: the family AF_UNSPEC
RECEIVED_AT = 128  # offset of tcpi_bytes_received in struct tcp_info of Linux 4.1 and later, 8 bytes


def peer_of(fd: int) -> Peer | None:
    """The other side of a connection; None if the descriptor is no connection any more."""
    try:
        with borrowed(fd) as connection:
            address = connection.getpeername()
    except OSError:
        return None
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None


def received_bytes(fd: int) -> tuple[int, int] | None:
    """Bytes of a connection that this process has read, and that it has not; None if unknown, or if it has ended."""
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
    unread = int.from_bytes(in_kernel, sys.byteorder)
    return max(0, received - unread), unread


def end(fd: int, peer: Peer) -> bool:
    """End a connection, so that its owner closes the descriptor. Returns whether it still was the one to `peer`.

    On Linux by `connect` to no address, which drops unread data. `shutdown`, as elsewhere, lets the owner read on while
    the other side sends faster than it reads.
    """
    if peer_of(fd) != peer:
        return False
    try:
        with borrowed(fd) as connection:
            # Python's `connect` does not support AF_UNSPEC.
            if sys.platform != "linux" or _libc().connect(fd, bytes(SOCKADDR_BYTES), SOCKADDR_BYTES) != 0:
                connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@contextmanager
def borrowed(fd: int) -> Iterator[socket.socket]:
    """A socket object for a descriptor that stays open. Raises OSError if it is no socket."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
    try:
        yield connection
    finally:
        connection.detach()
