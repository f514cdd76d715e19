"""Raw ZMTP 3.1 (RFC 23 and 37): bytes of greetings, commands and frames, and many sockets at once."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hostile.target import Target

HOST = "127.0.0.1"
TIMEOUT_S = 2.0
MORE, LONG, COMMAND = 1, 2, 4


def greeting(mechanism: str) -> bytes:
    """The 64 bytes that open a connection as a client. mechanism: `NULL` or `CURVE`."""
    return b"\xff\0\0\0\0\0\0\0\1\x7f" + b"\3\1" + mechanism.encode().ljust(20, b"\0") + bytes(32)


def ready() -> bytes:
    """The command with which a DEALER ends the handshake of the mechanism NULL."""
    name, value = b"Socket-Type", b"DEALER"
    body = b"\5READY" + bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
    return bytes([COMMAND, len(body)]) + body


def long_frame_head(flags: int, size_bytes: int) -> bytes:
    """The head of a frame whose size takes eight bytes."""
    return bytes([flags | LONG]) + struct.pack(">Q", size_bytes)


def connected(port: int) -> socket.socket | None:
    """A TCP connection; None when the other side does not take it."""
    with suppress(OSError):
        return socket.create_connection((HOST, port), TIMEOUT_S)
    return None


@contextmanager
def connections(target: Target, port: int, count: int) -> Iterator[list[socket.socket]]:
    """As many TCP connections as are taken, at most `count`, closed when the context is left."""
    held: list[socket.socket] = []
    try:
        while len(held) < count and target.goes_on():
            one = connected(port)
            if one is None:
                target.wait(0.2)
            else:
                held.append(one)
        yield held
    finally:
        for one in held:
            one.close()


def send(one: socket.socket, data: bytes) -> bool:
    """Whether all of it was taken; False on a connection that is closed or does not read."""
    with suppress(OSError):
        one.sendall(data)
        return True
    return False


def is_closed(one: socket.socket) -> bool:
    """Whether the other side has closed a connection. What it sent before is thrown away."""
    one.setblocking(False)
    try:
        while chunk := one.recv(65536):
            del chunk
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def joined_in_plain_text(port: int) -> socket.socket | None:
    """A connection that has done the handshake of a DEALER without keys; None when that fails."""
    one = connected(port)
    if one is None:
        return None
    if send(one, greeting("NULL") + ready()):
        with suppress(OSError):
            if one.recv(64):
                return one
    one.close()
    return None
