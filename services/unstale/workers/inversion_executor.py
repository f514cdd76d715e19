"""Submits inversions of stale updates from the process of a run to a Ray cluster."""

from concurrent.futures import Future

from unstale.compensators.compensator import Executor
from unstale.config.settings import Settings
from unstale.errors import UserError, WorkerLostError
from unstale.training.datasets import Dataset
from unstale.workers import pool
from unstale.workers.inversion_tasks import described as described_run
from unstale.workers.pool import RayStart
from unstale.workers.program import described as described_program

ATTEMPTS = 2  # another worker or machine may succeed
TASK_S = 3600.0  # a CPU may take an hour for a group of the preset `paper`
STOPPED = "the run was stopped"


def connect(settings: Settings, dataset: Dataset) -> "InversionExecutor":
    """Connect to the cluster of `compensator.ray`. Raises UserError if it cannot be used."""
    address = settings.compensator.ray
    assert address is not None
    return InversionExecutor(
        RayStart(
            address=address,
            key="compensator.ray",
            program=described_program("unstale.workers.inversion_tasks:prepare", described_run(settings, dataset)),
            cpus=settings.threads,
            gpus=settings.compensator.ray_gpus,
            advice="lower threads or compensator.ray_gpus",
            attempts=ATTEMPTS,
            task_s=TASK_S,
            reuses_gpus=True,
        )
    )


class InversionExecutor(Executor):
    """Computes each group of inversions as a Ray task.

    The loss of the cluster fails all submitted groups. The next group starts a new connection without waiting for it.
    Until the connection is ready, groups fail at once.
    """

    def __init__(self, start: RayStart) -> None:
        """Raises UserError when the cluster cannot be used."""
        self._start = start
        self._last_loss = ""  # reason for failed groups while a new connection starts
        self._has_stopped = False
        try:
            self._pool = pool.on_ray(start)
        except OSError as error:
            raise UserError(self._not_started(error)) from None
        try:
            self._pool.ready.result()
        except WorkerLostError:
            raise UserError(
                f"compensator.ray is {start.address!r}, but the process that connects to it ended; see its output"
            ) from None

    def submit(self, group: bytes) -> "Future[bytes]":
        if self._pool.why_ended is not None and not self._has_stopped:
            return _failed(self._reconnect(self._pool.why_ended))
        if self._pool.ready.done() or self._has_stopped:
            return self._pool.submit(group)
        return _failed(self._last_loss)

    def stop(self) -> None:
        self._has_stopped = True
        self._pool.stop(STOPPED)

    def close(self) -> None:
        """Close the connection, and end the cluster if this connection started it."""
        self._pool.close()

    def _reconnect(self, loss: str) -> str:
        """Start a new connection. Returns the reason for failed groups: the loss, or the failed start."""
        self._pool.kill()
        try:
            self._pool = pool.on_ray(self._start)
        except OSError as error:  # the next group tries again
            return self._not_started(error)
        if self._has_stopped:  # in the meantime, by another thread: `stop` may have seen the old pool only
            self._pool.stop(STOPPED)
        self._last_loss = loss
        return loss

    def _not_started(self, error: OSError) -> str:
        return (
            f"compensator.ray is {self._start.address!r}, but the process that connects to it does not start "
            f"({error.strerror}), expected one more process to be possible; end others, or raise the limit"
        )


def _failed(why: str) -> "Future[bytes]":
    future: Future[bytes] = Future()
    future.set_exception(WorkerLostError(why))
    return future
