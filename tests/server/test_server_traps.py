"""ZeroMQ's known traps, each met by a real server."""

import threading

import numpy as np
import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from support.running import IN_PROCESS, PATIENCE_S, RunningServer, small, until
from support.scrape import sample
from support.wire import RawClient, update_of
from unstale.errors import UserError
from unstale.metrics.progress import Progress
from unstale_proto.errors import Reason
from unstale_proto.limits import FRAME_BYTES_MAX
from unstale_proto.messages import Ack, Bye, Error, Heartbeat, Hello, ProcessStart, Stop, Task, Welcome

pytestmark = pytest.mark.network

ONES = np.ones(650, dtype="<f4")
TINY = ONES * np.float32(1e-30)  # moves no model; zeros would be refused
TRIES = 20_000  # far more round trips than anything here takes


def make_rounds(worker: RawClient, vector: np.ndarray, rounds: int) -> None:
    """Rounds of k-sync, k = 1, in which the others are given a task, too, and have it taken back."""
    for _ in range(rounds):
        task, _ = worker.task()
        assert worker.answer(task, vector).outcome == "accepted"


def test_a_client_that_vanished_stops_no_round_and_no_end() -> None:
    with (
        RunningServer(small(rounds=1000, trigger={"name": "k-sync", "k": 1})) as server,
        RawClient(server.address, 1) as worker,
    ):
        with RawClient(server.address, 0) as vanishing:
            vanishing.join()
            worker.join()
            vanishing.task()
        make_rounds(worker, TINY, rounds=20)
        assert worker.task()[0].version == 20
        server.server.stop()  # notifies every client, also the vanished one, which has no route any more
        assert worker.hear(Stop).reason == "shutdown"
        assert server.end().versions == 20


def test_a_client_that_does_not_read_costs_one_model_of_memory_and_delays_no_other() -> None:
    settings = small(rounds=1000, trigger={"name": "k-sync", "k": 1}, server={"lease_s": 3600})
    with (
        RunningServer(settings) as server,
        RawClient(server.address, 1) as worker,
        RawClient(server.address, 0) as deaf,
    ):
        deaf.join()
        worker.join()
        make_rounds(worker, TINY, rounds=50)
        worker.task()
        worker.hears_nothing_before(1)  # now the messages sent before are counted too
        sent = sample(server.http, "unstale_update_bytes_total", direction="sent")
        assert sent == (51 + 1) * ONES.nbytes  # 51 tasks for the worker, and one for the deaf
        assert deaf.task()[0].version == 0
        deaf.hears_nothing_before(1)  # now its message has arrived, and it is sent the newest model
        assert deaf.task()[0].version == 50


def test_a_server_ends_though_no_client_reads_its_last_messages() -> None:
    with RunningServer(small(clients=1)) as server, RawClient(server.address, 0, receive_queue=1) as deaf:
        deaf.join()
        server.server.stop()
        assert server.end().reason == "shutdown"


def test_messages_sent_before_a_connection_closed_are_processed() -> None:
    # An update and a goodbye wait unread when the connection closes. The ack of the update reaches no client then, and
    # the goodbye must count all the same: otherwise its client would be missed until its lease runs out.
    turning = threading.Event()

    def hold_up(now: Progress) -> None:
        if now.version == 0:
            assert turning.wait(PATIENCE_S)

    running = RunningServer(small(min_clients=1, trigger={"name": "k-async", "k": 2}, server=IN_PROCESS), hold_up)
    with running as server, RawClient(server.address, 1) as other:
        with RawClient(server.address, 0) as hasty:
            hasty.join()
            task, _ = hasty.task()  # version 0 is being evaluated: from now on the server protocol may be held up
            hasty.say(update_of(task), [ONES.tobytes()])
            hasty.say(Bye())
            hasty.socket.close(linger=int(PATIENCE_S * 1000))
        connected = running.server._port._limiter.table
        until(lambda: len(connected) == 1, "only the other one is connected")
        turning.set()
        other.join()
        other.task()
        for number in range(1000):
            if sample(server.http, "unstale_clients", state="left") == 1:
                break
            other.hears_nothing_before(number)
        assert server.state()["accepted"] == 1
        assert server.state()["clients"]["left"] == 1


def test_a_client_comes_back_on_a_new_connection_with_the_task_that_it_holds() -> None:
    with RunningServer(small(clients=1)) as server:
        with RawClient(server.address, 0) as before:
            before.join()
            task, model_d = before.task()
        with RawClient(server.address, 0) as after:  # the same process: the same session
            after.say(Heartbeat(number=0, version=0))
            assert after.hear(Error).reason is Reason.HELLO_FIRST
            after.join(holding=(task.task_id,))
            after.hears_nothing_before(1)  # it keeps its task, and is given no other
            assert after.answer(task, ONES).outcome == "accepted"
            next_task, next_d = after.task()
            assert next_task.version == 1
            assert np.array_equal(next_d, model_d - np.float32(0.5))


def test_a_task_that_was_lost_on_the_way_is_taken_back_and_another_given() -> None:
    with RunningServer(small(clients=1)) as server:
        with RawClient(server.address, 0) as before:
            before.join()
            lost, _ = before.task()
        with RawClient(server.address, 0) as client:  # the same process, which has not got it
            client.join(holding=())
            task, _ = client.task()
            assert task.task_id > lost.task_id
            assert client.answer(lost, ONES).reason is Reason.EXPIRED_TASK
            assert client.answer(task, ONES).outcome == "accepted"


def test_a_repeated_hello_on_one_connection_gets_no_second_model() -> None:
    # Order is kept there, so the task is under way: over a slow link another one would only stand behind it.
    with RunningServer(small(clients=1)) as server, RawClient(server.address, 0) as client:
        client.join()
        task, _ = client.task()
        client.join(holding=())
        client.hears_nothing_before(1)
        assert client.answer(task, ONES).outcome == "accepted"


def test_another_process_under_the_same_client_id_supersedes_the_former() -> None:
    with (
        RunningServer(small(clients=1)) as server,
        RawClient(server.address, 0, session="a" * 32) as former,
        RawClient(server.address, 0, session="b" * 32) as newer,
    ):
        former.join()
        old_task, _ = former.task()
        newer.join()
        assert former.hear(Stop).reason == "superseded"
        former.say(update_of(old_task), [ONES.tobytes()])
        assert former.hear(Error).reason is Reason.HELLO_FIRST
        assert server.state()["accepted"] == 0
        task, _ = newer.task()
        assert newer.answer(task, ONES).outcome == "accepted"


def test_the_same_process_on_a_second_connection_gets_no_stop_on_the_first() -> None:
    with (
        RunningServer(small(clients=1)) as server,
        RawClient(server.address, 0) as first,
        RawClient(server.address, 0) as second,
    ):
        first.join()
        task, _ = first.task()
        second.join(holding=(task.task_id,))
        first.say(Heartbeat(number=3, version=0))
        assert first.hear(Error).reason is Reason.HELLO_FIRST  # and this is the first that it hears
        assert second.answer(task, ONES).outcome == "accepted"


def test_a_frame_over_its_bound_cuts_that_connection_and_nothing_else() -> None:
    with (
        RunningServer(small()) as server,
        RawClient(server.address, 0) as greedy,
        RawClient(server.address, 1) as other,
    ):
        greedy.join()
        other.join()
        task, _ = greedy.task()
        other_task, _ = other.task()
        before = server.state()
        monitor = greedy.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        greedy.say(update_of(task), [bytes(FRAME_BYTES_MAX + 1)])
        assert monitor.poll(PATIENCE_S * 1000), "the connection is still there"
        assert parse_monitor_message(monitor.recv_multipart())["event"] == zmq.EVENT_DISCONNECTED
        greedy.socket.disable_monitor()
        monitor.close()
        other.hears_nothing_before(1)
        assert server.state() == before

        greedy.say(Heartbeat(number=1, version=0))  # its socket has connected anew
        assert greedy.hear(Error).reason is Reason.HELLO_FIRST
        greedy.join(holding=(task.task_id,))
        assert greedy.answer(task, ONES).outcome == "accepted"
        assert other.answer(other_task, ONES).outcome == "accepted"


def test_a_frame_at_its_bound_is_read() -> None:
    with RunningServer(small(clients=1, server=IN_PROCESS)) as server, RawClient(server.address) as client:
        server.allow_messages_of(FRAME_BYTES_MAX)
        client.join()
        task, _ = client.task()
        client.say(update_of(task), [bytes(FRAME_BYTES_MAX)])
        assert client.hear(Ack).reason is Reason.WRONG_SIZE


def test_a_client_that_falls_silent_without_closing_is_lost_and_may_come_back() -> None:
    # A half-open link: the connection stands, and nothing comes.
    settings = small(trigger={"name": "sync"}, server={"lease_s": 0.5, "heartbeat_s": 0.1})
    with (
        RunningServer(settings) as server,
        RawClient(server.address, 0) as silent,
        RawClient(server.address, 1) as client,
    ):
        silent.join()
        client.join()
        old_task, _ = silent.task()
        task, model_d = client.task()
        assert client.answer(task, ONES).outcome == "accepted"
        for number in range(TRIES):  # the round waits for both, until a lease has run out
            client.say(Heartbeat(number=number, version=0))
            message, frames = client.hear_any()
            if isinstance(message, Task):
                break
        assert isinstance(message, Task)
        assert message.version == 1
        next_d = np.frombuffer(b"".join(frames), dtype="<f4")
        assert np.array_equal(next_d, model_d - np.float32(0.5))  # of the one update there was
        assert sample(server.http, "unstale_clients", state="lost") == 1

        silent.say(update_of(old_task), [ONES.tobytes()])
        assert silent.hear(Error).reason is Reason.HELLO_FIRST
        silent.say(Hello(client_id=0, session=silent.session, holding=(old_task.task_id,)))
        assert silent.hear(Welcome).version == 1
        assert silent.answer(old_task, ONES).reason is Reason.EXPIRED_TASK
        assert sample(server.http, "unstale_clients", state="lost") == 0


def test_a_server_ends_though_its_clients_are_silent() -> None:
    with RunningServer(small(clients=1)) as server, RawClient(server.address) as client:
        client.join()
        server.server.stop()
        server.server.stop()  # twice is once
        assert server.end().reason == "shutdown"
        server.server.stop()  # and after the end nothing


def fail_ten_times(client: RawClient) -> None:
    client.join()
    for _ in range(10):
        task, _ = client.task()
        assert client.answer(task, ONES * np.float32("nan")).reason is Reason.NON_FINITE
    stop = client.hear(Stop)
    assert (stop.reason, stop.failed) == ("shutdown", True)
    assert stop.message is not None and stop.message.startswith("training diverges")


def test_a_run_in_which_no_client_can_learn_is_abandoned_and_clients_are_notified() -> None:
    settings = small(clients=1, trigger={"name": "async"}, server={"retry_s": 0.001})
    with (
        pytest.raises(UserError, match=r"^training diverges: the last 10 tasks .* lower training.learning_rate$"),
        RunningServer(settings) as server,
        RawClient(server.address, 0) as client,
    ):
        fail_ten_times(client)


def give_back(client: RawClient, times: int, *, code_error: bool | None) -> None:
    for _ in range(times):
        task, _ = client.task()
        client.say(Error(reason=Reason.NON_FINITE, message="no rows", task_id=task.task_id, code_error=code_error))


def test_a_client_whose_code_raises_does_not_end_the_run_when_the_healthy_one_leaves() -> None:
    settings = small(
        clients=2, min_clients=1, rounds=2, trigger={"name": "async"}, server={"retry_s": 0.001, "linger_s": 5.0}
    )
    with (
        RunningServer(settings) as server,
        RawClient(server.address, 0) as raising,
        RawClient(server.address, 1) as healthy,
    ):
        healthy.join()
        task, _ = healthy.task()
        assert healthy.answer(task, ONES).outcome == "accepted"
        healthy.task()
        healthy.say(Bye())
        until(lambda: server.server._protocol._coordinator.clients_by_state["left"] == 1)
        raising.join()
        give_back(raising, 50, code_error=True)
        raising.task()
        healthy.join()
        task, _ = healthy.task()
        assert healthy.answer(task, ONES).outcome == "accepted"
        for client in (healthy, raising):
            assert client.leave_after_stop().reason == "finished"
        assert server.end().versions == 2


def raise_ten_times(client: RawClient, code_error: bool | None) -> None:
    client.join()
    give_back(client, 10, code_error=code_error)
    stop = client.hear(Stop)
    assert (stop.reason, stop.failed) == ("shutdown", True)
    assert stop.message is not None and "client 0: 'no rows'" in stop.message


@pytest.mark.parametrize("code_error", [True, None], ids=["named", "of an older client"])
def test_a_run_in_which_the_code_of_every_client_raises_ends_with_the_last_error(code_error: bool | None) -> None:
    settings = small(clients=1, trigger={"name": "async"}, server={"retry_s": 0.001})
    message = r"^every task fails: the last 10 tasks .* at version 0; the last one: client 0: 'no rows'; mend its cause"
    with (
        pytest.raises(UserError, match=message),
        RunningServer(settings) as server,
        RawClient(server.address, 0) as client,
    ):
        raise_ten_times(client, code_error)


def test_every_heartbeat_of_a_burst_within_the_documented_rate_is_answered() -> None:
    with RunningServer(small(clients=1)) as server, RawClient(server.address, receive_queue=0) as client:
        client.join()
        client.hear(Task)
        for burst in range(5):
            numbers = range(200 * burst, 200 * (burst + 1))
            for number in numbers:
                client.say(Heartbeat(number=number, version=0))
            assert [client.hear(Heartbeat).number for _ in numbers] == list(numbers)


def test_a_late_hello_of_a_process_that_died_takes_nothing_over() -> None:
    def hello(session: str, number: int) -> Hello:
        return Hello(client_id=0, session=session * 32, start=ProcessStart(home="a" * 32, number=number))

    with (
        RunningServer(small(clients=1)) as server,
        RawClient(server.address) as living,
        RawClient(server.address) as dead,
    ):
        living.say(hello("2", 2))
        living.hear(Welcome)
        task, _ = living.task()
        dead.say(hello("1", 1))
        assert dead.hear(Stop).reason == "superseded"
        living.hears_nothing_before(0)
        assert living.answer(task, ONES).outcome == "accepted"
