"""Inverts stale updates on a Ray cluster, from the side of the run."""

from concurrent.futures import Future

from unstale.compensators.compensator import Executor
from unstale.config.settings import Settings
from unstale.errors import UserError, WorkerLostError
from unstale.training.datasets import Dataset
from unstale.workers import pool
from unstale.workers.inversion_tasks import described
from unstale.workers.pool import RayStart
from unstale.workers.program import described as described_program

ATTEMPTS = 2  # a worker or a machine that fails is not the only one
TASK_S = 3600.0  # a group of the preset `paper` may take that long on a CPU


def connect(settings: Settings, dataset: Dataset) -> "InversionExecutor":
    """Connect to the cluster of `compensator.ray`. Raises UserError if it cannot be used."""
    address = settings.compensator.ray
    assert address is not None
    return InversionExecutor(
        RayStart(
            address=address,
            key="compensator.ray",
            program=described_program("unstale.workers.inversion_tasks:prepare", described(settings, dataset)),
            cpus=settings.threads,
            gpus=settings.compensator.ray_gpus,
            advice="lower threads or compensator.ray_gpus",
            attempts=ATTEMPTS,
            task_s=TASK_S,
            reuses_gpus=True,
        )
    )


class InversionExecutor(Executor):
    """Groups of inversions, each a Ray task.

    When the cluster is lost, so is every group that is there. The next group starts a new connection and does not wait
    for it: until that is ready, groups are lost at once.
    """

    def __init__(self, start: RayStart) -> None:
        """Raises UserError when the cluster cannot be used."""
        self._start = start
        self._why_lost = ""
        self._has_stopped = False
        try:
            self._pool = pool.on_ray(start)
        except OSError as error:
            raise UserError(self._not_started(error)) from None
        try:
            self._pool.ready.result()
        except WorkerLostError:
            raise UserError(
                f"compensator.ray is {start.address!r}, but what connects to it ended; see what it printed"
            ) from None

    def submit(self, group: bytes) -> "Future[bytes]":
        if self._pool.why_ended is not None and not self._has_stopped:
            return _lost(self._connect_again(self._pool.why_ended))
        if self._pool.ready.done() or self._has_stopped:
            return self._pool.submit(group)
        return _lost(self._why_lost)

    def stop(self) -> None:
        self._has_stopped = True
        self._pool.stop("the run was stopped")

    def close(self) -> None:
        """End the connection, and a cluster that was started for it."""
        self._pool.close()

    def _connect_again(self, why_lost: str) -> str:
        """Start a new connection; why groups are lost until it is ready."""
        self._pool.kill()
        try:
            self._pool = pool.on_ray(self._start)
        except OSError as error:  # the next group tries again
            return self._not_started(error)
        self._why_lost = why_lost
        return why_lost

    def _not_started(self, error: OSError) -> str:
        return (
            f"compensator.ray is {self._start.address!r}, but the process that connects to it does not start "
            f"({error.strerror}), expected room for one more; end others, or raise the limit"
        )


def _lost(why: str) -> "Future[bytes]":
    future: Future[bytes] = Future()
    future.set_exception(WorkerLostError(why))
    return future
