"""What is asked of the proxy's thread: answers, mistakes, and what nobody waits for any more."""

import threading

import pytest

from unstale.injector import calls
from unstale.injector.calls import Call, QueueItem, run_in_proxy_thread
from unstale.net.wakeable_queue import WakeableQueue


@pytest.fixture
def queue() -> WakeableQueue[QueueItem]:
    return WakeableQueue()


def test_what_goes_wrong_is_raised_where_it_was_asked(queue: WakeableQueue[QueueItem]) -> None:
    def work() -> float:
        return 10.0**400

    def serve() -> None:
        while not (letters := queue.drain()):
            pass
        for item in letters:
            assert isinstance(item, Call)
            item.run()

    served = threading.Thread(target=serve)
    served.start()
    with pytest.raises(OverflowError):
        run_in_proxy_thread(queue, work)
    served.join()
    queue.close()


def test_what_nobody_waits_for_any_more_is_not_done(
    queue: WakeableQueue[QueueItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ANSWER_S", 0.01)
    done: list[bool] = []
    with pytest.raises(TimeoutError, match="the injector does not answer"):
        run_in_proxy_thread(queue, lambda: done.append(True))
    (call,) = queue.drain()
    assert isinstance(call, Call)
    call.run()
    assert done == []
    queue.close()
