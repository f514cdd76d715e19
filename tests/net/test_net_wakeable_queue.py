"""Posts from any thread, one reader that waits on a file descriptor."""

import threading
from collections.abc import Iterator

import pytest
import zmq

from unstale_client.net.wakeable_queue import WakeableQueue

PATIENCE_MS = 20_000


@pytest.fixture
def queue() -> Iterator[WakeableQueue[object]]:
    made: WakeableQueue[object] = WakeableQueue()
    yield made
    made.close()


def is_readable(queue: WakeableQueue[object], timeout_ms: int = 0) -> bool:
    poller = zmq.Poller()
    poller.register(queue.fileno(), zmq.POLLIN)
    return bool(poller.poll(timeout_ms))


def test_an_empty_mailbox_is_silent(queue: WakeableQueue[object]) -> None:
    assert not is_readable(queue)
    assert queue.drain() == []


def test_posts_come_out_once_and_in_order(queue: WakeableQueue[object]) -> None:
    for item in ("first", "second", "first"):
        queue.post(item)
    assert is_readable(queue)
    assert queue.drain() == ["first", "second", "first"]
    assert not is_readable(queue)
    assert queue.drain() == []


def test_a_post_wakes_a_thread_that_polls(queue: WakeableQueue[object]) -> None:
    woken: list[list[object]] = []

    def wait() -> None:
        assert is_readable(queue, PATIENCE_MS)
        woken.append(queue.drain())

    reader = threading.Thread(target=wait)
    reader.start()
    queue.post("hello")
    reader.join()
    assert woken == [["hello"]]


def test_posts_of_many_threads_all_arrive_each_threads_in_its_order(queue: WakeableQueue[object]) -> None:
    posters, items = 8, 500

    def post(poster: int) -> None:
        for number in range(items):
            queue.post((poster, number))

    threads = [threading.Thread(target=post, args=(poster,)) for poster in range(posters)]
    for thread in threads:
        thread.start()
    seen: list[list[int]] = [[] for _ in range(posters)]
    while sum(map(len, seen)) < posters * items:
        assert is_readable(queue, PATIENCE_MS), "an item lies there without a wake-up"
        for poster, number in queue.drain():  # type: ignore[misc]
            seen[poster].append(number)
    for thread in threads:
        thread.join()
    assert seen == [list(range(items))] * posters


def test_more_posts_than_the_pipe_holds_wake_ups_for_lose_nothing(queue: WakeableQueue[object]) -> None:
    # A socket buffer is a few hundred kilobytes, and each wake-up takes a good part of one.
    items = 50_000
    for number in range(items):
        queue.post(number)
    assert is_readable(queue)
    assert queue.drain() == list(range(items))
    assert not is_readable(queue)
    queue.post("again")
    assert is_readable(queue)


def test_a_post_to_a_closed_mailbox_is_dropped() -> None:
    # A second Ctrl-C, or a health check under way, may come just after the end.
    queue: WakeableQueue[str] = WakeableQueue()
    queue.close()
    queue.post("too late")
