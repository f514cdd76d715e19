"""Values between a server and its gateway processes: msgpack over a Unix socket, and shared memory for payloads.

A value may carry a file descriptor. Nothing here waits, and nothing is pickled.
"""

import mmap
import os
import socket
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

RECEIVE_BYTES = 64 * 1024  # a few hundred messages
DESCRIPTORS_MAX = 64  # that one receive call takes
WAITING_BYTES_MAX = 2**30  # for a process that does not read; then it is of no use any more
BUFFER_BYTES = 4 * 2**20  # of the system, for one direction


class LinkEndedError(Exception):
    """The other process has ended, or reads nothing any more."""


class Link:
    """One end. Every value is a sequence, whose first entry says what it is."""

    def __init__(self, end: socket.socket) -> None:
        """end: of a connected pair; belongs to the link from now on."""
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._socket = end
        self._unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=2**31 - 1, strict_map_key=False)
        self._pack = msgpack.Packer().pack
        self._waiting: deque[tuple[memoryview, int | None]] = deque()
        self._waiting_bytes = 0
        self._batch: list[bytes] = []
        self._received: deque[int] = deque()
        self.more_waits = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waits(self) -> bool:
        """Whether `flush` could not send everything: it is to be called again when the socket takes more."""
        return bool(self._waiting)

    def post(self, value: Sequence[Any], descriptor: int | None = None) -> None:
        """Send a value with the next `flush`. descriptor: open until then."""
        packed = self._pack(value)
        if descriptor is None:
            self._batch.append(packed)
            return
        self._collect()
        self._append(packed, os.dup(descriptor))

    def flush(self) -> None:
        """Send as much as the socket takes. Raises LinkEndedError."""
        self._collect()
        try:
            while self._waiting:
                data, descriptor = self._waiting[0]
                if descriptor is None:
                    sent = self._socket.send(data)
                else:
                    sent = socket.send_fds(self._socket, [data], [descriptor])
                    os.close(descriptor)
                self._waiting_bytes -= sent
                if sent == len(data):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = data[sent:], None
        except BlockingIOError:
            if self._waiting_bytes > WAITING_BYTES_MAX:
                raise LinkEndedError from None
        except OSError as error:
            raise LinkEndedError from error

    def receive(self) -> Iterator[tuple[Any, ...]]:
        """The values that have arrived, of at most `RECEIVE_BYTES`. Afterwards, `more_waits` says whether others may
        wait. Raises LinkEndedError when there are no more, and no others can come.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, RECEIVE_BYTES, DESCRIPTORS_MAX)
        except BlockingIOError:
            data, descriptors = None, []
        except OSError:
            data, descriptors = b"", []
        self._received.extend(descriptors)
        # A descriptor ends what one call receives.
        self.more_waits = data is not None and (len(data) == RECEIVE_BYTES or bool(descriptors))
        if data:
            self._unpacker.feed(data)
        yield from self._unpacker
        if data == b"":
            raise LinkEndedError

    def take_descriptor(self) -> int:
        """The descriptor that came with the value just received. The caller closes it."""
        return self._received.popleft()

    def close(self) -> None:
        for descriptor in (*self._received, *(descriptor for _, descriptor in self._waiting if descriptor is not None)):
            os.close(descriptor)
        self._received.clear()
        self._waiting.clear()
        self._socket.close()

    def _collect(self) -> None:
        if self._batch:
            data = b"".join(self._batch)
            self._batch.clear()
            self._append(data, None)

    def _append(self, data: bytes, descriptor: int | None) -> None:
        self._waiting.append((memoryview(data), descriptor))
        self._waiting_bytes += len(data)


def shared_file(size_bytes: int) -> int:
    """A descriptor of new memory without a name, which another process can map too. Raises OSError."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("unstale", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.ftruncate(file, size_bytes)
    return file


def mapped(file: int, size_bytes: int) -> memoryview:
    """The memory of a shared file, which stays when the descriptor is closed."""
    return memoryview(mmap.mmap(file, size_bytes))


class RingWriter:
    """Allocates pieces of shared memory in order, which the reader releases in order."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._head = 0  # bytes ever allocated, with gaps at the end of the memory
        self._tail = 0  # of these, released

    def allocate(self, length_bytes: int) -> tuple[int, int] | None:
        """Position of a piece without a gap, and the value that releases it and all before it; None without room."""
        position = self._head % self._size_bytes
        gap = self._size_bytes - position if position + length_bytes > self._size_bytes else 0
        end = self._head + gap + length_bytes
        if end - self._tail > self._size_bytes:
            return None
        self._head = end
        return (position + gap) % self._size_bytes, end

    def release(self, end: int) -> None:
        """The reader needs nothing before this value any more."""
        self._tail = end
