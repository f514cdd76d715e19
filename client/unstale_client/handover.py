"""Hands tasks from the loop's thread to the user's thread, and updates back."""

import threading
from collections.abc import Callable, Sequence

from unstale_client.jobs import Failed, Job, Ready, Result, Settlement
from unstale_client.outbox import Outbox
from unstale_client.update_store import UpdateStore
from unstale_proto.encodings import Vector
from unstale_proto.errors import Reason
from unstale_proto.messages import Update


class Handover:
    """The worker of a loop whose tasks a user works on.

    The loop's thread calls `start`, `submit` and `close`; the user's thread calls the other methods. Files are written
    in the user's thread, so that they delay no heartbeat.
    """

    def __init__(self, post: Callable[[Result], None], outbox: Outbox | None) -> None:
        self._post = post
        self._store = UpdateStore(outbox)
        self._storing = threading.Lock()  # the store, and the outbox behind it
        self._changed = threading.Condition()  # of the next three
        self._job: Job | None = None  # the newest task
        self._settlements: list[Settlement] = []
        self._is_closed = False  # changed under both locks

    # --- the loop's thread ---

    def start(self) -> None:
        """Nothing to start: the user's thread works."""

    def submit(self, job: Job | Settlement) -> None:
        with self._changed:
            if isinstance(job, Job):
                self._job = job
            else:
                self._settlements.append(job)
            self._changed.notify()

    def close(self) -> None:
        """End, once the user's thread has stored the update at hand."""
        with self._storing:
            self._settle()
            with self._changed:
                self._is_closed = True
                self._changed.notify()

    # --- the user's thread ---

    def next_job(self) -> Job | None:
        """Wait for the next task; None at the end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job or self._settlements or self._is_closed)
                job, self._job = self._job, None
            with self._storing:
                if self._is_closed:
                    return None
                self._settle()
                if job is not None and job.is_wanted():
                    self._store.begin(job.welcome.run_id)
                    return job

    def send(self, job: Job, update: Update, parts: Sequence[Vector]) -> bool:
        """Store and send an update. Returns False for a task that the server has taken back, and after the end."""
        with self._storing:
            if self._is_closed or not job.is_wanted():
                return False
            self._settle()
            pending = self._store.put(job, update, parts)
        self._post(Ready(job=job, pending=pending))
        return True

    def give_back(self, job: Job, message: str, reason: Reason, *, is_code_error: bool = False) -> None:
        """Give a task back: `unavailable` where the client skips it, else why it cannot be done."""
        self._post(Failed(job=job, message=message, reason=reason, is_code_error=is_code_error))

    def _settle(self) -> None:
        """Apply the verdicts that have come. The store is locked."""
        with self._changed:
            settlements, self._settlements = self._settlements, []
        for settlement in settlements:
            self._store.settle(settlement)
