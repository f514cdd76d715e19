"""The worker pool: another process computes tasks, either itself or on the Ray cluster that it connects to."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection

from unstale.errors import UserError, WorkerLostError
from unstale.workers import program
from unstale.workers.channel import Kind, Pipe, receive, send
from unstale.workers.program import Progress

LOCAL = "unstale.workers.local_worker"


def local(
    factory: str,
    settings: object,
    *,
    environment: Mapping[str, str] | None = None,
    descriptors: tuple[int, ...] = (),
) -> "Pool":
    """A process of this machine that computes one task at a time.

    Args:
        factory: `package.module:function`, see `unstale.workers.program`.
        settings: The factory's argument, as JSON has it.
        environment: Variables that differ from those of this process.
        descriptors: Files that the process inherits.

    Raises:
        OSError: The process does not start.
    """
    start = program.described(factory, settings)
    return Pool(LOCAL, start, environment=environment, descriptors=descriptors)


class Pool:
    """One worker process and its tasks. Usable from any thread.

    The process ends with this one, however this one ends. Nothing that a task sends is unpickled.
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
        """Start the process.

        Args:
            module: The program of the process.
            start: Content of its first frame.
            why_lost: Why tasks are lost when the process ends; None for how it ended.
            end_s: Seconds that the process has to end by itself on `close`.
            frame_s: Seconds without progress within a frame after which the process is lost; 0 for no limit.

        Raises:
            OSError: The process does not start.
        """
        self._socket, theirs = socket.socketpair()
        with ExitStack() as stack, theirs:
            stack.enter_context(self._socket)
            for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", frame_s, 0))
            self._process = _started(module, theirs.fileno(), descriptors, environment or {})
            stack.pop_all()
        # The thread and the callbacks of futures hold the tasks and not the pool: an unused pool ends its process.
        process = self._process
        self._tasks = _Tasks(self._socket, lambda: why_lost or f"its process {_how_ended(process)}")
        self.close = weakref.finalize(self, _end, process, self._socket, end_s)
        """End the process, whatever it computes. Repeated calls do nothing."""
        self._tasks.send(Kind.START, 0, start.encode())
        threading.Thread(target=self._tasks.receive_all, name="worker pool", daemon=True).start()

    @property
    def ready(self) -> "Future[None]":
        """Done when the pool takes tasks. Fails with UserError if it refuses, with WorkerLostError if it ended."""
        return self._tasks.ready

    @property
    def capacity(self) -> int:
        """Tasks that are computed at a time; 0 before the pool is ready. Changes with a cluster's machines."""
        return self._tasks.capacity

    @property
    def why_ended(self) -> str | None:
        """Why tasks are lost from now on; None while the process runs."""
        return self._tasks.why_ended

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, content: bytes, on_progress: Progress | None = None) -> "Future[bytes]":
        """Compute a task.

        Args:
            content: Argument of the program's function.
            on_progress: Receives the share that is done, in another thread.

        Returns:
            Its result. Fails with WorkerLostError if the task is lost. `cancel` cancels it at the worker, too.
        """
        return self._tasks.submit(content, on_progress)

    def stop(self, why: str) -> None:
        """Lose all tasks, now and later, for this reason."""
        self._tasks.stop(why)

    def kill(self) -> None:
        """`close` without waiting for the process to end by itself."""
        self._process.kill()
        self.close()

    def exit_code(self) -> int:
        """Of the process; negative for a signal. Waits for its end."""
        return self._process.wait()

    def how_ended(self) -> str:
        """`ended with exit code 1`. Waits for that end."""
        return _how_ended(self._process)


class _Tasks:
    """The tasks of one process, and the socket to it.

    how_ended: Describes the end of the process, and may wait for it.
    """

    def __init__(self, channel: socket.socket, how_ended: Callable[[], str]) -> None:
        self.ready: Future[None] = Future()
        self.capacity = 0
        self.why_ended: str | None = None
        self._channel = channel
        self._pipe: Pipe = Connection(os.dup(channel.fileno()))
        self._how_ended = how_ended
        self._why: str | None = None
        self._lock = threading.Lock()
        self._count = 0
        self._open: dict[int, tuple[Future[bytes], Progress | None]] = {}

    def submit(self, content: bytes, on_progress: Progress | None) -> "Future[bytes]":
        future: Future[bytes] = Future()
        with self._lock:
            self._count += 1
            number, has_ended = self._count, self.why_ended is not None
            if not has_ended:
                self._open[number] = future, on_progress
        if has_ended:
            future.set_exception(WorkerLostError(self.why_ended))
        else:
            future.add_done_callback(lambda future: self._cancel(number) if future.cancelled() else None)
            self.send(Kind.TASK, number, content)
        return future

    def send(self, kind: Kind, number: int, content: bytes = b"") -> None:
        """A failure ends the connection: part of a frame may be sent."""
        with self._lock:
            if self.why_ended is None:
                try:
                    send(self._pipe, kind, number, content)
                except OSError:
                    self._disconnect()

    def stop(self, why: str) -> None:
        self._why = why
        self._disconnect()

    def receive_all(self) -> None:
        """Receive until the process ends."""
        with suppress(EOFError, OSError):
            while True:
                self._pipe.poll(None)  # waits for ever, while the socket's timeout ends a wait within a frame
                self._receive(*receive(self._pipe))
        self._disconnect()
        why = self._why or self._how_ended()
        with self._lock:
            self.why_ended = why
            self._pipe.close()
            lost, self._open = list(self._open.values()), {}
        if not self.ready.done():
            self.ready.set_exception(WorkerLostError(why))
        for future, _ in lost:
            if future.set_running_or_notify_cancel():
                future.set_exception(WorkerLostError(why))

    def _receive(self, kind: Kind, number: int, content: bytes) -> None:
        if kind is Kind.READY:
            self.capacity = number
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind is Kind.REFUSED:
            self._why = content.decode()
            self.ready.set_exception(UserError(self._why))
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

    def _cancel(self, number: int) -> None:
        if self._open.pop(number, None) is not None:
            self.send(Kind.CANCEL, number)

    def _disconnect(self) -> None:
        with suppress(OSError):  # it is closed
            self._channel.shutdown(socket.SHUT_RDWR)


def _started(
    module: str, descriptor: int, descriptors: tuple[int, ...], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603  (our own program)
        # With -P and this path it imports the modules that this process would.
        [sys.executable, "-P", "-m", module, str(descriptor)],
        pass_fds=(descriptor, *descriptors),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        },
        process_group=0,  # an interrupt from the keyboard is for this process, which ends the other one
    )


def _how_ended(process: "subprocess.Popen[bytes]") -> str:
    code = process.wait()
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by signal {-code}" + ", perhaps for want of memory" * (code == -9)


def _end(process: "subprocess.Popen[bytes]", channel: socket.socket, end_s: float) -> None:
    if end_s:
        with suppress(OSError):  # the process has ended
            channel.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            process.wait(end_s)
    process.kill()
    process.wait()
    channel.close()
