"""The client side of the wire contract after the death of its process, and with a server in trouble."""

import pytest

from support.wire import RUN, update, welcome
from unstale_client.actions import PendingUpdate, Retire, Send, Settle, Train, Warn
from unstale_client.session import GREETING_S, ClientSession, State
from unstale_proto import limits
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Error, Heartbeat, Hello, Task

TOKEN = "ab" * 16
OTHER_RUN = "2" * 32
MODEL = [memoryview(b"model...")]


def made(task_id: int, run_id: str = RUN) -> PendingUpdate:
    return PendingUpdate(
        run_id=run_id, number=task_id + 100, update=update(task_id), parcel=[memoryview(b"%08d" % task_id)]
    )


def sent(*updates: PendingUpdate) -> list[Send]:
    return [Send(message=one.update, parcel=one.parcel) for one in updates]


def task(task_id: int) -> Task:
    return Task(task_id=task_id, number=0, version=0, learning_rate=0.1, signature="0" * 64, payload_bytes=8)


def accepted(task_id: int) -> Ack:
    return Ack(task_id=task_id, outcome="duplicate", first_outcome="accepted")


def after_a_kill(*kept: PendingUpdate) -> ClientSession:
    """A session with stored updates after its hello."""
    session = ClientSession(7, TOKEN, kept)
    holding = tuple(one.update.task_id for one in kept)
    assert session.reachable(0.0) == [Send(message=Hello(client_id=7, session=TOKEN, holding=holding))]
    return session


def session_that_is_in() -> ClientSession:
    session = after_a_kill()
    session.received(welcome(), [], 0.0)
    return session


# ------------------------------------------------------------------------------------------------- after its own death


def test_stored_updates_are_named_in_the_hello_and_sent_after_the_welcome() -> None:
    session = after_a_kill(made(3), made(5))
    assert session.unacknowledged == 2
    assert session.received(welcome(), [], 0.1) == sent(made(3), made(5))


def test_a_stored_update_is_settled_by_the_verdict_from_before_the_kill() -> None:
    session = after_a_kill(made(3))
    session.received(welcome(), [], 0.1)
    assert session.received(accepted(3), [], 0.2) == [Settle(run_id=RUN, number=103, accepted=True)]
    assert session.unacknowledged == 0


def test_a_stored_update_is_settled_by_a_task_that_names_it() -> None:
    session = after_a_kill(made(3))
    session.received(welcome(), [], 0.1)
    actions = session.received(task(5).model_copy(update={"accepted_task": 3}), MODEL, 0.2)
    assert actions[0] == Settle(run_id=RUN, number=103, accepted=True)
    assert session.unacknowledged == 0


def test_a_stored_update_is_resent_when_a_heartbeat_proves_its_loss() -> None:
    session = after_a_kill(made(3))
    session.received(welcome(), [], 0.0)
    assert session.tick(2.0) == [Send(message=Heartbeat(number=0, version=0, newest_task=3))]
    assert session.received(Heartbeat(number=0, version=0), [], 2.1) == sent(made(3))


def test_the_newest_task_is_that_of_the_newest_stored_update() -> None:
    session = after_a_kill(made(3), made(5))
    session.received(welcome(), [], 0.0)
    assert session.received(task(5), MODEL, 1.0) == []
    assert session.received(task(6), MODEL, 1.1) == [Train(welcome=welcome(), task=task(6), parcel=MODEL)]


def test_in_another_run_stored_updates_are_dropped_unsent() -> None:
    session = after_a_kill(made(3, OTHER_RUN), made(4), made(5, OTHER_RUN))
    assert session.received(welcome(), [], 0.1) == [
        Settle(run_id=OTHER_RUN, number=103, accepted=False),
        Settle(run_id=OTHER_RUN, number=105, accepted=False),
        *sent(made(4)),
    ]
    assert session.unacknowledged == 1
    assert session.tick(2.1) == [Send(message=Heartbeat(number=0, version=0, newest_task=4))]


def test_without_stored_updates_any_task_is_new() -> None:
    session = after_a_kill(made(9, OTHER_RUN))
    session.received(welcome(), [], 0.1)
    assert session.tick(2.1) == [Send(message=Heartbeat(number=0, version=0, newest_task=0))]
    assert len(session.received(task(1), MODEL, 3.0)) == 1


def test_a_verdict_before_the_welcome_is_of_an_unknown_run() -> None:
    session = after_a_kill(made(3))
    assert session.received(accepted(3), [], 0.1) == []
    assert session.unacknowledged == 1


def test_the_oldest_update_is_dropped_above_the_bound_of_stored_updates() -> None:
    kept = [made(task_id) for task_id in range(1, limits.HOLDING_MAX)]
    session = after_a_kill(*kept)
    session.received(welcome(), [], 0.0)
    session.received(task(64), MODEL, 1.0)
    newest = made(64)
    assert session.trained(RUN, newest.update, newest.parcel) == [
        Settle(run_id=RUN, number=101, accepted=False),
        *sent(newest),
    ]
    assert session.unacknowledged == limits.HOLDING_MAX - 1


# ------------------------------------------------------------------------------------------ a server that is in trouble


def error(reason: Reason, task_id: int | None = None) -> Error:
    return Error(reason=reason, message="why", task_id=task_id)


def test_an_update_that_could_not_be_stored_is_resent_on_the_usual_proof() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    one = made(1)
    session.trained(RUN, one.update, one.parcel)
    (warning,) = session.received(error(Reason.NOT_STORED, task_id=1), [], 1.5)
    assert isinstance(warning, Warn) and warning.message.endswith("(why)")
    assert session.unacknowledged == 1
    session.tick(2.0)
    assert session.received(Heartbeat(number=0, version=0), [], 2.1) == sent(one)
    assert session.received(error(Reason.NOT_STORED, task_id=1), [], 2.2) == []  # one warning is enough
    session.tick(4.0)
    assert session.received(Heartbeat(number=1, version=0), [], 4.1) == sent(one)
    first = Ack(task_id=1, outcome="accepted", first_outcome="accepted")
    assert session.received(first, [], 4.2) == [Settle(run_id=RUN, number=0, accepted=True)]


def test_a_disk_that_is_full_a_second_time_gets_a_second_warning() -> None:
    session = after_a_kill(made(3), made(4))
    session.received(welcome(), [], 0.1)
    assert len(session.received(error(Reason.NOT_STORED, task_id=3), [], 0.2)) == 1
    session.received(accepted(4), [], 0.3)
    assert [type(one) for one in session.received(error(Reason.NOT_STORED, task_id=3), [], 0.4)] == [Warn]


def test_a_rate_limit_error_changes_nothing() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    (warning,) = session.received(error(Reason.RATE_LIMITED), [], 1.1)
    assert isinstance(warning, Warn)
    assert session.received(error(Reason.RATE_LIMITED), [], 1.2) == []
    assert session.state is State.IN
    assert session.wants(RUN, 1)


def test_a_client_in_quarantine_keeps_its_updates_and_greets_again_later() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    (warning,) = session.received(error(Reason.QUARANTINED), [], 1.5)
    assert isinstance(warning, Warn)
    one = made(1)
    assert session.trained(RUN, one.update, one.parcel) == []
    at_s = 1.5 + GREETING_S
    assert session.due_s == at_s
    hello = Send(message=Hello(client_id=7, session=TOKEN, holding=(1,)))
    assert session.tick(at_s) == [hello]
    assert session.received(error(Reason.QUARANTINED), [], at_s) == []  # no change
    assert session.tick(at_s + GREETING_S) == [hello]
    assert session.received(welcome(), [], at_s + GREETING_S) == sent(one)
    assert [type(one) for one in session.received(error(Reason.QUARANTINED), [], 99.0)] == [Warn]


def test_a_quarantine_error_without_a_connection_does_not_end_the_wait_for_one() -> None:
    session = session_that_is_in()
    session.unreachable()
    session.received(error(Reason.QUARANTINED), [], 1.0)
    assert (session.state, session.due_s) == (State.AWAY, None)
    assert len(session.reachable(2.0)) == 1


@pytest.mark.parametrize("reason", [Reason.UNKNOWN_CLIENT, Reason.WRONG_PROTOCOL, Reason.NOT_THE_OWNER])
def test_a_client_that_is_refused_for_good_ends_and_its_updates_are_not_dropped(reason: Reason) -> None:
    session = after_a_kill(made(3))
    assert session.received(error(reason), [], 0.1) == [
        Retire(reason="refused", message="the server refuses client 7: why")
    ]
    assert session.unacknowledged == 1
