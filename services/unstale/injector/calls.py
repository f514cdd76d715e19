"""What other threads want of the proxy's: letters to it, and answers to those who wait for one."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from unstale.net.wakeable_queue import WakeableQueue

ANSWER_S = 5.0  # a thread that does not answer for so long is stuck


@dataclass(frozen=True, slots=True)
class StopNow:
    """The operator wants the injector to end."""


@dataclass(slots=True, eq=False)
class Call:
    """Something to be done in the proxy's thread, for another one that waits for it.

    error: what came of it instead of a result. abandoned: nobody waits any more, and it is not to be done.
    """

    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None
    abandoned: bool = False

    def run(self) -> None:
        """Do it. What goes wrong is told to the one who waits, and ends nothing here."""
        if self.abandoned:
            return
        try:
            self.result = self.work()
        except Exception as error:  # noqa: BLE001  (raised by `run_in_proxy_thread` in the other thread)
            self.error = error
        self.done.set()


QueueItem = StopNow | Call | BaseException


def run_in_proxy_thread(queue: WakeableQueue[QueueItem], work: Callable[[], Any]) -> Any:
    """Have something done in the proxy's thread; what it made. Any other thread.

    Raises what came of it, and TimeoutError when there is no answer: then it will not be done later, either.
    """
    call = Call(work)
    queue.post(call)
    if not call.done.wait(ANSWER_S):
        call.abandoned = True
        raise TimeoutError("the injector does not answer")
    if call.error is not None:
        raise call.error
    return call.result
