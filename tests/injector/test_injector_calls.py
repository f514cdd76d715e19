"""Calls to the proxy's thread: answers, errors, and abandoned calls."""

import threading

import pytest

from unstale.injector import calls
from unstale.injector.calls import Call, CallQueue, run_in_thread


@pytest.fixture
def queue() -> CallQueue:
    return CallQueue()


def test_an_error_of_a_call_is_raised_in_the_caller(queue: CallQueue) -> None:
    def work() -> float:
        return 10.0**400

    def serve() -> None:
        while not (letters := queue.drain()):
            pass
        for item in letters:
            assert isinstance(item, Call)
            item()

    served = threading.Thread(target=serve)
    served.start()
    with pytest.raises(OverflowError):
        run_in_thread(queue, work)
    served.join()
    queue.close()


def test_an_abandoned_call_is_not_executed(queue: CallQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ANSWER_S", 0.01)
    done: list[bool] = []
    with pytest.raises(TimeoutError, match="the injector does not answer"):
        run_in_thread(queue, lambda: done.append(True))
    (call,) = queue.drain()
    assert isinstance(call, Call)
    call()
    assert done == []
    queue.close()
