"""A link that breaks: forwards TCP bytes, is cut after a number of bytes, or stops until a test resumes it."""

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from support.running import PATIENCE_S

PIECE_BYTES = 64 * 1024


class Link:
    """Runs within a context.

    server: its address. every_bytes: after so many in both directions all connections are cut; as often as
    `cuts_left`. hold_bytes: after so many the link stops, `held` is set, and no further byte passes
    until `go_on`. passed: bytes so far.
    """

    def __init__(self, server: str, *, every_bytes: int = 0, cuts: int = 0, hold_bytes: int | None = None) -> None:
        parts = urlsplit(server)
        assert parts.hostname is not None and parts.port is not None
        self._server = parts.hostname, parts.port
        self._every_bytes = every_bytes
        self._hold_bytes = hold_bytes
        self.cuts_left = cuts
        self.passed = 0
        self.held = threading.Event()
        self._may_pass = threading.Event()
        self._since_cut = 0
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ended = False
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._may_pass.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join(PATIENCE_S)

    def go_on(self) -> None:
        """Resume, on new connections."""
        self._hold_bytes = None
        self._may_pass.set()
        self.cut()

    def cut(self) -> None:
        """Break every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._server, PATIENCE_S)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if self._must_hold():
                    self.held.set()
                    self._may_pass.wait(PATIENCE_S)
                sink.sendall(piece)
                if self._is_cut_after(len(piece)):
                    self.cut()
                    return
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)  # the other direction continues: its bytes in transit are not lost

    def _must_hold(self) -> bool:
        return self._hold_bytes is not None and self.passed >= self._hold_bytes

    def _is_cut_after(self, passed: int) -> bool:
        with self._lock:
            self.passed += passed
            self._since_cut += passed
            if not self.cuts_left or self._since_cut < self._every_bytes:
                return False
            self.cuts_left -= 1
            self._since_cut = 0
            return True
