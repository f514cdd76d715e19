"""The worker pool: another process computes tasks, either itself or on the Ray cluster that it connects to."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection

from unstale.errors import UserError, WorkerLostError
from unstale.workers.channel import Kind, Pipe, receive, send
from unstale.workers.program import Progress, described

LOCAL = "unstale.workers.local_worker"
DRIVER = "unstale.workers.ray_driver"  # named, not imported: it imports Ray
FRAME_S = 10  # after which a driver hangs that neither reads nor writes the rest of a frame
END_S = 10.0  # Ray ends a cluster of its own in one or two
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray then listens on 127.0.0.1 alone, on any system
NO_REPORTS = {"RAY_USAGE_STATS_ENABLED": "0"}  # to Ray's makers


@dataclass(frozen=True, slots=True, kw_only=True)
class RayStart:
    """How a cluster is used."""

    address: str
    key: str  # setting of the address, for error messages
    program: str  # as of `unstale.workers.program.described`
    cpus: int  # of each task
    gpus: float  # of each task
    advice: str  # ends the error message for a cluster without these
    attempts: int = 1  # of a task whose worker fails
    task_s: float | None = None  # time without any result after which all tasks are tried again; None for no limit
    pause_s: float = 0.0  # before the connection
    reuses_gpus: bool = False  # a worker may compute several tasks, each on another GPU: the program chooses the device


def local(
    factory: str, settings: object, *, environment: Mapping[str, str] | None = None, descriptors: tuple[int, ...] = ()
) -> "Pool":
    """A process of this machine that computes one task at a time. Arguments as of `described` and `Pool`."""
    return Pool(LOCAL, described(factory, settings), environment=environment, descriptors=descriptors)


def on_ray(start: RayStart) -> "Pool":
    """A process that connects to a Ray cluster. Raises UserError if Ray is not installed, and OSError as `Pool`."""
    if find_spec("ray") is None:
        raise UserError(
            f"{start.key} is {start.address!r}, but Ray is not installed; install it with pip install 'unstale[ray]'"
        )
    environment = NO_REPORTS | (LOOPBACK if start.address == "local" else {})
    return Pool(
        DRIVER,
        json.dumps(asdict(start)),
        environment={name: value for name, value in environment.items() if name not in os.environ},
        why_lost=f"the Ray cluster {start.address} is gone",
        end_s=END_S,
        frame_s=FRAME_S,
    )


class Pool:
    """One worker process and its tasks, for any thread. The process ends with this one, however this one ends.

    ready: Done when the pool takes tasks. Fails with UserError if it refuses, with WorkerLostError if it has ended.
    capacity: Tasks that are computed at a time; 0 before the pool is ready. Changes with a cluster's machines.
    why_ended: Why tasks are lost from now on; None while the process runs.
    close: Ends the process, whatever it computes. Repeated calls do nothing.
    """

    def __init__(
        self,
        module: str,
        start: str,
        *,
        environment: Mapping[str, str] | None = None,
        descriptors: tuple[int, ...] = (),
        why_lost: str | None = None,
        end_s: float = 0.0,
        frame_s: int = 0,
    ) -> None:
        """Start the process. Raises OSError if it does not start.

        Args:
            start: Content of its first frame.
            environment: Variables that differ from those of this process.
            descriptors: Open files that the process inherits.
            why_lost: Why tasks are lost when the process ends; None for how it ended.
            end_s: Seconds that the process has to end by itself on `close`.
            frame_s: Seconds without progress within a frame after which the process is lost; 0 for no limit.
        """
        self.ready: Future[None] = Future()
        self.capacity = 0
        self.why_ended: str | None = None
        self._why_lost = why_lost
        self._frame_s = frame_s
        self._lock = threading.Lock()
        self._count = 0
        self._open: dict[int, tuple[Future[bytes], Progress | None]] = {}
        with ExitStack() as stack:
            self._socket, theirs = (stack.enter_context(side) for side in socket.socketpair())
            for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", frame_s, 0))
            self._process = _started(module, (theirs.fileno(), *descriptors), environment or {})
            theirs.close()
            stack.pop_all()
        self._pipe: Pipe = Connection(os.dup(self._socket.fileno()))
        self.close = weakref.finalize(self, _end, self._process, self._socket, end_s)
        self._send(Kind.START, 0, start.encode())
        threading.Thread(target=self._receive_all, name="worker pool", daemon=True).start()

    def submit(self, content: bytes, on_progress: Progress | None = None) -> "Future[bytes]":
        """Compute a task, which fails with WorkerLostError if it is lost. `cancel` cancels it at the worker, too.

        on_progress: Receives the share that is done, in another thread.
        """
        future: Future[bytes] = Future()
        with self._lock:
            self._count += 1
            number, why_ended = self._count, self.why_ended
            if why_ended is None:
                self._open[number] = future, on_progress
        if why_ended is not None:
            future.set_exception(WorkerLostError(why_ended))
        else:
            future.add_done_callback(partial(self._cancel, number))
            self._send(Kind.TASK, number, content)
        return future

    def stop(self, why: str) -> None:
        """Lose all tasks, now and later, for this reason."""
        self._why_lost = why
        _disconnect(self._socket)

    def kill(self) -> None:
        """`close` without waiting for the process to end by itself."""
        self._process.kill()
        self.close()

    def exit_code(self) -> int:
        """Of the process; negative for a signal. Waits for its end."""
        return self._process.wait()

    def how_ended(self) -> str:
        """`ended with exit code 1`. Waits for that end."""
        code = self.exit_code()
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was ended by signal {-code}" + ", perhaps for want of memory" * (code == -9)

    def _send(self, kind: Kind, number: int, content: bytes = b"") -> None:
        """A failure ends the connection: part of a frame may be sent."""
        with self._lock:
            if self.why_ended is None:
                try:
                    send(self._pipe, kind, number, content)
                except OSError:
                    _disconnect(self._socket)

    def _cancel(self, number: int, future: "Future[bytes]") -> None:
        if future.cancelled() and self._open.pop(number, None) is not None:
            self._send(Kind.CANCEL, number)

    def _receive_all(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                if self._frame_s:
                    self._pipe.poll(None)  # waits for ever; the socket's limit is for the rest of the frame
                self._receive(*receive(self._pipe))
        _disconnect(self._socket)
        why = self._why_lost or f"its process {self.how_ended()}"
        with self._lock:
            self.why_ended = why
            self._pipe.close()
            lost, self._open = self._open, {}
        if not self.ready.done():
            self.ready.set_exception(WorkerLostError(why))
        for future, _ in lost.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(WorkerLostError(why))

    def _receive(self, kind: Kind, number: int, content: bytes) -> None:
        if kind is Kind.READY:
            self.capacity = number
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind is Kind.REFUSED:
            self._why_lost = content.decode()
            self.ready.set_exception(UserError(self._why_lost))
        elif kind is Kind.PROGRESS:
            _, on_progress = self._open.get(number, (None, None))
            if on_progress is not None:
                on_progress(json.loads(content))
        else:
            future, _ = self._open.pop(number, (None, None))
            if future is None or not future.set_running_or_notify_cancel():
                return  # it was cancelled
            if kind is Kind.DONE:
                future.set_result(content)
            else:
                future.set_exception(WorkerLostError(content.decode()))


def _started(module: str, descriptors: tuple[int, ...], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """The process. descriptors: of its socket, then of other files."""
    return subprocess.Popen(  # noqa: S603  (our own program)
        # With -P and this path it imports the modules that this process would.
        [sys.executable, "-P", "-m", module, str(descriptors[0])],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        process_group=0,  # an interrupt from the keyboard is for this process, which ends the other one
    )


def _disconnect(side: socket.socket) -> None:
    with suppress(OSError):  # it is closed
        side.shutdown(socket.SHUT_RDWR)


def _end(process: "subprocess.Popen[bytes]", side: socket.socket, end_s: float) -> None:
    if end_s:
        _disconnect(side)
        with suppress(subprocess.TimeoutExpired):
            process.wait(end_s)
    process.kill()
    process.wait()
    side.close()
