"""`unstale` as processes of their own, started as a user starts them."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, Self

START_S = 120.0  # importing torch on a busy machine


def _default_signals() -> None:
    """Processes end by these signals, even where the tests run in the background and ignore them."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


class Process:
    """One `unstale` command. The end of the context kills it if it still runs.

    folder: its working directory; None for a temporary one of its own. python_path: where it
    finds code that it has to import.
    """

    def __init__(self, *arguments: str, folder: Path | None = None, python_path: Path | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("UNSTALE_")}
        if python_path is not None:
            before = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = f"{python_path}{os.pathsep + before if before else ''}"
        self._own_folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unstale", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder or self._own_folder.name,
            env=environment,
            preexec_fn=_default_signals,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._output = _Lines(self.process.stdout)
        self._errors = _Lines(self.process.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._output.close()
        self._errors.close()
        self._own_folder.cleanup()

    def fact(self) -> dict[str, Any]:
        """The next line of its output, which is JSON."""
        line = self._output.next()
        assert line is not None, f"the process has ended: {self._errors.seen}"
        fact: dict[str, Any] = json.loads(line)
        return fact

    def says(self, text: str) -> None:
        """Wait for a line on stderr with this text in it."""
        while text not in (line := self._errors.next() or ""):
            assert line, f"the process has ended: {self._errors.seen}"

    def end(self) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(START_S)

    def errors(self) -> str:
        """Its complete stderr, once it has ended."""
        self._errors.finish()
        return "".join(self._errors.seen)


class _Lines:
    """The lines of a process, read by a thread so that waiting is bounded."""

    def __init__(self, stream: IO[str]) -> None:
        self.seen: list[str] = []
        self._stream = stream
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def next(self) -> str | None:
        """The next line, or None after the last one."""
        return self._lines.get(timeout=START_S)

    def finish(self) -> None:
        self._reader.join(START_S)

    def close(self) -> None:
        self.finish()
        self._stream.close()

    def _read(self) -> None:
        for line in self._stream:
            self.seen.append(line)
            self._lines.put(line)
        self._lines.put(None)


def free_port() -> int:
    """A port without a listener. Another process could bind it, but on loopback the risk is small."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
