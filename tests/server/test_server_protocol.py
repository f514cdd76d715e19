"""The server protocol, sentence by sentence, on a network and a clock that are played. Source: PROTOCOL.md 4 and 5."""

import numpy as np
import pytest

from support.played import PlayedServer
from unstale.server.commands import StopNow
from unstale.settings.learning import SelectorSettings, TriggerSettings
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Bye, Error, Heartbeat, Hello, Message, Stop, Task, Welcome

SYNC = TriggerSettings(name="sync")
BEAT = codec.encode(Heartbeat(number=0, version=0))


def types(messages: list[Message]) -> list[str]:
    return [message.type for message in messages]


# ---------------------------------------------------------------------------------------------------------- a lost task


def test_a_lost_task_is_taken_back_and_another_takes_its_place() -> None:
    server = PlayedServer()
    client = server.client(0)
    lost = client.task()
    assert types(client.beat(newest_task=0)) == ["heartbeat"]  # the first that is answered since
    answer, task = client.beat(newest_task=0, heard=0)
    assert isinstance(answer, Heartbeat) and isinstance(task, Task)
    assert (task.task_id, task.version, task.number) == (lost.task_id + 1, 0, 1)
    assert client.answer(lost).reason is Reason.EXPIRED_TASK
    assert client.answer(task).outcome == "accepted"


def test_a_task_that_is_lost_twice_is_sent_a_third_time() -> None:
    client = PlayedServer().client(0)
    client.task()
    given = [types(client.beat(newest_task=0, heard=number - 1 if number else None)) for number in range(5)]
    assert given == [
        ["heartbeat"], ["heartbeat", "task"], ["heartbeat"], ["heartbeat", "task"], ["heartbeat"],
    ]  # fmt: skip


def test_a_task_that_came_is_not_given_again_however_long_it_takes() -> None:
    client = PlayedServer().client(0)
    task = client.task()
    for number in range(5):
        assert types(client.beat(newest_task=task.task_id, heard=number - 1 if number else None)) == ["heartbeat"]


def test_a_heartbeat_that_left_before_its_answer_could_be_heard_proves_nothing() -> None:
    client = PlayedServer().client(0)
    client.task()  # a large model, still under way while these are said
    assert [types(client.beat(newest_task=0)) for _ in range(4)] == [["heartbeat"]] * 4


def test_a_repeated_hello_on_one_connection_does_not_hide_a_lost_task() -> None:
    client = PlayedServer().client(0)
    lost = client.task()
    client.beat(newest_task=0)
    client.join()
    assert types(client.hears()) == ["welcome"]
    _, task = client.beat(newest_task=0, heard=0)
    assert isinstance(task, Task) and task.task_id > lost.task_id


def test_heartbeats_of_another_process_are_counted_anew() -> None:
    server = PlayedServer()
    client = server.client(0)
    client.beats = 100
    client.task()
    client.beat(newest_task=0)
    newer = server.client(0, route=b"newer")
    newer.join(session="b" * 32)
    said, task = newer.hears()
    assert isinstance(said, Welcome) and isinstance(task, Task)
    assert types(newer.beat(newest_task=0)) == ["heartbeat"]
    assert types(newer.beat(newest_task=0, heard=0)) == ["heartbeat", "task"]


def test_a_task_that_waits_to_be_sent_is_not_lost() -> None:
    # k-sync, k = 1: the slow client's task is taken back with each round, and the next one is owed to it.
    server = PlayedServer(2, trigger=TriggerSettings(name="k-sync", k=1))
    slow, fast = server.client(0), server.client(1)
    slow.join()
    fast.join()
    (_, first), (_, quick) = slow.hears(), fast.hears()
    assert isinstance(first, Task) and isinstance(quick, Task)
    assert fast.answer(quick).outcome == "accepted"
    server.compute()
    assert slow.hears() == []  # it has not been heard of since its first task: the second is owed
    owed = slow.beat(newest_task=first.task_id)
    assert types(owed) == ["heartbeat", "task"]
    assert types(slow.beat(newest_task=first.task_id, heard=0)) == ["heartbeat"]
    assert types(slow.beat(newest_task=first.task_id, heard=1)) == ["heartbeat", "task"]


def test_a_client_that_does_not_report_received_messages_is_believed() -> None:
    client = PlayedServer().client(0)
    client.task()
    assert [types(client.beat()) for _ in range(3)] == [["heartbeat"]] * 3


# ---------------------------------------------------------------------------------------------------- refused messages


@pytest.mark.parametrize(
    ("header", "reason", "refused"),
    [
        (BEAT, Reason.HELLO_FIRST, "heartbeat"),
        (codec.encode(Hello(client_id=1, session="a" * 32)), Reason.UNKNOWN_CLIENT, "hello"),
        (BEAT.replace(b"number", b"Number"), Reason.MALFORMED_HEADER, "heartbeat"),
        (BEAT.replace(b"heartbeat", b"Heartbeat"), Reason.UNKNOWN_TYPE, "Heartbeat"),
        (b"\xc1", Reason.MALFORMED_HEADER, None),
    ],
)
def test_an_error_names_the_type_of_the_refused_message(header: bytes, reason: Reason, refused: str | None) -> None:
    server = PlayedServer()
    client = server.client(0)
    server.protocol.on_message(client.route, header)
    error = client.hear(Error)
    assert (error.reason, error.refused) == (reason, refused)


@pytest.mark.parametrize("message", [Bye(), Error(reason=Reason.NON_FINITE, task_id=1)])
def test_a_goodbye_and_an_error_before_a_hello_have_no_answer(message: Message) -> None:
    client = PlayedServer().client(0)
    client.say(message)
    assert client.hears() == []


# ------------------------------------------------------------------------------------------------------ a declined task


def unavailable(task: Task) -> Error:
    return Error(reason=Reason.UNAVAILABLE, task_id=task.task_id)


def test_a_client_that_is_unavailable_is_not_asked_again_before_the_next_version() -> None:
    server = PlayedServer(2, trigger=SYNC)
    away, there = server.client(0), server.client(1)
    away.join()
    there.join()
    (_, declined), (_, task) = away.hears(), there.hears()
    assert isinstance(declined, Task) and isinstance(task, Task)
    away.say(unavailable(declined))
    assert types(away.beat(newest_task=0)) == types(away.beat(newest_task=0, heard=0)) == ["heartbeat"]
    assert there.answer(task).outcome == "accepted"
    server.compute()
    assert away.hear(Task).version == 1


def test_a_round_whose_clients_are_all_unavailable_passes_without_updates() -> None:
    server = PlayedServer(2, trigger=SYNC)
    clients = [server.client(0), server.client(1)]
    for client in clients:
        client.join()
    for client in clients:
        _, task = client.hears()
        assert isinstance(task, Task)
        client.say(unavailable(task))
    server.compute()
    assert [client.hear(Task).version for client in clients] == [1, 1]
    assert server.coordinator.consecutive_failures == 0


# -------------------------------------------------------------------------------------------------------------- the end


def finished_server() -> PlayedServer:
    server = PlayedServer(rounds=1)
    client = server.client(0)
    client.answer(client.task())
    server.compute()
    assert client.hear(Stop).reason == "finished"
    return server


def test_a_message_after_a_stop_is_answered_with_the_stop_again() -> None:
    server = finished_server()
    client = server.client(0)
    assert types(client.beat()) == ["heartbeat", "stop"]
    client.join()
    assert client.hear(Stop).reason == "finished"
    client.say(Error(reason=Reason.NON_FINITE))
    assert client.hears() == []
    assert not server.protocol.is_over


def test_an_update_after_the_end_has_its_verdict_before_the_stop() -> None:
    server = PlayedServer(2, rounds=1)
    first, second = server.client(0), server.client(1)
    first.join()
    second.join()
    (_, task), (_, late) = first.hears(), second.hears()
    assert isinstance(task, Task) and isinstance(late, Task)
    first.answer(task)
    server.compute()
    assert types(second.hears()) == ["stop"]  # which is lost
    second.say_update(late)
    ack, stop = second.hears()
    assert isinstance(ack, Ack) and ack.reason is Reason.RUN_FINISHED
    assert isinstance(stop, Stop)


def test_the_run_is_over_when_all_clients_have_said_goodbye() -> None:
    server = finished_server()
    assert not server.protocol.is_over
    server.client(0).say(Bye())
    assert server.protocol.is_over
    assert server.protocol.outcome is not None
    assert server.protocol.outcome.versions == 1


def test_it_is_over_when_the_time_for_goodbyes_has_passed() -> None:
    server = finished_server()
    assert server.protocol.due_s == 3.0
    server.pass_time(2.9)
    assert not server.protocol.is_over
    server.pass_time(0.1)
    assert server.protocol.is_over


def test_an_operator_who_stops_the_run_stops_the_clients() -> None:
    server = PlayedServer()
    client = server.client(0)
    client.task()
    server.protocol.on_result(StopNow())
    server.protocol.flush()
    assert client.hear(Stop).reason == "shutdown"


# ----------------------------------------------------------------------------------------------- connections and timers


def test_a_client_that_is_silent_for_its_lease_must_say_hello() -> None:
    server = PlayedServer()
    client = server.client(0)
    client.task()
    assert server.protocol.due_s == 10.0
    server.pass_time(10.0)
    (error,) = client.beat()
    assert isinstance(error, Error) and error.reason is Reason.HELLO_FIRST


def test_a_lease_does_not_run_out_while_messages_wait_to_be_taken_in() -> None:
    server = PlayedServer()
    client = server.client(0)
    client.task()
    server.now_s = 10.0
    server.protocol.flush(more_waits=True)
    assert types(client.beat()) == ["heartbeat"]


@pytest.mark.parametrize("kind", ["gone", "full"])
def test_a_task_that_could_not_be_sent_is_given_when_its_client_says_hello(kind: str) -> None:
    server = PlayedServer()
    client = server.client(0)
    answered = client.task()
    getattr(server.wire, kind).add(client.route)
    client.say_update(answered)
    server.compute()
    again = server.client(0, route=b"again")
    again.join()
    said, task = again.hears()
    assert isinstance(said, Welcome) and isinstance(task, Task)
    assert task.version == 1


# --------------------------------------------------------------------------------------------------------------- models


def test_a_model_is_wrapped_once_a_version() -> None:
    server = PlayedServer(4, trigger=SYNC)
    clients = [server.client(number) for number in range(4)]
    for client in clients:
        client.join()
    for client in clients:
        _, task = client.hears()
        assert isinstance(task, Task)
        client.answer(task)
    server.compute()
    assert [client.hear(Task).version for client in clients] == [1, 1, 1, 1]
    assert server.wire.wrapped == 2


def test_a_stale_client_is_sent_the_model_of_a_past_version_with_the_learning_rate_of_now() -> None:
    # T = 2: in epoch t the task has the model of version t - 2, and of t before that.
    server = PlayedServer(2, trigger=SYNC, selector=SelectorSettings(name="round-robin", size=2), stale_rounds={1: 2})
    clients = [server.client(0), server.client(1)]
    for client in clients:
        client.join()
    for version in range(5):
        rates = []
        for client, expected in zip(clients, (version, version - 2 if version >= 2 else version), strict=True):
            task, frames = server.wire.sent[client.route][-1]
            assert isinstance(task, Task)
            assert task.version == expected
            assert np.frombuffer(b"".join(frames), dtype="<f4").tolist() == [expected, expected]
            rates.append(task.learning_rate)
            client.hears()
            assert client.answer(task).outcome == "accepted"
        assert rates == [1 / (version + 1) if version else 0.5] * 2
        server.compute()
    assert server.coordinator.version == 5
