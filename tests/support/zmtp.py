"""A peer that speaks ZMTP 3.0 by hand, so that it can send bytes that libzmq would not (RFC 23)."""

import socket
from types import TracebackType
from typing import Self

from support.running import PATIENCE_S

NULL, CURVE = b"NULL", b"CURVE"
EMPTY_MORE = b"\x01\x00"  # an empty frame of an unfinished message
_MORE, _LONG, _COMMAND = 1, 2, 4


def greeting(mechanism: bytes) -> bytes:
    """The first 64 bytes."""
    return b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def frame(content: bytes, *, more: bool = False) -> bytes:
    """A frame of a message."""
    return frame_start(len(content), more=more) + content


def frame_start(content_bytes: int, *, more: bool = False, command: bool = False) -> bytes:
    """The header of a frame."""
    flags = _MORE * more | _COMMAND * command
    if content_bytes > 255:
        return bytes([flags | _LONG]) + content_bytes.to_bytes(8, "big")
    return bytes([flags, content_bytes])


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


class ZmtpPeer:
    """A plain TCP connection to `tcp://HOST:PORT`. Used as a context, it is closed."""

    def __init__(self, address: str, *, source: str = "127.0.0.1") -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S, source_address=(source, 0))

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def shake_hands(self) -> None:
        """As a DEALER without a key."""
        ready = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", b"")
        self.socket.sendall(greeting(NULL) + frame_start(len(ready), command=True) + ready)
        self._read(64)
        flags, length = self._read(2)
        assert flags == _COMMAND
        self._read(length)

    def send(self, data: bytes) -> bool:
        """Send all of it. Returns False where the other side ended the connection meanwhile."""
        try:
            self.socket.sendall(data)
        except ConnectionError:
            return False
        return True

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            assert part, "the connection was ended"
            data += part
        return data

    def is_ended(self) -> bool:
        """Wait until the other side ends the connection; earlier bytes are read and dropped."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True
