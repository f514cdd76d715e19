"""Every reason for which something is refused, through a real socket: the answer, the metric, and nothing changed.

Source: proto/PROTOCOL.md#6-reasons
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from support.running import RunningServer, small
from support.scrape import sample
from support.wire import RawClient, update_of
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.limits import HEADER_BYTES_MAX
from unstale_proto.messages import Ack, Bye, Chunk, Credit, Error, Heartbeat, Hello, Message, Stop, Task

pytestmark = pytest.mark.network

REFUSED = "unstale_messages_refused_total"
UPDATES = "unstale_updates_total"
QUARANTINES = "unstale_quarantines_total"
D = 650  # parameters of logreg on digits: 64 * 10 + 10
ONES = np.ones(D, dtype="<f4")
ALL = ONES.tobytes()
BEAT = codec.encode(Heartbeat(number=1, version=0))
TASK = Task(task_id=1, number=0, version=0, learning_rate=0.1, signature="0" * 64, payload_bytes=4)
BEATS = 10_000  # far more than a second lets in


@dataclass
class Scene:
    """A run of two clients that have a task each. client: misbehaves. model_d: of the other's task."""

    server: RunningServer
    client: RawClient
    other: RawClient
    task: Task
    their_task: Task
    model_d: np.ndarray

    def refuses(self, message: Message, frames: Sequence[bytes] = ()) -> Message:
        """Say something wrong; the answer."""
        self.client.say(message, frames)
        return self.client.hear_any()[0]


@dataclass(frozen=True, kw_only=True)
class Case:
    """provoke: does what is wrong; the answer. before: what leads to it. settings: of the run. closes_task: whether the
    answer is the last word on the client's task. goes_on: whether the other's update counts afterwards."""

    reason: Reason
    provoke: Callable[[Scene], Message]
    before: Callable[[Scene], object] = lambda _: None
    settings: dict[str, Any] = field(default_factory=dict)
    closes_task: bool = False
    goes_on: bool = True


def packed(**fields: object) -> bytes:
    header: bytes = msgpack.packb({"protocol": 1, **fields})
    return header


def header(reason: Reason, data: bytes) -> Case:
    def provoke(scene: Scene) -> Message:
        scene.client.say_bytes(data)
        return scene.client.hear_any()[0]

    return Case(reason=reason, provoke=provoke)


def update(reason: Reason, *frames: bytes, settings: dict[str, Any] | None = None, **changes: Any) -> Case:
    """changes: of the header."""
    return Case(
        reason=reason,
        provoke=lambda scene: scene.refuses(update_of(scene.task, **changes), frames),
        settings=settings or {},
        closes_task=reason is not Reason.UNKNOWN_TASK,
    )


def not_a_number(name: str, number: float) -> Case:
    """A number in a header that is none."""

    def provoke(scene: Scene) -> Message:
        fields = {**update_of(scene.task).model_dump(), name: number}
        scene.client.say_bytes(packed(type="update", **fields), ALL)
        return scene.client.hear_any()[0]

    return Case(reason=Reason.MALFORMED_HEADER, provoke=provoke)


def with_one(value: float) -> bytes:
    vector = ONES.copy()
    vector[321] = value
    return vector.tobytes()


def leave(scene: Scene) -> None:
    scene.client.say(Bye())
    scene.client.say(Heartbeat(number=0, version=0))  # only so that the goodbye is known to be there
    assert scene.client.hear(Error).reason is Reason.HELLO_FIRST


def be_too_late(scene: Scene) -> None:
    """The other's update closes the round (k-sync, k = 1), and the client's task is taken back."""
    assert scene.other.answer(scene.their_task, ONES).outcome == "accepted"
    scene.their_task, scene.model_d = scene.other.task()
    scene.client.hears_nothing_before(1)  # it is sent one model at a time: the next when it is heard of
    assert scene.client.task()[0].version == 1


def see_the_end(scene: Scene) -> None:
    assert scene.other.answer(scene.their_task, ONES).outcome == "accepted"
    assert scene.client.hear(Stop).reason == "finished"


def be_quarantined(scene: Scene) -> None:
    scene.client.say_bytes(b"\xc1")
    assert scene.client.hear(Error).reason is Reason.MALFORMED_HEADER
    error = scene.client.hear(Error)
    assert error.reason is Reason.QUARANTINED and "3600 s" in error.message
    assert sample(scene.server.http, QUARANTINES) == 1


def say_too_much(scene: Scene) -> Message:
    for number in range(BEATS):
        answer = scene.refuses(Heartbeat(number=number, version=0))
        if isinstance(answer, Error):
            return answer
    raise AssertionError("nothing was too much")


def own_only_client_0(scene: Scene) -> None:
    protocol = scene.server.server._protocol
    protocol._settings = replace(protocol._settings, may_speak=lambda _, client_id: client_id == 0)


def encoded(
    reason: Reason,
    encoding: str,
    *parts: np.ndarray,
    header: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    **settings: Any,
) -> Case:
    """Payload of a run that encodes its updates so. header: changes of it. run: other settings."""
    content = b"".join(part.tobytes() for part in parts)
    content += bytes(-len(content) % 4)
    in_use = {"encoding": {"updates": encoding, **settings}, **(run or {})}
    changes = {"payload_bytes": len(content), "encoding": encoding, **(header or {})}
    return update(reason, content, settings=in_use, **changes)


def int8(*scales: float, codes: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """650 numbers have three blocks of 256."""
    return np.array(scales, "<f4"), np.full(D, codes, "i1")


def top_k(*positions: int) -> tuple[np.ndarray, np.ndarray]:
    """1 % of 650 numbers are 7."""
    return np.array(positions, "<u4"), np.ones(7, "<f4")


HELD = 721  # examples of each of two clients: half of those of digits
DELTA = {"kind": "delta"}


def of_deltas(rate: float) -> dict[str, Any]:
    """Settings of a run whose clients send deltas. rate: the learning rate of its tasks."""
    return {"training": {"name": "sgd", "learning_rate": rate, "steps": 1, "batch_size": 8}}


def come_damaged_twice(scene: Scene) -> None:
    """Announce an update and send another one, until it is asked for the third time."""
    scene.client.say(update_of(scene.task, checksum="0" * 16))
    for _ in range(2):
        assert scene.client.hear(Credit).have == 0
        scene.client.say(Chunk(task_id=scene.task.task_id, offset=0), [ALL])
    assert scene.client.hear(Credit).have == 0


CASES: dict[str, Case] = {
    "noise": header(Reason.MALFORMED_HEADER, b"\xc1\xc1\xc1"),
    "nothing at all": header(Reason.MALFORMED_HEADER, b""),
    "cut short": header(Reason.MALFORMED_HEADER, BEAT[:-1]),
    "bytes after the map": header(Reason.MALFORMED_HEADER, BEAT + b"\x00"),
    "no map": header(Reason.MALFORMED_HEADER, msgpack.packb([1, 2])),
    "a field is missing": header(Reason.MALFORMED_HEADER, packed(type="heartbeat", number=1)),
    "a field is out of range": header(Reason.MALFORMED_HEADER, packed(type="heartbeat", number=-1, version=0)),
    "a long text": header(Reason.MALFORMED_HEADER, packed(type="bye", reason="x" * 1001)),
    "a loss that is NaN": not_a_number("loss", float("nan")),
    "an infinite loss": not_a_number("loss", float("inf")),
    "a rate that is NaN": not_a_number("learning_rate", float("nan")),
    "an infinite rate": not_a_number("learning_rate", float("inf")),
    "too large": header(Reason.HEADER_TOO_LARGE, b"\x00" * (HEADER_BYTES_MAX + 1)),
    "an unknown type": header(Reason.UNKNOWN_TYPE, packed(type="gossip")),
    "an unknown type with a long name": header(Reason.UNKNOWN_TYPE, packed(type="\U0010ffff" * 900)),
    "another protocol": header(Reason.WRONG_PROTOCOL, msgpack.packb({"protocol": 2, "type": "heartbeat"})),
    "the largest protocol": header(Reason.WRONG_PROTOCOL, msgpack.packb({"protocol": 2**64 - 1})),
    "a task, which only a server sends": header(Reason.UNEXPECTED_TYPE, codec.encode(TASK)),
    "an ack, which only a server sends": header(
        Reason.UNEXPECTED_TYPE, codec.encode(Ack(task_id=1, outcome="accepted", first_outcome="accepted"))
    ),
    "a stop, which only a server sends": header(
        Reason.UNEXPECTED_TYPE, codec.encode(Stop(reason="finished", version=0))
    ),
    "another model": update(Reason.WRONG_SIGNATURE, ALL, signature="f" * 64),
    "a size that the model has not": update(Reason.WRONG_SIZE, ALL + bytes(4), payload_bytes=4 * D + 4),
    "fewer bytes than announced": update(Reason.WRONG_SIZE, ALL[:-4]),
    "more bytes than announced": update(Reason.WRONG_SIZE, ALL, bytes(4)),
    "no payload": update(Reason.WRONG_SIZE),
    "a number cut by the end of a frame": update(Reason.WRONG_SIZE, ALL[:6], ALL[6:]),
    "an empty frame": update(Reason.WRONG_SIZE, ALL, b""),
    "NaN": update(Reason.NON_FINITE, with_one(float("nan"))),
    "infinity": update(Reason.NON_FINITE, with_one(float("inf"))),
    "minus infinity": update(Reason.NON_FINITE, with_one(float("-inf"))),
    # its square is 1e40
    "a norm whose square float32 cannot hold": update(Reason.NON_FINITE, with_one(1e20)),
    # 1e33 / 1e-6 = 1e39, and the largest float32 is 3.4e38
    "infinity only after division": update(Reason.NON_FINITE, with_one(1e33), settings=of_deltas(1e-6), **DELTA),
    "nothing but zeros": update(Reason.ZERO_UPDATE, bytes(4 * D), settings=of_deltas(0.5), **DELTA),
    "nothing but minus zeros": update(Reason.ZERO_UPDATE, (-0.0 * ONES).tobytes(), settings=of_deltas(0.5), **DELTA),
    # sqrt(650) = 25.495, and sqrt(649 + 9) = 25.652
    "longer than the run allows": update(Reason.NORM_TOO_LARGE, with_one(3.0), settings={"server": {"norm_max": 25.5}}),
    "longer only after division": update(
        Reason.NORM_TOO_LARGE, ALL, settings={**of_deltas(0.5), "server": {"norm_max": 25.5}}, **DELTA
    ),
    # Of the first updates: 10 times the norm of the initial model, about 1.9, over the learning rate 0.5.
    "longer than the first updates may be": update(
        Reason.NORM_TOO_LARGE, with_one(60.0), settings={"clients": 3, "min_clients": 2}
    ),
    "a gradient in a run of deltas": update(Reason.MALFORMED_PAYLOAD, ALL, settings=of_deltas(0.5)),
    "a delta in a run of gradients": update(Reason.MALFORMED_PAYLOAD, ALL, **DELTA),
    "another learning rate than the task's": update(Reason.MALFORMED_PAYLOAD, ALL, learning_rate=0.25),
    "the next larger learning rate": update(Reason.MALFORMED_PAYLOAD, ALL, learning_rate=math.nextafter(0.5, 1)),
    "one example more than the client holds": update(Reason.MALFORMED_PAYLOAD, ALL, num_examples=HELD + 1),
    "the most examples that there are": update(Reason.MALFORMED_PAYLOAD, ALL, num_examples=2**63 - 1),
    "one example more than the run allows": update(
        Reason.MALFORMED_PAYLOAD, ALL, num_examples=11, settings={"server": {"num_examples_max": 10}}
    ),
    "a batch of more examples than the client holds": update(
        Reason.MALFORMED_PAYLOAD, ALL, num_examples=8, batch_examples=9
    ),
    "a version never issued": update(Reason.UNKNOWN_VERSION, ALL, base_version=1),
    "a version far ahead": update(Reason.UNKNOWN_VERSION, ALL, base_version=2**63 - 1),
    "a task never given": update(Reason.UNKNOWN_TASK, ALL, task_id=2**63 - 1),
    "a task of another client": update(Reason.UNKNOWN_TASK, ALL, task_id=2),
    "two things wrong": update(Reason.UNKNOWN_TASK, with_one(float("nan")), task_id=9),
    "a scale that is negative": encoded(Reason.MALFORMED_PAYLOAD, "int8", *int8(1, -1, 1)),
    "a position twice": encoded(Reason.MALFORMED_PAYLOAD, "top-k", *top_k(0, 1, 2, 3, 4, 4, 649)),
    "positions that fall": encoded(Reason.MALFORMED_PAYLOAD, "top-k", *top_k(0, 1, 2, 3, 5, 4, 649)),
    "a position that the model has not": encoded(Reason.MALFORMED_PAYLOAD, "top-k", *top_k(0, 1, 2, 3, 4, 5, D)),
    "the last position there is": encoded(Reason.MALFORMED_PAYLOAD, "top-k", *top_k(0, 1, 2, 3, 4, 5, 2**32 - 1)),
    "an encoding that the run does not use": update(Reason.MALFORMED_PAYLOAD, ALL, encoding="int8"),
    "the size of float32, and another encoding": update(
        Reason.WRONG_SIZE, ALL, encoding="int8", settings={"encoding": {"updates": "int8"}}
    ),
    "one position too many": encoded(Reason.WRONG_SIZE, "top-k", np.arange(8, dtype="<u4"), np.ones(8, "<f4")),
    "one scale too many": encoded(Reason.WRONG_SIZE, "int8", *int8(1, 1, 1, 1)),
    "a scale that is NaN": encoded(Reason.NON_FINITE, "int8", *int8(1, 1, float("nan"))),
    "a scale that is infinite, and codes that are zero": encoded(
        Reason.NON_FINITE, "int8", *int8(1, 1, float("inf"), codes=0)
    ),
    "a scale whose codes overflow": encoded(Reason.NON_FINITE, "int8", *int8(1, 1, 3e38, codes=127)),
    "codes that are zero": encoded(
        Reason.ZERO_UPDATE, "int8", *int8(1, 1, 1, codes=0), header=DELTA, run=of_deltas(0.5)
    ),
    "an infinity of 16 bits": encoded(Reason.NON_FINITE, "float16", np.full(D, np.inf, "<f2")),
    "a NaN of 16 bits": encoded(Reason.NON_FINITE, "bfloat16", np.full(D, 0x7F81, "<u2")),
    "longer when it is decoded": encoded(
        Reason.NON_FINITE, "top-k", np.arange(7, dtype="<u4"), np.full(7, 1e19, "<f4")
    ),
    "a chunk of what was not announced": Case(
        reason=Reason.NO_CREDIT, provoke=lambda scene: scene.refuses(Chunk(task_id=scene.task.task_id, offset=0), [ALL])
    ),
    "a wrong checksum, every time": Case(
        reason=Reason.WRONG_CHECKSUM,
        before=come_damaged_twice,
        provoke=lambda scene: scene.refuses(Chunk(task_id=scene.task.task_id, offset=0), [ALL]),
        closes_task=True,
    ),
    "a task that was taken back": Case(
        reason=Reason.EXPIRED_TASK,
        before=be_too_late,
        provoke=lambda scene: scene.client.answer(scene.task, ONES),
        settings={"trigger": {"name": "k-sync", "k": 1}},
    ),
    "after the end": Case(
        reason=Reason.RUN_FINISHED,
        before=see_the_end,
        provoke=lambda scene: scene.client.answer(scene.task, ONES),
        settings={"rounds": 1, "server": {"linger_s": 60.0}},
        closes_task=True,
        goes_on=False,
    ),
    "a disk without room": Case(
        reason=Reason.NOT_STORED,
        provoke=lambda scene: scene.refuses(update_of(scene.task), [ALL]),
        settings={"run": {"durability": "normal", "free_bytes_min": 2**60}},
        goes_on=False,
    ),
    "a client id that is not in the run": Case(
        reason=Reason.UNKNOWN_CLIENT,
        provoke=lambda scene: scene.refuses(Hello(client_id=2, session=scene.client.session)),
    ),
    "the largest client id": Case(
        reason=Reason.UNKNOWN_CLIENT,
        provoke=lambda scene: scene.refuses(Hello(client_id=999_999, session=scene.client.session)),
    ),
    "the client id of somebody else": Case(
        reason=Reason.NOT_THE_OWNER,
        before=own_only_client_0,
        provoke=lambda scene: scene.refuses(Hello(client_id=1, session=scene.client.session)),
        goes_on=False,  # the other's messages are refused now, too
    ),
    "no hello": Case(
        reason=Reason.HELLO_FIRST, before=leave, provoke=lambda scene: scene.refuses(Heartbeat(number=1, version=0))
    ),
    "more messages than allowed": Case(
        reason=Reason.RATE_LIMITED, provoke=say_too_much, settings={"server": {"client_messages_per_s_max": 1}}
    ),
    "a hello in quarantine": Case(
        reason=Reason.QUARANTINED,
        before=be_quarantined,
        provoke=lambda scene: scene.refuses(Hello(client_id=0, session=scene.client.session)),
        settings={"server": {"quarantine_after": 1, "quarantine_s": 3600.0}},
    ),
}
ONLY_A_CLIENT_SAYS = {Reason.UNAVAILABLE}


def test_every_reason_has_a_case() -> None:
    assert {case.reason for case in CASES.values()} == set(Reason) - ONLY_A_CLIENT_SAYS


@pytest.mark.parametrize("wrong", CASES)
def test_an_invalid_message_is_answered_counted_and_changes_nothing(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[wrong]
    monkeypatch.chdir(tmp_path)  # a run with a journal leaves it in the working directory
    with (
        RunningServer(small(**case.settings)) as server,
        RawClient(server.address, 0) as client,
        RawClient(server.address, 1) as other,
    ):
        client.join()
        other.join()
        task, _ = client.task()
        scene = Scene(server, client, other, task, *other.task())
        case.before(scene)
        before, count = server.state(), counted(server, case.reason)
        answer = case.provoke(scene)

        check_answer(answer, case.reason)
        assert counted(server, case.reason) == count + 1
        if case.closes_task:  # and nothing else
            states = before["clients"]
            before["clients"] = {**states, "working": states["working"] - 1, "waiting": states["waiting"] + 1}
            before["outstanding"] -= 1
        assert server.state() == before
        if case.goes_on:
            check_that_the_run_goes_on(scene, case.settings.get("training"))
        if server.server._protocol.is_finishing:
            client.say(Bye())
            other.leave_after_stop()
            server.end()


def check_answer(answer: Message, reason: Reason) -> None:
    if isinstance(answer, Ack):
        assert (answer.outcome, answer.first_outcome) == ("rejected", "rejected")
    else:
        assert isinstance(answer, Error), answer
        assert (answer.task_id is None) == (reason is not Reason.NOT_STORED)
        assert answer.message
    assert answer.reason is reason


def counted(server: RunningServer, reason: Reason) -> float:
    """Updates and other messages that were refused for it."""
    return sample(server.http, UPDATES, outcome="rejected", reason=reason) + sample(server.http, REFUSED, reason=reason)


def check_that_the_run_goes_on(scene: Scene, training: dict[str, Any] | None) -> None:
    """The other client received nothing of this, and only its valid update counts: gradient 1, rate 0.5, weight 1."""
    rate = scene.their_task.learning_rate
    kind, vector = ("gradient", ONES) if training is None else ("delta", np.float32(rate) * ONES)
    assert scene.other.answer(scene.their_task, vector, kind=kind).outcome == "accepted"
    next_task, next_d = scene.other.task()
    assert next_task.version == scene.their_task.version + 1
    assert np.array_equal(next_d, scene.model_d - np.float32(rate))


def test_a_client_that_is_unavailable_is_not_answered_and_gives_its_task_back() -> None:
    with (
        RunningServer(small()) as server,
        RawClient(server.address, 0) as client,
        RawClient(server.address, 1) as other,
    ):
        client.join()
        other.join()
        task, _ = client.task()
        other.task()
        client.say(Error(reason=Reason.UNAVAILABLE, task_id=task.task_id))
        client.hears_nothing_before(1)
        state = server.state()
        assert (state["outstanding"], state["clients"]["unavailable"], state["version"]) == (1, 1, 0)
        assert counted(server, Reason.UNAVAILABLE) == 0
