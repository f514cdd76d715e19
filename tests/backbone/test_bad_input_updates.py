"""Updates that cannot count, each through a real socket. Source: design.md 7, PROTOCOL.md 5, 6 and 9."""

from typing import Any

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


DELTA = {"kind": "delta", "learning_rate": 1e-6}

# What is changed in the header, the payload frames, and the reason for which the update is rejected.
REJECTED: dict[str, tuple[dict[str, Any], list[bytes], Reason]] = {
    "another model": ({"signature": "f" * 64}, [ALL], Reason.WRONG_SIGNATURE),
    "a size that the model has not": ({"payload_bytes": 4 * D + 4}, [ALL + bytes(4)], Reason.WRONG_SIZE),
    "fewer bytes than announced": ({}, [ALL[:-4]], Reason.WRONG_SIZE),
    "more bytes than announced": ({}, [ALL, bytes(4)], Reason.WRONG_SIZE),
    "no payload": ({}, [], Reason.WRONG_SIZE),
    "a number cut by the end of a frame": ({}, [ALL[:6], ALL[6:]], Reason.WRONG_SIZE),
    "an empty frame": ({}, [ALL, b""], Reason.WRONG_SIZE),
    "NaN": ({}, [with_one(float("nan"))], Reason.NON_FINITE),
    "infinity": ({}, [with_one(float("inf"))], Reason.NON_FINITE),
    "minus infinity": ({}, [with_one(float("-inf"))], Reason.NON_FINITE),
    # its square is 1e40
    "a norm whose square float32 cannot hold": ({}, [with_one(1e20)], Reason.NON_FINITE),
    "nothing but zeros": ({}, [bytes(4 * D)], Reason.ZERO_UPDATE),
    "nothing but minus zeros": ({}, [(-0.0 * ONES).tobytes()], Reason.ZERO_UPDATE),
    # 1e33 / 1e-6 = 1e39, and the largest float32 is 3.4e38
    "infinity only after division": (DELTA, [with_one(1e33)], Reason.NON_FINITE),
    "a version never issued": ({"base_version": 1}, [ALL], Reason.UNKNOWN_VERSION),
    "a version far ahead": ({"base_version": 2**63 - 1}, [ALL], Reason.UNKNOWN_VERSION),
    "a task never given": ({"task_id": 2**63 - 1}, [ALL], Reason.UNKNOWN_TASK),
    "a task of another client": ({"task_id": 2}, [ALL], Reason.UNKNOWN_TASK),
    "two things wrong": ({"task_id": 9}, [with_one(float("nan"))], Reason.UNKNOWN_TASK),
}


@pytest.mark.parametrize("wrong", REJECTED)
def test_a_wrong_update_is_rejected_counted_and_changes_nothing(wrong: str) -> None:
    changes, frames, reason = REJECTED[wrong]
    with (
        RunningServer(small()) as server,
        RawClient(server.address, 0) as client,
        RawClient(server.address, 1) as other,
    ):
        client.join()
        other.join()
        task, model_d = client.task()
        their_task, _ = other.task()
        before = server.state()
        client.say(update_of(task, **changes), frames)
        ack = client.hear(Ack)
        assert (ack.task_id, ack.outcome, ack.first_outcome) == (
            changes.get("task_id", task.task_id), "rejected", "rejected",
        )  # fmt: skip
        assert ack.reason is reason
        assert sample(server.http, UPDATES, outcome="rejected", reason=reason) == 1

        after = server.state()
        if reason is not Reason.UNKNOWN_TASK:  # the verdict on its task closes the task, and nothing else
            before["outstanding"] -= 1
            before["clients"] = {**before["clients"], "working": 1, "waiting": 1}
        assert after == before

        # The run goes on, and only the good update counts: gradient 1, rate 0.5, weight 1.
        assert other.answer(their_task, ONES).outcome == "accepted"
        next_task, next_d = other.task()
        assert next_task.version == 1
        assert np.array_equal(next_d, model_d - np.float32(0.5))


def test_a_payload_in_more_frames_than_allowed_is_rejected() -> None:
    # digits_cnn has 5,450 parameters: enough to cut it into one frame too many, each and the sum of the right size.
    with (
        RunningServer(small(clients=1, model={"name": "digits_cnn"})) as server,
        RawClient(server.address) as client,
    ):
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


def test_a_delta_is_divided_by_its_own_learning_rate() -> None:
    # (delta 1) / (rate 0.25) = gradient 4; model - 0.5 * 4
    with RunningServer(small(clients=1)) as server, RawClient(server.address) as client:
        client.join()
        task, model_d = client.task()
        assert client.answer(task, ONES, kind="delta", learning_rate=0.25).outcome == "accepted"
        _, next_d = client.task()
        assert np.array_equal(next_d, model_d - np.float32(2))


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


def test_a_repeat_of_a_rejected_update_gets_the_first_verdict_whatever_it_holds_now() -> None:
    with RunningServer(small(clients=1)) as server, RawClient(server.address) as client:
        client.join()
        task, _ = client.task()
        client.say(update_of(task), [with_one(float("nan"))])
        assert client.hear(Ack).reason is Reason.NON_FINITE
        ack = client.answer(task, ONES)
        assert (ack.outcome, ack.first_outcome, ack.reason) == ("duplicate", "rejected", Reason.NON_FINITE)
        assert sample(server.http, UPDATES, outcome="duplicate", reason=Reason.NON_FINITE) == 1
        assert server.state()["accepted"] == 0


def test_an_update_for_a_task_that_was_taken_back_is_expired() -> None:
    # k-sync, k = 1: the first update closes the round, and the other client has worked for nothing.
    settings = small(trigger={"name": "k-sync", "k": 1})
    with (
        RunningServer(settings) as server,
        RawClient(server.address, 0) as slow,
        RawClient(server.address, 1) as fast,
    ):
        slow.join()
        fast.join()
        old_task, _ = slow.task()
        task, _ = fast.task()
        assert fast.answer(task, ONES).outcome == "accepted"
        slow.hears_nothing_before(
            1
        )  # it was sent one model already, so it is sent the next when it is heard of
        new_task, _ = slow.task()  # of the next round
        assert (old_task.version, new_task.version) == (0, 1)
        before = server.state()
        ack = slow.answer(old_task, ONES)
        assert (ack.outcome, ack.reason) == ("rejected", Reason.EXPIRED_TASK)
        assert server.state() == before
        assert sample(server.http, UPDATES, outcome="rejected", reason=Reason.EXPIRED_TASK) == 1
        assert slow.answer(new_task, ONES).outcome == "accepted"


def test_an_update_after_the_end_is_told_that_the_run_is_finished() -> None:
    settings = small(rounds=1, server={"linger_s": 60.0})
    with (
        RunningServer(settings) as server,
        RawClient(server.address, 0) as late,
        RawClient(server.address, 1) as last,
    ):
        late.join()
        last.join()
        late_task, _ = late.task()
        task, model_d = last.task()
        assert last.answer(task, ONES).outcome == "accepted"
        assert late.hear(Stop).reason == "finished"
        before = server.state()
        ack = late.answer(late_task, ONES)
        assert (ack.outcome, ack.reason) == ("rejected", Reason.RUN_FINISHED)
        before["outstanding"] -= 1
        before["clients"] = {**before["clients"], "working": 0, "waiting": 2}
        assert server.state() == before
        assert sample(server.http, UPDATES, outcome="rejected", reason=Reason.RUN_FINISHED) == 1

        with RawClient(server.address, 1, session="cd" * 16) as newcomer:
            newcomer.say(Hello(client_id=1, session=newcomer.session))
            assert newcomer.hear(Stop).reason == "finished"
        assert last.leave_after_stop().version == 1
        late.say(Bye())
        assert server.end().updates == {"accepted": 1, "duplicate": 0, "rejected": 1}
        assert np.array_equal(server.server._compute._learner.model_d.numpy(), model_d - np.float32(0.5))


def test_a_task_given_back_is_nobodys_update() -> None:
    settings = small(clients=1, server={"retry_s": 0.01})
    with RunningServer(settings) as server, RawClient(server.address) as client:
        client.join()
        task, _ = client.task()
        client.say(Error(reason=Reason.NON_FINITE, task_id=task.task_id))
        retried, _ = client.task()  # everybody was refused, so everybody is given a task again
        assert retried.task_id > task.task_id
        ack = client.answer(task, ONES)
        assert (ack.outcome, ack.reason) == ("rejected", Reason.EXPIRED_TASK)
        assert server.state()["accepted"] == 0
