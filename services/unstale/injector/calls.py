"""Calls into a thread that waits on a queue of functions."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from unstale_client.net.wakeable_queue import WakeableQueue

ANSWER_S = 5.0  # a thread that does not answer in this time hangs

CallQueue = WakeableQueue[Callable[[], object]]


@dataclass(slots=True, eq=False)
class Call:
    """A function for another thread, and its result."""

    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)

    def __call__(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.work())
        except BaseException as error:  # noqa: BLE001  (raised in the thread that waits for the result)
            self.future.set_exception(error)


def run_in_thread(queue: CallQueue, work: Callable[[], Any], name: str = "the injector") -> Any:
    """Run a function in the thread of the queue. For any other thread.

    Raises TimeoutError if the thread does not answer: then the function does not run later, either.
    """
    call = Call(work)
    queue.post(call)
    try:
        return call.future.result(ANSWER_S)
    except (TimeoutError, CancelledError):
        call.future.cancel()
        raise TimeoutError(f"{name} does not answer") from None


def serve(queue: CallQueue) -> None:
    """Run all waiting functions. The thread of the queue."""
    for function in queue.drain():
        function()


def cancel_all(queue: CallQueue) -> None:
    """Cancel the waiting calls. The thread of the queue, at its end."""
    for function in queue.drain():
        if isinstance(function, Call):
            function.future.cancel()
