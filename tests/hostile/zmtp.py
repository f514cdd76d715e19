"""Raw ZMTP 3.1 (RFC 23 and 37): bytes of greetings, commands and frames, and many sockets at once."""

import selectors
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


def connected(target: Target, port: int) -> socket.socket | None:
    """A TCP connection; None when the other side refuses it."""
    with suppress(OSError):
        return socket.create_connection((HOST, port), TIMEOUT_S, source_address=(target.source, 0))
    return None


@contextmanager
def connections(target: Target, port: int, count: int) -> Iterator[list[socket.socket]]:
    """The accepted TCP connections, at most `count`, closed at the end of the context."""
    held: list[socket.socket] = []
    try:
        while len(held) < count and target.is_active():
            one = connected(target, port)
            if one is None:
                target.wait(0.2)
            else:
                held.append(one)
        yield held
    finally:
        for one in held:
            one.close()


def reconnect(target: Target, port: int, count: int, data: bytes = b"") -> int:
    """Keep `count` connections open, each of which sends `data` and connects again as soon as it is closed.

    Returns:
        The number of established connections.
    """
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            _start_connecting(selector, target.source, port, data)
        established = 0
        while target.is_active():
            for key, events in selector.select(0.1):
                one: socket.socket = key.fileobj  # type: ignore[assignment]
                unsent: memoryview | None = key.data
                established += bool(events & selectors.EVENT_WRITE and unsent is not None and len(unsent) == len(data))
                if _exchange(one, unsent, selector):
                    continue
                selector.unregister(one)
                one.close()
                _start_connecting(selector, target.source, port, data)
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return established


def _start_connecting(selector: selectors.BaseSelector, source: str, port: int, data: bytes) -> None:
    one = socket.socket()
    one.setblocking(False)
    one.bind((source, 0))
    one.connect_ex((HOST, port))
    selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(data))


def _exchange(one: socket.socket, unsent: memoryview | None, selector: selectors.BaseSelector) -> bool:
    """Send the accepted bytes, and read the received ones. Returns whether the connection is still open."""
    try:
        if unsent is not None:
            unsent = unsent[one.send(unsent) :] if unsent else None
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.modify(one, both if unsent else selectors.EVENT_READ, unsent or None)
        return bool(one.recv(65536))
    except BlockingIOError:
        return True
    except OSError:
        return False


def send(one: socket.socket, data: bytes) -> bool:
    """Whether all bytes were accepted; False on a connection that is closed or does not read."""
    with suppress(OSError):
        one.sendall(data)
        return True
    return False


def is_closed(one: socket.socket) -> bool:
    """Whether the other side has closed a connection. Its earlier bytes are dropped."""
    one.setblocking(False)
    try:
        while chunk := one.recv(65536):
            del chunk
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def joined_in_plain_text(target: Target) -> socket.socket | None:
    """A connection after the handshake of a DEALER without keys; None when that fails."""
    one = connected(target, target.port)
    if one is None:
        return None
    if send(one, greeting("NULL") + ready()):
        with suppress(OSError):
            if one.recv(64):
                return one
    one.close()
    return None
