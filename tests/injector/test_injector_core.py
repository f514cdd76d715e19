"""The injector's decisions: which message is forwarded, when, and with which content. No socket, no clock."""

from collections.abc import Sequence
from typing import Any

import pytest

from unstale.injector import core as module
from unstale.injector.core import Close, Core, Cut, Forward, damaged
from unstale.toxics import registry
from unstale.toxics.in_flight import Direction
from unstale.toxics.link import Applied, ToxicLink
from unstale_proto import codec
from unstale_proto.messages import Ack, Bye, Error, Heartbeat, Hello, Message, Task, Update

UP, DOWN = Direction.UP, Direction.DOWN
SIGNATURE = "0" * 64


def core_with(*toxics: dict[str, Any], started_s: float = 0.0, bytes_max: int = 10**9) -> Core:
    applied = [
        Applied(registry.create({"name": f"toxic {place}", **toxic}, "test")) for place, toxic in enumerate(toxics)
    ]
    return Core(ToxicLink(applied, seed=1), clients=10, started_s=started_s, bytes_max=bytes_max)


def hello(client_id: int = 0, session: str = "a") -> Hello:
    return Hello(client_id=client_id, session=session * 32)


def task(task_id: int, version: int = 0) -> Task:
    return Task(task_id=task_id, number=0, version=version, learning_rate=0.1, signature=SIGNATURE, payload_bytes=4)


def update(task_id: int) -> Update:
    return Update(
        task_id=task_id, base_version=0, kind="gradient", num_examples=1, steps=1, loss=1.0, learning_rate=0.1,
        signature=SIGNATURE, payload_bytes=4,
    )  # fmt: skip


def beat(number: int) -> Heartbeat:
    return Heartbeat(number=number, version=0)


def feed(
    core: Core,
    connection: str,
    direction: Direction,
    message: Message | bytes,
    at_s: float,
    cargo: Sequence[bytes] = (),
) -> None:
    header = message if isinstance(message, bytes) else codec.encode(message)
    core.on_message(connection, direction, header, cargo, at_s)


def out(core: Core, at_s: float) -> list[Any]:
    """The released outputs: messages, decoded if possible, and others."""
    released = []
    for output in core.release(at_s):
        if isinstance(output, Forward) and codec.peek(output.header) is not None:
            released.append(codec.decode(output.header))
        elif isinstance(output, Forward):
            released.append(output.header)
        else:
            released.append(output)
    return released


def joined(core: Core, at_s: float = 0.0, connection: str = "c", client_id: int = 0, session: str = "a") -> None:
    feed(core, connection, UP, hello(client_id, session), at_s)
    core.release(at_s + 9)


# ------------------------------------------------------------------------------------------------- passing messages


def test_without_toxics_a_message_is_forwarded_at_once_and_unchanged() -> None:
    core = core_with(started_s=3.3)
    cargo = [b"one", b"two"]
    header = codec.encode(hello())
    core.on_message("c", UP, header, cargo, 4.7)
    (forward,) = core.release(4.7)
    assert forward == Forward("c", UP, header, cargo, 4.7, 4.7)
    assert forward.cargo is cargo
    assert core.release(10) == []


@pytest.mark.parametrize("started_s", [0.1, 0.3, 1e5 + 0.7, 12345.678])
@pytest.mark.parametrize("at_s", [1e5 + 1.1, 1e6 / 3, 123456.789])
def test_rounding_delays_no_message(started_s: float, at_s: float) -> None:
    # started_s + (at_s - started_s) may differ from at_s in its last bit.
    core = core_with(started_s=started_s)
    feed(core, "c", UP, hello(), at_s)
    assert len(core.release(at_s)) == 1


def test_messages_before_a_hello_and_unreadable_ones_pass_unchanged() -> None:
    core = core_with({"type": "drop"})
    feed(core, "c", UP, beat(0), 0)
    feed(core, "c", UP, b"\xff\xff", 0)
    feed(core, "c", DOWN, Error(reason=module.Reason.HELLO_FIRST), 0)
    assert out(core, 0) == [beat(0), b"\xff\xff", Error(reason=module.Reason.HELLO_FIRST)]
    feed(core, "c", UP, hello(), 0)
    feed(core, "c", UP, beat(1), 0)
    feed(core, "c", UP, b"garbage", 0)
    assert out(core, 0) == [b"garbage"]


def test_an_unreadable_message_keeps_its_place() -> None:
    core = core_with({"type": "latency", "delay": 2.0, "messages": ["heartbeat"]})
    joined(core)
    feed(core, "c", UP, beat(0), 10)
    feed(core, "c", UP, b"garbage", 11)
    feed(core, "c", UP, Bye(), 11.5)
    assert out(core, 11.9) == []
    assert core.due_s == 12
    assert out(core, 12) == [beat(0), b"garbage", Bye()]


@pytest.mark.parametrize("client_id", [10, 999_999])
def test_a_hello_of_an_unknown_client_passes_unchanged(client_id: int) -> None:
    core = core_with({"type": "drop"})
    feed(core, "c", UP, hello(client_id), 0)
    assert out(core, 0) == [hello(client_id)]
    assert core.client_of("c") is None


# ------------------------------------------------------------------------------------------------- times and contents


def test_due_s_gives_the_delay_and_no_message_leaves_earlier() -> None:
    core = core_with({"type": "latency", "delay": 1.5}, started_s=100)
    feed(core, "c", UP, hello(), 100)
    assert core.due_s == 101.5
    assert core.release(101.4) == []
    (forward,) = core.release(101.5)
    assert isinstance(forward, Forward)
    assert (forward.entered_s, forward.due_s) == (100, 101.5)


def test_a_scenario_starts_with_the_injector() -> None:
    core = core_with({"type": "drop", "start_s": 5, "end_s": 6}, started_s=100)
    joined(core, 100)
    for number, at_s in enumerate((104.9, 105.0, 105.9, 106.0)):
        feed(core, "c", UP, beat(number), at_s)
    assert out(core, 200) == [beat(0), beat(3)]


def test_messages_due_at_one_time_leave_in_order_of_arrival() -> None:
    core = core_with({"type": "latency", "delay": {"distribution": "trace", "values_s": [3.0]}})
    for client_id in (2, 0, 1):
        feed(core, f"c{client_id}", UP, hello(client_id), 1.0)
    assert out(core, 4.0) == [hello(2), hello(0), hello(1)]


def test_a_declined_task_is_answered_for_the_client() -> None:
    core = core_with({"type": "dropout", "p": 0.0})
    joined(core)
    feed(core, "c", DOWN, task(7, version=3), 1.0, [b"model"])
    (answer,) = core.release(1.0)
    assert isinstance(answer, Forward)
    assert (answer.direction, answer.cargo) == (UP, ())
    assert codec.decode(answer.header) == Error(reason=module.Reason.UNAVAILABLE, task_id=7)


def test_the_delay_of_a_slow_update_counts_from_its_task() -> None:
    core = core_with({"type": "slow", "factor": 2.0})
    joined(core)
    feed(core, "c", DOWN, task(7), 10.0)
    feed(core, "c", UP, update(7), 14.0)
    assert out(core, 14.0) == [task(7)]
    assert core.due_s == 18.0  # 10 + 2 * 4


def test_a_resent_message_is_another_attempt_with_its_own_draws() -> None:
    # With half of the messages lost, 40 attempts of one update meet both fates.
    core = core_with({"type": "drop", "toxicity": 0.5, "messages": ["update"]})
    joined(core)
    for _ in range(40):
        feed(core, "c", UP, update(7), 1.0)
    assert 5 < len(out(core, 1.0)) < 35


def test_draws_depend_on_messages_and_not_on_their_order() -> None:
    def lost(order: list[int]) -> set[int]:
        core = core_with({"type": "drop", "toxicity": 0.5, "messages": ["update"]})
        joined(core)
        for task_id in order:
            feed(core, "c", UP, update(task_id), 1.0)
        return set(order) - {message.task_id for message in out(core, 1.0)}

    order = list(range(1, 30))
    assert lost(order) == lost(order[::-1])
    assert 0 < len(lost(order)) < 29


def test_copies_share_the_frames_of_the_message() -> None:
    core = core_with({"type": "duplicate", "copies": 2})
    joined(core)
    cargo = [b"payload"]
    feed(core, "c", UP, update(1), 1.0, cargo)
    outputs = core.release(1.0)
    assert len(outputs) == 3
    assert all(isinstance(one, Forward) and one.cargo[0] is cargo[0] for one in outputs)


def test_damage_copies_only_the_damaged_frames() -> None:
    header, frames = b"\x00\x00", [b"\x00" * 3, b"\xff" * 2]
    same_header, cargo = damaged(header, frames, [8 * 5 + 1])  # the sixth byte is the first of the second frame
    assert same_header == header
    assert cargo[0] is frames[0]
    assert bytes(memoryview(cargo[1])) == b"\xbf\xff"  # type: ignore[arg-type]
    assert frames == [b"\x00" * 3, b"\xff" * 2]
    assert damaged(header, frames, [0, 15])[0] == b"\x80\x01"


def test_a_corrupted_message_is_forwarded_damaged() -> None:
    core = core_with({"type": "corrupt", "where": "payload", "bits": 1})
    joined(core)
    feed(core, "c", UP, update(1), 1.0, [bytes(100)])
    (forward,) = core.release(1.0)
    assert isinstance(forward, Forward)
    assert forward.header == codec.encode(update(1))
    assert sum(byte.bit_count() for byte in bytes(memoryview(forward.cargo[0]))) == 1  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- connections


def test_messages_on_a_connection_that_ends_are_lost() -> None:
    core = core_with({"type": "latency", "delay": 5.0})
    joined(core)
    joined(core, connection="d", client_id=1)
    for connection in ("c", "d"):
        feed(core, connection, UP, beat(0), 20.0, [b"xyz"])
    core.closed("c")
    core.closed("c")
    assert core.in_flight_messages == 1
    assert core.in_flight_bytes == len(codec.encode(beat(0))) + 3
    assert [forward.connection for forward in core.release(100) if isinstance(forward, Forward)] == ["d"]
    assert (core.in_flight_messages, core.in_flight_bytes) == (0, 0)


def test_a_cut_loses_all_messages_on_the_connection() -> None:
    core = core_with(
        {"type": "latency", "delay": 5.0, "messages": ["heartbeat"]},
        {"type": "disconnect", "messages": ["update"], "down_s": 3.0},
    )
    joined(core)
    feed(core, "c", UP, beat(0), 20.0)
    feed(core, "c", UP, update(1), 20.5)  # its place in the line is after the heartbeat
    feed(core, "c", DOWN, beat(0), 20.5)
    assert out(core, 24.9) == []
    assert out(core, 25.0) == [beat(0), Cut("c", 0, 3.0)]
    assert core.in_flight_messages == 0
    feed(core, "c", UP, beat(1), 25.0)  # it was in a queue of ZeroMQ
    assert out(core, 50.0) == []


def test_a_client_that_returns_too_early_is_cut_again() -> None:
    core = core_with({"type": "disconnect", "messages": ["update"], "down_s": 3.0})
    joined(core)
    feed(core, "c", UP, update(1), 20.0)
    assert out(core, 20.0) == [Cut("c", 0, 3.0)]
    core.closed("c")
    feed(core, "d", UP, hello(), 22.0)
    assert out(core, 22.0) == [Cut("d", 0, 1.0)]
    core.closed("d")
    feed(core, "e", UP, hello(), 23.0)
    assert out(core, 23.0) == [hello()]


def test_a_process_that_returns_ends_its_former_connection() -> None:
    core = core_with()
    joined(core, connection="c")
    feed(core, "d", UP, hello(), 1.0)
    assert out(core, 1.0) == [Close("c"), hello()]
    assert len(core._channels) == 1


def test_the_connection_of_another_process_stays_open_for_its_superseded_error() -> None:
    core = core_with()
    joined(core, connection="c", session="a")
    feed(core, "d", UP, hello(session="b"), 1.0)
    assert out(core, 1.0) == [hello(session="b")]
    assert len(core._channels) == 2


def test_a_new_connection_starts_with_an_empty_line() -> None:
    core = core_with({"type": "bandwidth", "bytes_per_s": 1.0, "messages": ["update"]})
    joined(core)
    feed(core, "c", UP, update(1), 10.0, [bytes(1000)])
    feed(core, "d", UP, hello(), 11.0)
    assert out(core, 11.0) == [Close("c"), hello()]


def test_a_connection_silent_for_several_leases_is_closed() -> None:
    core = core_with()
    joined(core)
    idle_s = module.IDLE_LEASES * module.LEASE_S
    assert core.due_s == idle_s
    feed(core, "c", DOWN, beat(0), 10.0)
    core.release(10.0)
    assert core.release(idle_s) == []
    assert core.release(10.0 + idle_s) == [Close("c")]
    assert core.due_s is None


def test_a_connection_with_messages_in_transit_is_not_closed() -> None:
    core = core_with({"type": "latency", "delay": 1000.0, "messages": ["heartbeat"]})
    joined(core)
    feed(core, "c", UP, beat(0), 0.0)
    idle_s = module.IDLE_LEASES * module.LEASE_S
    assert core.release(idle_s) == []
    assert out(core, 1000.0) == [beat(0)]


def test_the_lease_is_read_from_a_welcome() -> None:
    from support.wire import welcome  # its lease is 10 s

    core = core_with()
    joined(core)
    feed(core, "c", DOWN, welcome(), 5.0)
    core.release(5.0)
    assert core.due_s == 5.0 + module.IDLE_LEASES * 10


# ------------------------------------------------------------------------------------------ changes by the operator


def test_waiting_messages_are_released_in_order_and_lines_start_empty() -> None:
    core = core_with(
        {"type": "latency", "delay": 3600.0, "messages": ["heartbeat"]},
        {"type": "reorder", "delay": 100.0, "messages": ["update"]},
    )
    joined(core)
    feed(core, "c", UP, beat(0), 10.0)
    feed(core, "c", UP, beat(1), 11.0)
    feed(core, "c", UP, update(1), 12.0)  # overtakes them, and would have arrived first
    feed(core, "c", UP, b"garbage", 13.0)
    core.link.change(())
    assert core.release(13.0) == []
    core.end_delays(20.0)
    assert core.due_s == 20.0
    feed(core, "c", UP, beat(2), 20.0)
    forwards = [one for one in core.release(20.0) if isinstance(one, Forward)]
    assert [forward.due_s for forward in forwards] == [20.0, 20.0, 20.0, 13.0, 20.0]  # no toxic applied to garbage
    headers = [codec.encode(message) for message in (update(1), beat(0), beat(1))]
    assert [forward.header for forward in forwards] == [*headers, b"garbage", codec.encode(beat(2))]
    assert core.in_flight_messages == 0


def test_a_busy_line_starts_empty_with_the_remaining_toxics() -> None:
    core = core_with({"type": "bandwidth", "bytes_per_s": 10.0, "messages": ["update"]})
    joined(core)
    feed(core, "c", UP, update(1), 10.0, [bytes(10_000)])
    core.end_delays(20.0)
    assert out(core, 20.0) == [update(1)]
    size = len(codec.encode(update(2)))
    feed(core, "c", UP, update(2), 20.0)
    assert core.due_s == 20.0 + size / 10


def test_a_waiting_cut_is_executed_on_release() -> None:
    core = core_with(
        {"type": "latency", "delay": 1000.0, "messages": ["heartbeat"]},
        {"type": "disconnect", "messages": ["update"], "down_s": 3.0},
    )
    joined(core)
    feed(core, "c", UP, beat(0), 10.0)
    feed(core, "c", UP, update(1), 10.0)
    feed(core, "c", UP, beat(1), 10.0)
    core.end_delays(20.0)
    assert out(core, 20.0) == [beat(0), Cut("c", 0, 3.0)]
    feed(core, "d", UP, hello(), 22.9)
    assert isinstance(core.release(22.9)[0], Cut)
    feed(core, "e", UP, hello(), 23.0)
    assert hello() in out(core, 23.0)


def test_removing_a_toxic_removes_its_count() -> None:
    core = core_with({"type": "drop", "name": "one"}, {"type": "drop", "name": "two"})
    joined(core)
    one, two = core.link.toxics
    core.link.change([one])
    assert dict(core.link.counts.touched) == {"one": 1}
    core.link.change([two, one])
    assert core.link.counts.touched["two"] == 0


# --------------------------------------------------------------------------------------------------------------- bounds


def test_the_injector_is_full_until_enough_bytes_have_left() -> None:
    core = core_with({"type": "latency", "delay": 5.0}, bytes_max=1000)
    joined(core)
    feed(core, "c", UP, beat(0), 20.0, [bytes(900)])
    assert not core.is_full
    feed(core, "c", UP, beat(1), 21.0, [bytes(900)])
    assert core.is_full
    core.release(25.0)
    assert not core.is_full


def test_messages_lost_with_connections_use_no_memory() -> None:
    core = core_with({"type": "latency", "delay": 1e6, "messages": ["heartbeat"]})
    for turn in range(5000):
        feed(core, f"c{turn}", UP, hello(), 1.0)
        core.release(1.0)
        feed(core, f"c{turn}", UP, beat(0), 1.0, [bytes(1000)])
        core.closed(f"c{turn}")
    assert core.in_flight_bytes == 0
    assert len(core._queue) <= module.DROPPED_KEPT + 1
    assert len(core._channels) == 0


def test_only_the_newest_tasks_of_a_client_are_stored() -> None:
    core = core_with()
    joined(core)
    for task_id in range(1, 1000):
        feed(core, "c", DOWN, task(task_id), 1.0)
    assert list(core._by_id[0].tasks) == list(range(1000 - module.TASKS_KEPT, 1000))


def test_acks_and_similar_messages_are_counted_by_direction_and_type() -> None:
    # The delays follow the message number: the third ack has the third one.
    values_s = [1.0, 2.0, 4.0]
    core = core_with({"type": "latency", "delay": {"distribution": "trace", "values_s": values_s}, "messages": ["ack"]})
    joined(core)
    dues_s = []
    for number in range(3):
        at_s = 100.0 * (number + 1)
        feed(core, "c", DOWN, beat(number), at_s)
        feed(core, "c", DOWN, Ack(task_id=5, outcome="accepted", first_outcome="accepted"), at_s)
        assert out(core, at_s) == [beat(number)]
        dues_s.append((core.due_s or 0) - at_s)
        core.release(at_s + 50)
    assert dues_s == values_s
