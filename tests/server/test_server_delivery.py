"""When a heartbeat proves that a task was lost. Source: PROTOCOL.md 4.2."""

from unstale.coordinator.events import TaskExpired, TaskLost
from unstale.server.delivery import LOST_MAX, DeliveryTracker
from unstale_proto.messages import Heartbeat, Hello


def beat(newest_task: int | None, heard: int | None) -> Heartbeat:
    return Heartbeat(number=9, version=0, newest_task=newest_task, heard=heard)


def proof_of(task_id: int = 7, *answered: int) -> DeliveryTracker:
    """Client 2 was sent this task, and then these of its heartbeats were answered."""
    delivery = DeliveryTracker()
    delivery.sent(2, task_id)
    for number in answered:
        delivery.on_heartbeat_answered(2, number)
    return delivery


def test_the_answer_to_the_first_heartbeat_answered_since_is_heard_and_the_task_is_not() -> None:
    assert proof_of(7, 3).lost(2, beat(newest_task=2, heard=3)) == 7


def test_a_later_answer_proves_it_too_and_an_earlier_one_does_not() -> None:
    assert proof_of(7, 3, 4, 5).lost(2, beat(newest_task=0, heard=5)) == 7
    assert proof_of(7, 3, 4, 5).lost(2, beat(newest_task=0, heard=2)) is None


def test_a_heartbeat_that_was_overtaken_or_comes_twice_proves_nothing() -> None:
    for late in (3, 5):
        delivery = DeliveryTracker()
        delivery.on_heartbeat_answered(2, 5)
        delivery.sent(2, 7)
        delivery.on_heartbeat_answered(2, late)
        assert delivery.lost(2, beat(newest_task=2, heard=5)) is None
        delivery.on_heartbeat_answered(2, 6)
        assert delivery.lost(2, beat(newest_task=2, heard=6)) == 7


def test_a_task_that_came_or_that_a_newer_one_superseded_is_not_lost() -> None:
    assert proof_of(7, 3).lost(2, beat(newest_task=7, heard=3)) is None
    assert proof_of(7, 3).lost(2, beat(newest_task=12, heard=3)) is None


def test_before_a_heartbeat_is_answered_nothing_is_proved() -> None:
    assert proof_of(7).lost(2, beat(newest_task=0, heard=8)) is None


def test_a_heartbeat_that_does_not_say_proves_nothing() -> None:
    assert proof_of(7, 3).lost(2, beat(newest_task=None, heard=3)) is None
    assert proof_of(7, 3).lost(2, beat(newest_task=0, heard=None)) is None


def test_a_loss_is_reported_once() -> None:
    delivery = proof_of(7, 3)
    assert delivery.lost(2, beat(newest_task=0, heard=3)) == 7
    assert delivery.lost(2, beat(newest_task=0, heard=4)) is None


def test_of_several_tasks_the_last_one_counts_from_when_it_was_sent() -> None:
    delivery = proof_of(7, 3)
    delivery.sent(2, 12)
    assert delivery.lost(2, beat(newest_task=7, heard=4)) is None
    delivery.on_heartbeat_answered(2, 5)
    assert delivery.lost(2, beat(newest_task=7, heard=4)) is None
    assert delivery.lost(2, beat(newest_task=7, heard=5)) == 12


def test_each_client_has_its_own_tasks() -> None:
    delivery = proof_of(7, 3)
    assert delivery.lost(1, beat(newest_task=0, heard=3)) is None


def test_notes_from_before_a_hello_are_void() -> None:
    delivery = proof_of(7, 3)
    delivery.forget(2)
    delivery.forget(2)  # twice is once
    assert delivery.lost(2, beat(newest_task=0, heard=3)) is None


def always(_client_id: int, _task_id: int) -> bool:
    return True


def test_a_client_that_loses_task_after_task_gets_no_more_until_an_update_counts() -> None:
    delivery = DeliveryTracker()
    kinds = [type(delivery.event_of_loss(2, number, 0.0)) for number in range(LOST_MAX + 2)]
    assert kinds == [TaskLost] * LOST_MAX + [TaskExpired] * 2
    delivery.accepted(2)
    assert isinstance(delivery.event_of_loss(2, 99, 0.0), TaskLost)
    assert isinstance(delivery.event_of_loss(1, 99, 0.0), TaskLost)


def test_a_hello_that_does_not_hold_the_task_claims_that_it_was_lost() -> None:
    delivery = DeliveryTracker()
    hello = Hello(client_id=2, session="a" * 32)
    for task_id in range(1, LOST_MAX + 1):
        delivery.sent(2, task_id)
        assert delivery.expired_by_hello(hello, always, 0.0) is None
    delivery.sent(2, 99)
    assert delivery.expired_by_hello(hello.model_copy(update={"holding": (99,)}), always, 0.0) is None
    assert delivery.expired_by_hello(hello, lambda *_: False, 0.0) is None
    assert delivery.expired_by_hello(hello, always, 1.0) == TaskExpired(client_id=2, task_id=99, at_s=1.0)
