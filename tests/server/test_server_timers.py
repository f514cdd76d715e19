"""Order of timers and deadlines, moved and cancelled timers, and messages that lie unread."""

from math import inf
from typing import Any

import pytest

from unstale.coordinator.events import TaskExpired, TimerFired
from unstale.coordinator.machine import DEADLINE, LEASE
from unstale.server.timers import Timers


class Tasks:
    """A coordinator that waits for these tasks."""

    def __init__(self) -> None:
        self.open = {(0, 1), (1, 2)}

    def awaits(self, client_id: int, task_id: int) -> bool:
        return (client_id, task_id) in self.open


@pytest.fixture
def tasks() -> Any:
    return Tasks()


@pytest.fixture
def timers(tasks: Any) -> Timers:
    return Timers(tasks, task_timeout_s=5.0)


def due(timers: Timers, at_s: float, *, moving: bool = False, extra_s: float = 0.0) -> list[str | int]:
    """Names of timers, and ids of tasks."""
    events = timers.due_events(at_s, lambda *_: moving, extra_s=extra_s)
    return [event.timer if isinstance(event, TimerFired) else event.task_id for event in events]


def test_equal_times_keep_the_order_in_which_they_were_set(timers: Timers) -> None:
    timers.on_task(1, 2, 0.0)
    timers.set(DEADLINE, 5.0)
    timers.on_task(0, 1, 0.0)
    timers.set(LEASE, 4.0)
    assert timers.due_s == 4.0
    assert due(timers, 3.9) == []
    assert due(timers, 5.0) == [LEASE, 2, DEADLINE, 1]
    assert timers.due_s == inf


def test_a_timer_that_was_moved_or_cancelled_does_not_fire(timers: Timers) -> None:
    timers.set(LEASE, 1.0)
    timers.set(LEASE, 3.0)
    timers.set(DEADLINE, 2.0)
    timers.cancel(DEADLINE)
    assert timers.due_s == 3.0
    assert due(timers, 2.5) == []
    assert due(timers, 3.0) == [LEASE]


def test_an_event_is_handled_before_the_next_one_is_taken(timers: Timers, tasks: Any) -> None:
    timers.on_task(0, 1, 0.0)
    timers.on_task(1, 2, 0.0)
    taken = []
    for event in timers.due_events(5.0, lambda *_: False):
        assert isinstance(event, TaskExpired)
        taken.append(event.task_id)
        tasks.open.clear()
    assert taken == [1]


def test_a_transfer_that_moves_gets_a_little_more_time(timers: Timers) -> None:
    timers.on_task(0, 1, 0.0)
    assert due(timers, 5.0, moving=True) == []
    assert timers.due_s == 6.0
    assert due(timers, 6.0) == [1]


def test_leases_and_deadlines_wait_for_messages_that_lie_unread(timers: Timers) -> None:
    timers.on_task(0, 1, 0.0)
    timers.set(LEASE, 5.0)
    timers.set(DEADLINE, 5.0)
    assert due(timers, 6.0, extra_s=2.0) == [DEADLINE]
    assert timers.due_s == 5.0
    assert due(timers, 7.0, extra_s=2.0) == [1, LEASE]


def test_ten_thousand_tasks_of_a_client_leave_one_deadline(timers: Timers, tasks: Any) -> None:
    for number in range(10_000):
        timers.on_task(0, number, at_s=number * 1e-4)
        timers.on_task(1, number, at_s=number * 1e-4)
    assert len(timers._heap) == 2
    tasks.open = {(0, 9_999), (1, 9_999)}
    assert due(timers, 5.99) == []
    assert timers.due_s == 5.0 + 0.9999
    assert due(timers, 6.0) == [9_999, 9_999]
    assert timers.due_s == inf


def test_deadlines_of_newer_tasks_keep_the_order_of_all_timers(timers: Timers, tasks: Any) -> None:
    tasks.open = {(0, 3), (1, 4)}
    timers.on_task(0, 1, 0.0)
    timers.on_task(1, 4, 1.0)
    timers.set(LEASE, 6.0)
    timers.on_task(0, 3, 1.0)
    assert due(timers, 6.0) == [4, LEASE, 3]
