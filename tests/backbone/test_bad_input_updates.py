"""Odd, repeated or late updates, and which of them count, through real sockets.

Each way to be wrong by itself is in test_every_reason.py.
Source: proto/PROTOCOL.md#5-exactly-once; proto/PROTOCOL.md#6-reasons; proto/PROTOCOL.md#9-payload
"""

import numpy as np
import pytest

from support.running import RunningServer, small
from support.scrape import sample
from support.wire import RawClient, update_of
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.limits import FRAMES_MAX
from unstale_proto.messages import Ack, Bye, Error, Hello, Stop

pytestmark = pytest.mark.network

UPDATES = "unstale_updates_total"
D = 650  # parameters of logreg on digits: 64 * 10 + 10
ONES = np.ones(D, dtype="<f4")
ALL = ONES.tobytes()


def with_one(value: float) -> bytes:
    vector = ONES.copy()
    vector[321] = value
    return vector.tobytes()


def test_a_payload_in_more_frames_than_allowed_is_rejected() -> None:
    # digits_cnn has 5,450 parameters: enough to cut it into one frame too many, each and the sum of the right size.
    with RunningServer(small(clients=1, model={"name": "digits_cnn"})) as server, RawClient(server.address) as client:
        client.join()
        task, model_d = client.task()
        numbers = len(model_d)
        frames = [bytes(4)] * FRAMES_MAX + [bytes(4 * (numbers - FRAMES_MAX))]
        assert sum(map(len, frames)) == task.payload_bytes
        before = server.state()
        client.say(update_of(task), frames)
        assert client.hear(Ack).reason is Reason.WRONG_SIZE
        assert server.state()["digest"] == before["digest"]
        assert sample(server.http, UPDATES, outcome="rejected", reason=Reason.WRONG_SIZE) == 1


def test_a_payload_may_be_cut_anywhere_between_two_numbers() -> None:
    with RunningServer(small(clients=1)) as server, RawClient(server.address) as client:
        client.join()
        task, model_d = client.task()
        client.say(update_of(task), [ALL[:4], ALL[4:1004], ALL[1004:]])
        assert client.hear(Ack).outcome == "accepted"
        _, next_d = client.task()
        assert np.array_equal(next_d, model_d - np.float32(0.5))


SGD = {"learning_rate": 0.25, "steps": 1, "batch_size": 8}


def test_a_delta_is_divided_by_the_learning_rate_of_its_task() -> None:
    # (delta 1) / (rate 0.25) = gradient 4; model - 0.25 * 4
    with RunningServer(small(clients=1, training=SGD)) as server, RawClient(server.address) as client:
        client.join()
        task, model_d = client.task()
        assert client.answer(task, ONES, kind="delta").outcome == "accepted"
        _, next_d = client.task()
        assert np.array_equal(next_d, model_d - np.float32(1))


def test_the_same_bytes_twice_count_once() -> None:
    with RunningServer(small(clients=1)) as server, RawClient(server.address) as client:
        client.join()
        task, model_d = client.task()
        update = [codec.encode(update_of(task)), ALL]
        client.say_bytes(*update)
        assert client.hear(Ack).outcome == "accepted"
        next_task, next_d = client.task()
        before = server.state()
        client.say_bytes(*update)
        ack = client.hear(Ack)
        assert (ack.task_id, ack.outcome, ack.first_outcome, ack.reason) == (
            task.task_id, "duplicate", "accepted", None,
        )  # fmt: skip
        assert server.state() == before
        assert sample(server.http, UPDATES, outcome="accepted", reason="") == 1
        assert sample(server.http, UPDATES, outcome="duplicate", reason="") == 1

        # Its own task was not touched by the copy, and the model moved once: by 0.5, not by 1.
        assert np.array_equal(next_d, model_d - np.float32(0.5))
        assert client.answer(next_task, ONES).outcome == "accepted"


def test_a_repeat_of_a_rejected_update_gets_the_first_verdict_whatever_its_content() -> None:
    with RunningServer(small(clients=1)) as server, RawClient(server.address) as client:
        client.join()
        task, _ = client.task()
        client.say(update_of(task), [with_one(float("nan"))])
        assert client.hear(Ack).reason is Reason.NON_FINITE
        ack = client.answer(task, ONES)
        assert (ack.outcome, ack.first_outcome, ack.reason) == ("duplicate", "rejected", Reason.NON_FINITE)
        assert sample(server.http, UPDATES, outcome="duplicate", reason=Reason.NON_FINITE) == 1
        assert server.state()["accepted"] == 0


def test_after_the_end_no_client_is_admitted_and_nothing_counts() -> None:
    settings = small(rounds=1, server={"linger_s": 60.0})
    with RunningServer(settings) as server, RawClient(server.address, 0) as late, RawClient(server.address, 1) as last:
        late.join()
        last.join()
        late_task, _ = late.task()
        task, model_d = last.task()
        assert last.answer(task, ONES).outcome == "accepted"
        assert late.hear(Stop).reason == "finished"
        assert late.answer(late_task, ONES).reason is Reason.RUN_FINISHED
        with RawClient(server.address, 1, session="cd" * 16) as newcomer:
            newcomer.say(Hello(client_id=1, session=newcomer.session))
            assert newcomer.hear(Stop).reason == "finished"
            newcomer.say(Bye())  # the server waits for a notified client
            assert newcomer.hear(Bye)  # and was received: unsent messages are lost with the socket
        assert last.leave_after_stop().version == 1
        late.say(Bye())
        assert server.end().updates == {"accepted": 1, "duplicate": 0, "rejected": 1}
        assert np.array_equal(server.server._compute.learner.model_d.numpy(), model_d - np.float32(0.5))


def test_an_update_for_a_returned_task_does_not_count() -> None:
    settings = small(clients=1, server={"retry_s": 0.01})
    with RunningServer(settings) as server, RawClient(server.address) as client:
        client.join()
        task, _ = client.task()
        client.say(Error(reason=Reason.NON_FINITE, task_id=task.task_id))
        retried, _ = client.task()  # all clients were refused, so all get a task again
        assert retried.task_id > task.task_id
        ack = client.answer(task, ONES)
        assert (ack.outcome, ack.reason) == ("rejected", Reason.EXPIRED_TASK)
        assert server.state()["accepted"] == 0
