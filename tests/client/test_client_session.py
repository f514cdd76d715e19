"""The client side of the wire contract, by table: events in, actions out."""

import pytest

from support.parts import PlayedPart
from support.wire import RUN, update, welcome
from unstale_client.actions import Retire, Send, Settle, Train
from unstale_client.models import Models
from unstale_client.session import GREETING_S, ClientSession, State
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Bye, Error, Heartbeat, Hello, ProcessStart, Stop, Task
from unstale_proto.transfer import checksum

TOKEN = "ab" * 16
MODEL = [memoryview(b"model...")]
DELTA = [memoryview(b"delta...")]


def task(task_id: int, version: int = 0) -> Task:
    return Task(task_id=task_id, number=0, version=version, learning_rate=0.1, signature="0" * 64, payload_bytes=8)


def session_that_is_in() -> ClientSession:
    session = ClientSession(7, TOKEN)
    session.reachable(0.0)
    session.received(welcome(), [], 0.0)
    return session


def session_with_an_update_sent() -> ClientSession:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    session.trained(RUN, update(1), DELTA)
    return session


def test_it_sends_one_hello_once_it_is_connected() -> None:
    session = ClientSession(7, TOKEN)
    assert session.due_s is None  # it waits without a bound
    assert session.reachable(3.0) == [Send(message=Hello(client_id=7, session=TOKEN))]
    assert session.reachable(3.1) == []


def test_a_hello_without_an_answer_is_resent() -> None:
    session = ClientSession(7, TOKEN)
    session.reachable(3.0)
    assert session.tick(3.0 + GREETING_S - 0.1) == []
    assert session.tick(3.0 + GREETING_S) == [Send(message=Hello(client_id=7, session=TOKEN))]


def test_a_task_is_trained_and_its_update_sent() -> None:
    session = session_that_is_in()
    assert session.received(task(1), MODEL, 1.0) == [Train(welcome=welcome(), task=task(1), parcel=MODEL)]
    assert session.trained(RUN, update(1), DELTA) == [Send(message=update(1), parcel=DELTA)]
    assert session.unacknowledged == 1


ACCEPTED = Ack(task_id=1, outcome="accepted", first_outcome="accepted")
REJECTED = Ack(task_id=1, outcome="rejected", first_outcome="rejected", reason=Reason.EXPIRED_TASK)
DUPLICATE = Ack(task_id=1, outcome="duplicate", first_outcome="accepted")
DUPLICATE_OF_REJECTED = Ack(task_id=1, outcome="duplicate", first_outcome="rejected", reason=Reason.ZERO_UPDATE)


@pytest.mark.parametrize(
    ("ack", "accepted"), [(ACCEPTED, True), (REJECTED, False), (DUPLICATE, True), (DUPLICATE_OF_REJECTED, False)]
)
def test_an_acknowledged_update_is_released_and_settled_by_its_first_verdict(ack: Ack, accepted: bool) -> None:
    session = session_with_an_update_sent()
    assert session.received(ack, [], 2.0) == [Settle(run_id=RUN, number=0, accepted=accepted)]
    assert session.unacknowledged == 0


@pytest.mark.parametrize("again", [ACCEPTED, REJECTED, DUPLICATE, DUPLICATE_OF_REJECTED])
def test_an_update_is_settled_once_however_often_it_is_acknowledged(again: Ack) -> None:
    session = session_with_an_update_sent()
    session.received(ACCEPTED, [], 2.0)
    assert session.received(again, [], 2.1) == []


def test_an_ack_of_a_task_without_an_update_settles_nothing() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    assert session.received(ACCEPTED, [], 2.0) == []
    assert session.trained(RUN, update(1), DELTA) == [Send(message=update(1), parcel=DELTA)]


def test_an_update_is_settled_by_its_task_number_after_a_newer_task() -> None:
    session = session_that_is_in()
    session.received(task(1).model_copy(update={"number": 5}), MODEL, 1.0)
    session.trained(RUN, update(1), DELTA)
    session.received(task(2).model_copy(update={"number": 6}), MODEL, 1.5)
    assert session.received(ACCEPTED, [], 2.0) == [Settle(run_id=RUN, number=5, accepted=True)]


def test_a_task_that_names_the_accepted_one_settles_the_updates_before_it_and_they_are_not_resent() -> None:
    session = session_with_an_update_sent()
    second, third = (task(number + 1).model_copy(update={"number": number, "accepted_task": 1}) for number in (1, 2))
    assert session.received(second, MODEL, 2.0) == [
        Settle(run_id=RUN, number=0, accepted=True),
        Train(welcome=welcome(), task=second, parcel=MODEL),
    ]
    session.trained(RUN, update(2), DELTA)
    assert session.received(third, MODEL, 3.0) == [
        Settle(run_id=RUN, number=1, accepted=False),
        Train(welcome=welcome(), task=third, parcel=MODEL),
    ]
    assert session.unacknowledged == 0
    session.tick(100.0)
    assert session.received(Heartbeat(number=0, version=0), [], 100.1) == []


def test_a_task_whose_model_comes_in_chunks_settles_the_updates_before_it_at_once() -> None:
    models = Models(lambda name: PlayedPart(), PlayedPart)
    session = ClientSession(7, TOKEN, models=models)
    session.reachable(0.0)
    session.received(welcome(), [], 0.0)
    session.received(task(1), MODEL, 1.0)
    session.trained(RUN, update(1), DELTA)
    announced = task(2).model_copy(update={"accepted_task": 1, "checksum": checksum(MODEL)})
    actions = session.received(announced, [], 2.0)
    assert actions[0] == Settle(run_id=RUN, number=0, accepted=True)
    assert [type(action) for action in actions[1:]] == [Send]  # a credit for the model


def test_a_copy_of_a_task_settles_nothing() -> None:
    session = session_with_an_update_sent()
    assert session.received(task(1).model_copy(update={"accepted_task": 0}), MODEL, 2.0) == []
    assert session.unacknowledged == 1


def test_an_update_older_than_the_newest_accepted_one_waits_for_its_ack() -> None:
    # An earlier version of the client may have stored two updates without a verdict.
    session = session_with_an_update_sent()
    session.received(task(2), MODEL, 1.5)
    session.trained(RUN, update(2), DELTA)
    newer = task(3).model_copy(update={"accepted_task": 2})
    assert session.received(newer, MODEL, 2.0)[:-1] == [Settle(run_id=RUN, number=0, accepted=True)]
    assert session.received(REJECTED, [], 2.1) == [Settle(run_id=RUN, number=0, accepted=False)]


def test_an_ack_after_the_start_of_another_run_settles_nothing() -> None:
    session = session_with_an_update_sent()
    session.unreachable()
    session.reachable(3.0)
    session.received(welcome(run_id="2" * 32), [], 3.1)
    assert session.received(ACCEPTED, [], 3.2) == []


def test_a_task_received_twice_is_trained_once() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    assert session.received(task(1), MODEL, 1.1) == []
    session.trained(RUN, update(1), DELTA)
    assert session.received(task(1), MODEL, 1.2) == []


def test_a_task_with_a_model_of_another_run_is_returned_untrained() -> None:
    session = session_that_is_in()
    other = task(1).model_copy(update={"signature": "f" * 64})
    (send,) = session.received(other, MODEL, 1.0)
    assert isinstance(send, Send)
    assert isinstance(send.message, Error)
    assert (send.message.reason, send.message.task_id) == (Reason.WRONG_SIGNATURE, 1)
    assert not session.wants(RUN, 1)


def test_a_task_with_a_truncated_model_is_returned_untrained() -> None:
    session = session_that_is_in()
    (send,) = session.received(task(1), [memoryview(b"half")], 1.0)
    assert isinstance(send, Send)
    assert isinstance(send.message, Error)
    assert (send.message.reason, send.message.task_id) == (Reason.WRONG_SIZE, 1)
    assert len(session.received(task(1), MODEL, 1.1)) == 1  # the complete model is still accepted


def test_a_client_without_chunks_gives_an_announced_task_back() -> None:
    session = session_that_is_in()
    announced = task(1).model_copy(update={"checksum": checksum(MODEL)})
    (send,) = session.received(announced, [], 1.0)
    assert isinstance(send, Send)
    assert isinstance(send.message, Error)
    assert (send.message.reason, send.message.task_id) == (Reason.WRONG_SIZE, 1)


def test_a_message_for_servers_is_answered_with_an_error() -> None:
    (send,) = session_that_is_in().received(Bye(), [], 1.0)
    assert isinstance(send, Send)
    assert isinstance(send.message, Error)
    assert (send.message.reason, send.message.refused) == (Reason.UNEXPECTED_TYPE, "bye")


def test_a_newer_task_replaces_an_older_one() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    session.received(task(2, version=5), MODEL, 2.0)
    assert not session.wants(RUN, 1)
    assert session.wants(RUN, 2)
    assert session.trained(RUN, update(1), DELTA) == []
    assert session.unacknowledged == 0


def test_a_heartbeat_is_sent_every_heartbeat_s() -> None:
    session = session_that_is_in()
    assert session.tick(1.9) == []
    assert session.tick(2.0) == [Send(message=Heartbeat(number=0, version=0, newest_task=0))]
    assert session.due_s == 4.0
    assert session.tick(4.0) == [Send(message=Heartbeat(number=1, version=0, newest_task=0))]


def beat_of(session: ClientSession) -> Heartbeat:
    """The heartbeat that it sends when one is due."""
    assert session.due_s is not None
    (send,) = session.tick(session.due_s)
    assert isinstance(send, Send) and isinstance(send.message, Heartbeat)
    return send.message


def test_a_heartbeat_names_the_newest_task_and_the_newest_answer_received() -> None:
    session = session_that_is_in()
    first = beat_of(session)
    assert (first.newest_task, first.heard) == (0, None)
    session.received(task(4), MODEL, 2.5)
    session.received(Heartbeat(number=0, version=0), [], 2.6)
    second = beat_of(session)
    assert (second.newest_task, second.heard) == (4, 0)
    beat_of(session)
    session.received(Heartbeat(number=2, version=0), [], 6.1)
    session.received(Heartbeat(number=1, version=0), [], 6.2)  # late, on a path without order
    assert beat_of(session).heard == 2


def test_an_answer_to_a_heartbeat_that_was_never_sent_is_ignored() -> None:
    session = session_with_an_update_sent()
    beat_of(session)
    assert session.received(Heartbeat(number=99, version=0), [], 2.1) == []
    assert beat_of(session).heard is None


def test_a_task_whose_update_is_acknowledged_is_still_the_newest() -> None:
    session = session_with_an_update_sent()
    session.received(ACCEPTED, [], 1.5)
    assert beat_of(session).newest_task == 1


def test_a_mismatched_or_returned_task_is_not_named() -> None:
    session = session_that_is_in()
    session.received(task(1).model_copy(update={"signature": "f" * 64}), MODEL, 1.0)
    assert beat_of(session).newest_task == 0
    session.received(task(2), MODEL, 2.5)
    session.failed(RUN, 2, "loss is nan")
    assert beat_of(session).newest_task == 0
    assert session.received(task(2), MODEL, 4.5) == []  # and yet a copy of it is not trained again


def test_another_run_starts_without_tasks_and_answered_heartbeats() -> None:
    session = session_with_an_update_sent()
    beat_of(session)
    session.received(Heartbeat(number=0, version=0), [], 2.1)
    session.unreachable()
    session.reachable(3.0)
    session.received(welcome(run_id="2" * 32), [], 3.1)
    beat = beat_of(session)
    assert (beat.number, beat.newest_task, beat.heard) == (1, 0, None)


def test_after_a_reconnect_to_the_same_run_it_retains_its_tasks() -> None:
    session = session_with_an_update_sent()
    beat_of(session)
    session.received(Heartbeat(number=0, version=0), [], 2.1)
    session.unreachable()
    session.reachable(3.0)
    session.received(welcome(), [], 3.1)
    beat = beat_of(session)
    assert (beat.number, beat.newest_task, beat.heard) == (1, 1, 0)


def test_a_task_the_server_never_assigned_does_not_hide_assigned_tasks() -> None:
    session = session_that_is_in()
    damaged = task(2**60)  # its id is damaged
    session.received(damaged, MODEL, 1.0)
    session.trained(RUN, update(2**60), DELTA)
    assert session.received(task(3), MODEL, 1.2) == []
    session.received(
        Ack(task_id=2**60, outcome="rejected", first_outcome="rejected", reason=Reason.UNKNOWN_TASK), [], 1.5
    )
    assert beat_of(session).newest_task == 0
    assert session.received(task(3), MODEL, 2.5) == [Train(welcome=welcome(), task=task(3), parcel=MODEL)]


def test_an_update_is_resent_when_a_later_heartbeat_is_answered_before_its_ack() -> None:
    session = session_with_an_update_sent()
    session.tick(2.0)  # heartbeat 0 is sent after the update
    assert session.received(Heartbeat(number=0, version=0), [], 2.1) == [Send(message=update(1), parcel=DELTA)]


def test_an_update_is_not_resent_for_a_heartbeat_sent_before_it() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    session.tick(2.0)  # heartbeat 0
    session.trained(RUN, update(1), DELTA)
    assert session.received(Heartbeat(number=0, version=0), [], 2.1) == []


def test_a_resent_update_waits_for_a_heartbeat_of_its_own() -> None:
    session = session_with_an_update_sent()
    session.tick(2.0)
    session.tick(4.0)
    assert session.received(Heartbeat(number=0, version=0), [], 4.1) == [Send(message=update(1), parcel=DELTA)]
    assert session.received(Heartbeat(number=1, version=0), [], 4.2) == []


def test_a_task_of_a_run_whose_welcome_was_lost_is_ignored() -> None:
    session = session_that_is_in()
    session.received(Error(reason=Reason.HELLO_FIRST), [], 1.0)
    of_another = task(1).model_copy(update={"run_id": "2" * 32})
    assert session.received(of_another, MODEL, 1.1) == []
    of_this = task(1).model_copy(update={"run_id": RUN})
    assert session.received(of_this, MODEL, 1.2) == [Train(welcome=welcome(), task=of_this, parcel=MODEL)]


def test_an_update_is_resent_when_a_later_one_is_acknowledged_before_it() -> None:
    session = session_with_an_update_sent()
    session.received(task(2), MODEL, 1.5)
    session.trained(RUN, update(2), DELTA)
    instructions = session.received(Ack(task_id=2, outcome="accepted", first_outcome="accepted"), [], 2.0)
    assert instructions == [Settle(run_id=RUN, number=0, accepted=True), Send(message=update(1), parcel=DELTA)]


def test_an_ack_of_a_possible_earlier_copy_proves_no_loss_of_updates_sent_in_between() -> None:
    session = session_with_an_update_sent()
    session.received(task(2), MODEL, 1.5)
    session.trained(RUN, update(2), DELTA)
    session.tick(2.0)
    session.received(Heartbeat(number=0, version=0), [], 2.1)  # both are resent, in their order
    assert session.received(Ack(task_id=1, outcome="accepted", first_outcome="accepted"), [], 2.2) == [
        Settle(run_id=RUN, number=0, accepted=True)
    ]


def test_after_a_lost_connection_it_names_its_updates_in_the_hello_and_resends_them() -> None:
    session = session_with_an_update_sent()
    session.received(task(2), MODEL, 1.5)
    session.unreachable()
    assert session.state is State.AWAY
    assert session.reachable(3.0) == [Send(message=Hello(client_id=7, session=TOKEN, holding=(1, 2)))]
    assert session.received(welcome(), [], 3.1) == [Send(message=update(1), parcel=DELTA)]


def test_a_hello_names_the_current_task_and_updates_only() -> None:
    session = session_with_an_update_sent()
    session.received(task(2), MODEL, 1.5)
    session.received(task(3), MODEL, 1.6)  # replaces task 2, which has no update
    session.received(task(4), MODEL, 1.7)
    session.failed(RUN, 4, "loss is nan")  # given back
    session.received(task(5), MODEL, 1.8)
    session.unreachable()
    assert session.reachable(3.0) == [Send(message=Hello(client_id=7, session=TOKEN, holding=(1, 5)))]


def test_a_server_that_asks_for_a_hello_first_gets_one() -> None:
    session = session_with_an_update_sent()
    sent = session.received(Error(reason=Reason.HELLO_FIRST), [], 2.0)
    assert sent == [Send(message=Hello(client_id=7, session=TOKEN, holding=(1,)))]
    assert session.received(Error(reason=Reason.HELLO_FIRST), [], 2.0) == []  # one is in transit


def test_an_update_trained_while_disconnected_is_sent_after_the_welcome() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    session.unreachable()
    assert session.trained(RUN, update(1), DELTA) == []
    session.reachable(2.0)
    assert session.received(welcome(), [], 2.1) == [Send(message=update(1), parcel=DELTA)]


def test_a_server_silent_for_a_lease_is_greeted_again() -> None:
    session = session_that_is_in()
    for at_s in (2.0, 4.0, 6.0, 8.0, 10.0):
        assert [type(send.message) for send in session.tick(at_s) if isinstance(send, Send)] == [Heartbeat]
    assert session.tick(12.0) == [Send(message=Hello(client_id=7, session=TOKEN))]


def test_another_run_starts_without_the_old_tasks() -> None:
    session = session_with_an_update_sent()
    session.unreachable()
    session.reachable(3.0)
    assert session.received(welcome(run_id="2" * 32), [], 3.1) == [Settle(run_id=RUN, number=0, accepted=False)]
    assert session.unacknowledged == 0
    assert len(session.received(task(1), MODEL, 3.2)) == 1  # task 1 of the new run is new


def test_a_finished_run_is_left_with_a_goodbye() -> None:
    session = session_that_is_in()
    retire, goodbye = session.received(Stop(reason="finished", version=9), [], 5.0)
    assert goodbye == Send(message=Bye(reason="the run is finished"))
    assert retire == Retire(reason="finished", message="the run is finished at version 9")
    assert session.state is State.OVER
    assert session.tick(100.0) == []


def test_a_superseded_client_ends_without_a_goodbye() -> None:
    session = session_that_is_in()
    (retire,) = session.received(Stop(reason="superseded", version=9), [], 5.0)
    assert isinstance(retire, Retire)
    assert retire.reason == "superseded"
    assert "--first" in retire.message


def test_a_server_that_shuts_down_is_greeted_again_later() -> None:
    session = session_that_is_in()
    assert session.received(Stop(reason="shutdown", version=9), [], 5.0) == [
        Send(message=Bye(reason="the server shuts down"))
    ]
    assert session.reachable(5.1) == []
    assert session.tick(5.0 + GREETING_S) == [Send(message=Hello(client_id=7, session=TOKEN))]


def test_a_run_that_has_failed_is_left_with_a_goodbye_and_the_reason() -> None:
    session = session_that_is_in()
    stop = Stop(reason="shutdown", version=9, failed=True, message="training diverges")
    assert session.received(stop, [], 5.0) == [
        Retire(
            reason="failed", message="the server ended the run at version 9 because of an error (training diverges)"
        ),
        Send(message=Bye(reason="the run has failed")),
    ]
    assert session.state is State.OVER


def test_a_hello_names_the_start_count_of_its_process() -> None:
    start = ProcessStart(home="1" * 32, number=3)
    session = ClientSession(7, TOKEN, start=start)
    assert session.reachable(0.0) == [Send(message=Hello(client_id=7, session=TOKEN, start=start))]


def test_a_client_id_that_the_run_does_not_have_is_refused_for_good() -> None:
    session = ClientSession(7, TOKEN)
    session.reachable(0.0)
    (retire,) = session.received(Error(reason=Reason.UNKNOWN_CLIENT, message="no such id"), [], 0.1)
    assert retire == Retire(reason="refused", message="the server refuses client 7: no such id")


def test_a_task_that_fails_is_returned() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    assert session.failed(RUN, 1, "loss is nan") == [
        Send(message=Error(reason=Reason.NON_FINITE, message="loss is nan", task_id=1))
    ]
    assert not session.wants(RUN, 1)


def test_an_error_of_the_users_code_has_the_reason_that_older_servers_know() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    assert session.failed(RUN, 1, "KeyError: 'age'", is_code_error=True) == [
        Send(message=Error(reason=Reason.NON_FINITE, message="KeyError: 'age'", task_id=1, code_error=True))
    ]


def test_a_declined_task_goes_back_as_unavailable() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    assert session.failed(RUN, 1, "low battery", Reason.UNAVAILABLE) == [
        Send(message=Error(reason=Reason.UNAVAILABLE, message="low battery", task_id=1))
    ]
    assert not session.wants(RUN, 1)


def test_a_member_that_leaves_says_goodbye() -> None:
    assert session_that_is_in().leave("stopped") == [Send(message=Bye(reason="stopped"))]
    assert ClientSession(7, TOKEN).leave("stopped") == []


def test_an_update_of_another_run_is_not_sent_although_its_task_has_the_same_id() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    session.unreachable()
    session.reachable(2.0)
    session.received(welcome(run_id="2" * 32), [], 2.1)
    session.received(task(1), MODEL, 2.2)
    assert not session.wants(RUN, 1)
    assert session.wants("2" * 32, 1)
    assert session.trained(RUN, update(1), DELTA) == []
    assert session.trained("2" * 32, update(1), DELTA) == [Send(message=update(1), parcel=DELTA)]


def test_a_task_that_fails_after_a_hello_that_named_it_is_returned() -> None:
    session = session_that_is_in()
    session.received(task(1), MODEL, 1.0)
    session.received(Error(reason=Reason.HELLO_FIRST), [], 2.0)
    (send,) = session.failed(RUN, 1, "loss is nan")
    assert isinstance(send, Send)
    assert isinstance(send.message, Error)
    assert send.message.task_id == 1


def test_a_delayed_task_is_accepted_while_the_client_greets_again() -> None:
    session = session_that_is_in()
    session.received(Error(reason=Reason.HELLO_FIRST), [], 2.0)
    assert session.state is State.GREETING
    assert session.received(task(1), MODEL, 3.0) == [Train(welcome=welcome(), task=task(1), parcel=MODEL)]


def test_a_finished_client_ignores_messages() -> None:
    session = session_that_is_in()
    session.received(Stop(reason="finished", version=9), [], 5.0)
    assert session.received(Stop(reason="shutdown", version=9), [], 5.1) == []
    assert session.state is State.OVER


def test_server_texts_reach_the_terminal_without_control_characters() -> None:
    session = ClientSession(7, TOKEN)
    session.reachable(0.0)
    (retire,) = session.received(Error(reason=Reason.UNKNOWN_CLIENT, message="\x1b[2J no"), [], 0.1)
    assert isinstance(retire, Retire)
    assert retire.message == "the server refuses client 7: '\\x1b[2J no'"
