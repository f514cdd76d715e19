"""The time limit of a task. Python cannot end a function, so a task that exceeds it twice ends the process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unstale.errors import HangingError
from unstale_client.jobs import Crashed, Failed, Job, Result


class TimeLimit:
    """Gives a task back after `limit_s`, and posts a `HangingError` if the task still runs after `limit_s` more.

    Attributes:
        is_exceeded: Whether the last task exceeded its limit, so that it is given back already.
        error: That the process ends with; None while there is none.
    """

    def __init__(self, limit_s: float | None, post: Callable[[Result], None], give_up: Callable[[], None]) -> None:
        """limit_s: None for no limit. post, give_up: called in another thread, not after the end of the task.

        give_up: called once there is an `error`, before it is posted.
        """
        self._limit_s, self._post, self._give_up = limit_s, post, give_up
        self._lock = threading.Lock()  # held to post; of the running task
        self._running: Job | None = None
        self.is_exceeded = False
        self.error: HangingError | None = None

    @contextmanager
    def of(self, job: Job) -> Iterator[None]:
        """Limits the time of a task to that of the block."""
        if self._limit_s is None:
            yield
            return
        self._running, self.is_exceeded = job, False
        first = threading.Timer(self._limit_s, self._exceeded, (job,))
        second = threading.Timer(2 * self._limit_s, self._exceeded_twice, (job,))
        for timer in (first, second):
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            with self._lock:
                self._running = None
            first.cancel()
            second.cancel()

    def _exceeded(self, job: Job) -> None:
        with self._lock:
            if self._running is job:
                self.is_exceeded = True
                message = f"the task exceeds client.task_timeout_s, {self._limit_s:g} s"
                self._post(Failed(job=job, message=message, is_code_error=True))

    def _exceeded_twice(self, job: Job) -> None:
        with self._lock:
            if self._running is job:
                self.error = HangingError(
                    f"client {job.client_id}: its task {job.task.number} still runs after twice client.task_timeout_s, "
                    f"{self._limit_s:g} s, and cannot be ended; the process ends, start it again"
                )
                self._give_up()
                self._post(Crashed(error=self.error))
