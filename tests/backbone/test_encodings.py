"""Encoded models and updates between a real server and real clients. Source: PROTOCOL.md 9.1."""

from typing import Any

import numpy as np
import pytest

from support.large import RunningClient
from support.running import RunningServer, small
from support.scrape import sample
from support.wire import RawClient, update_of
from unstale.config import Settings
from unstale_proto import encodings
from unstale_proto.encodings import Int8
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, EncodingPlan, Hello, Task, Welcome
from unstale_proto.transfer import checksum

pytestmark = pytest.mark.network

D = 650  # parameters of logreg on digits
# 3 blocks of 256: 12 bytes of scales; 1 % are 7 numbers of 8 bytes
BYTES = {"float32": 4 * D, "bfloat16": 2 * D, "float16": 2 * D, "int8": 12 + 652, "top-k": 56}
WIDE_BYTES = 4 * (2 * 1024 * 1024 + 650)
INT8 = EncodingPlan(updates="int8", models="int8", block=256)


def settings_of(updates: str, models: str = "float32", **changes: Any) -> Settings:
    timely = {"heartbeat_s": 0.2, "lease_s": 5.0, "linger_s": 1.0}
    return small(encoding={"updates": updates, "models": models}, server=timely, **changes)


def moved(server: RunningServer, direction: str) -> float:
    return sample(server.http, "unstale_update_bytes_total", direction=direction)


class Watched:
    """The bytes of a run's payloads, when its last version is measured: after that no server answers."""

    def __init__(self) -> None:
        self.received = self.sent = -1.0
        self.server: RunningServer

    def __call__(self, now: Any) -> None:
        if now.version:
            self.received, self.sent = moved(self.server, "received"), moved(self.server, "sent")


@pytest.mark.parametrize("updates", encodings.NAMES)
def test_updates_of_every_encoding_are_accepted_and_their_encoded_bytes_counted(updates: str) -> None:
    settings, watched = settings_of(updates, clients=1, rounds=4), Watched()
    with RunningServer(settings, watched) as server:
        watched.server = server
        with RunningClient(settings, server.address):
            outcome = server.end()
    assert outcome.updates["accepted"] == 4 and outcome.updates["rejected"] == 0
    assert watched.received == 4 * BYTES[updates]
    assert watched.sent == 4 * BYTES["float32"]


@pytest.mark.parametrize("models", encodings.NAMES[:-1])
def test_models_of_every_encoding_are_trained_from(models: str) -> None:
    settings, watched = settings_of("float32", models, clients=1, rounds=4), Watched()
    with RunningServer(settings, watched) as server:
        watched.server = server
        with RunningClient(settings, server.address):
            outcome = server.end()
    assert outcome.updates["accepted"] == 4
    assert watched.sent == 4 * BYTES[models]
    assert outcome.test_accuracy > 0.2  # 0.08 before


@pytest.mark.parametrize("updates", ["int8", "top-k"])
def test_buffers_and_a_second_vector_travel_beside_what_is_encoded(updates: str) -> None:
    learned = {"policy": {"name": "scaffold"}, "training": {"name": "scaffold", "steps": 2}}
    settings = settings_of(
        updates,
        "int8",
        clients=2,
        trigger={"name": "sync"},
        model={"name": "support.factories:with_buffers"},
        **learned,
    )
    with RunningServer(settings) as server, RunningClient(settings, server.address):
        outcome = server.end()
    assert outcome.updates["accepted"] == 6 and outcome.updates["rejected"] == 0


def test_a_client_that_can_do_float32_alone_takes_part_in_a_run_of_int8() -> None:
    settings = settings_of("int8", "int8", clients=2, rounds=1000)
    with (
        RunningServer(settings) as server,
        RawClient(server.address, 0) as old,
        RunningClient(settings, server.address, first=1),
    ):
        assert old.join().encoding is None
        task, model_d = old.task()
        assert (task.encoding, task.payload_bytes, len(model_d)) == (None, 4 * D, D)
        for _ in range(3):
            assert old.answer(task, np.ones(D)).outcome == "accepted"
            task, _ = old.task()
            assert task.encoding is None


def hello(client: RawClient, *offered: str) -> Welcome:
    client.say(Hello(client_id=client.client_id, session=client.session, encodings=offered))
    return client.hear(Welcome)


def test_a_client_is_sent_the_encodings_that_it_shares_with_the_run() -> None:
    with RunningServer(settings_of("int8", "int8", clients=1)) as server, RawClient(server.address) as client:
        assert hello(client, "float32", "int8", "of the future").encoding == INT8
        message, frames = client.hear_any()
        assert isinstance(message, Task)
        assert (message.encoding, message.payload_bytes) == ("int8", BYTES["int8"])
        assert sum(map(len, frames)) == BYTES["int8"]
        assert hello(client, "bfloat16").encoding is None
        assert hello(client).encoding is None


def test_an_update_counts_by_its_numbers_as_they_come_out() -> None:
    # Ones in int8: scale 1 / 127, codes 127, so 127 * fl(1 / 127) comes out. model - 0.5 * that
    with RunningServer(settings_of("int8", clients=1)) as server, RawClient(server.address) as client:
        hello(client, "int8")
        task, model_d = client.task()
        frames = Int8(D, block=256).frames([memoryview(np.ones(D, "<f4").tobytes())])
        client.say(update_of(task, encoding="int8", payload_bytes=BYTES["int8"]), frames)
        assert client.hear(Ack).outcome == "accepted"
        _, next_d = client.task()
        came_out = np.float32(127) * (np.float32(1) / np.float32(127))
        assert np.array_equal(next_d, model_d - np.float32(0.5) * came_out)


def test_a_delta_is_divided_after_it_is_decoded() -> None:
    # The largest of each block is exact: 127 / 127 = 1 is the scale. 127 / 0.25 = 508; model - 0.25 * 508
    sgd = {"learning_rate": 0.25, "steps": 1, "batch_size": 8}
    with RunningServer(settings_of("int8", clients=1, training=sgd)) as server, RawClient(server.address) as client:
        hello(client, "int8")
        task, model_d = client.task()
        frames = Int8(D, block=256).frames([memoryview(np.full(D, 127, "<f4").tobytes())])
        said = update_of(task, encoding="int8", payload_bytes=BYTES["int8"], kind="delta")
        client.say(said, frames)
        assert client.hear(Ack).outcome == "accepted"
        _, next_d = client.task()
        assert np.array_equal(next_d, model_d - np.float32(127))


def test_an_update_may_be_float32_in_any_run() -> None:
    # As one that was stored before its client lost an ability.
    with RunningServer(settings_of("top-k", clients=1)) as server, RawClient(server.address) as client:
        hello(client, "top-k")
        task, model_d = client.task()
        assert client.answer(task, np.ones(D)).outcome == "accepted"
        _, next_d = client.task()
        assert np.array_equal(next_d, model_d - np.float32(0.5))


def test_a_payload_too_large_for_a_message_in_float32_may_fit_in_int8() -> None:
    # 8 MiB in chunks for one client, 2 MiB with the task for the other
    wide = {"model": {"name": "support.factories:wide"}, "clients": 2}
    with (
        RunningServer(settings_of("int8", "int8", **wide)) as server,
        RawClient(server.address, 0) as old,
        RawClient(server.address, 1) as new,
    ):
        old.join()
        assert hello(new, "int8").encoding == INT8
        announced = old.hear(Task)
        assert announced.checksum is not None and announced.payload_bytes == WIDE_BYTES
        message, frames = new.hear_any()
        assert isinstance(message, Task) and message.checksum is None
        assert message.payload_bytes == sum(map(len, frames)) < WIDE_BYTES / 3.9


@pytest.mark.slow
@pytest.mark.parametrize(("updates", "models"), [("bfloat16", "bfloat16"), ("float32", "int8")])
def test_large_payloads_go_in_chunks_as_they_are_encoded(updates: str, models: str) -> None:
    wide = {"model": {"name": "support.factories:wide"}, "clients": 1, "rounds": 2}
    settings = settings_of(updates, models, **wide)
    with RunningServer(settings) as server, RunningClient(settings, server.address):
        outcome = server.end()
    assert outcome.updates["accepted"] == 2 and outcome.updates["rejected"] == 0


def test_an_announced_update_of_another_size_than_its_encoding_has_is_rejected_at_once() -> None:
    with RunningServer(settings_of("int8", clients=1)) as server, RawClient(server.address) as client:
        hello(client, "int8")
        task, _ = client.task()
        said = update_of(task, encoding="int8", payload_bytes=2**34, checksum=checksum([]))
        client.say(said)
        assert client.hear(Ack).reason is Reason.WRONG_SIZE
