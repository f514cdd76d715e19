"""A connection to a Ray cluster that starts again after the cluster was lost."""

from concurrent.futures import Future
from dataclasses import replace

from unstale.errors import UserError, WorkerLostError
from unstale.workers import pool
from unstale.workers.pool import RayStart

STOPPED = "the run was stopped"
PAUSE_S = 10.0  # before a new connection, which takes a core for seconds


class RayExecutor:
    """Computes tasks on a Ray cluster.

    The loss of the cluster fails all submitted tasks. A later task starts a new connection without waiting for it.
    Until the connection is ready, tasks fail at once.
    """

    def __init__(self, start: RayStart) -> None:
        """Raises UserError when the cluster cannot be used."""
        self._start = start
        self._last_loss = ""  # reason for failed tasks while a new connection starts
        self._has_stopped = False
        try:
            self._pool = pool.on_ray(start)
        except OSError as error:
            raise UserError(self._not_started(error)) from None
        try:
            self._pool.ready.result()
        except WorkerLostError:
            raise UserError(
                f"{start.key} is {start.address!r}, but the process that connects to it ended; see its output"
            ) from None

    @property
    def capacity(self) -> int:
        """Tasks that are computed at a time; 0 while a new connection starts."""
        return self._pool.capacity

    def submit(self, content: bytes) -> "Future[bytes]":
        """The future of a task, which fails with WorkerLostError if it has no result."""
        if self._pool.why_ended is not None and not self._has_stopped:
            return _failed(self._reconnect(self._pool.why_ended))
        if self._pool.ready.done() or self._has_stopped:
            return self._pool.submit(content)
        return _failed(self._last_loss)

    def stop(self) -> None:
        """Lose all tasks, now and later. Any thread."""
        self._has_stopped = True
        self._pool.stop(STOPPED)

    def close(self) -> None:
        """Close the connection, and end the cluster if this connection started it."""
        self._pool.close()

    def _reconnect(self, loss: str) -> str:
        """Start a new connection. Returns the reason for failed tasks: the loss, or the failed start."""
        self._pool.kill()
        try:
            self._pool = pool.on_ray(replace(self._start, pause_s=PAUSE_S))
        except OSError as error:  # the next task tries again
            return self._not_started(error)
        if self._has_stopped:  # in the meantime, by another thread: `stop` may have seen the old pool only
            self._pool.stop(STOPPED)
        self._last_loss = loss
        return loss

    def _not_started(self, error: OSError) -> str:
        return (
            f"{self._start.key} is {self._start.address!r}, but the process that connects to it does not start "
            f"({error.strerror}), expected one more process to be possible; end others, or raise the limit"
        )


def _failed(why: str) -> "Future[bytes]":
    future: Future[bytes] = Future()
    future.set_exception(WorkerLostError(why))
    return future
