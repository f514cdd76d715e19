"""Each toxic on real connections: losses, order and damage. No test here measures time."""

from typing import Any

import pytest
import zmq

from support.running import PATIENCE_S
from support.wire import RawClient
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Bye, Error, Heartbeat, Hello, Update

pytestmark = pytest.mark.network

SIGNATURE = "0" * 64


def update(task_id: int, payload_bytes: int = 4) -> Update:
    return Update(
        task_id=task_id, base_version=0, kind="gradient", num_examples=1, steps=1, loss=1.0, learning_rate=0.1,
        signature=SIGNATURE, payload_bytes=payload_bytes,
    )  # fmt: skip


def say_updates(client: RawClient, count: int) -> None:
    for task_id in range(1, count + 1):
        client.say(update(task_id), [bytes(4)])


def ids(messages: list[Any]) -> list[int]:
    return [message.task_id for message in messages]


def test_without_toxics_all_messages_pass_in_order_and_unchanged(inject: Any) -> None:
    injecting = inject()
    client = injecting.joined()
    payload = [bytes(range(256)) * 4096, b"", b"abcd"]
    client.say(update(1, 1_048_580), payload)
    client.say_bytes(b"garbage")
    client.say(Heartbeat(number=0, version=0))
    route, header, *frames = injecting.server.receives_bytes()
    assert route == injecting.server.routes[0]
    assert header == codec.encode(update(1, 1_048_580))
    assert frames == payload
    assert injecting.server.receives_bytes()[1:] == [b"garbage"]
    assert injecting.server.receives() == Heartbeat(number=0, version=0)
    injecting.server.gives(0, task_id=2, frames=payload[:1])
    assert client.hear_any()[1] == payload[:1]


def test_the_server_sees_a_connection_for_each_client(inject: Any) -> None:
    injecting = inject()
    clients = [injecting.joined(client_id) for client_id in range(3)]
    assert len(set(injecting.server.routes.values())) == 3
    for client_id, client in enumerate(clients):
        injecting.server.sends(client_id, Heartbeat(number=client_id, version=0))
        assert client.hear(Heartbeat).number == client_id
    assert injecting.numbers().connections == 3


def test_a_client_without_a_hello_is_answered_by_the_server(inject: Any) -> None:
    injecting = inject({"type": "drop"})
    client = injecting.client()
    client.say(Heartbeat(number=0, version=0))
    route, _ = injecting.server.receives_bytes()
    answer = Error(reason=Reason.HELLO_FIRST)
    injecting.server.socket.send_multipart([route, codec.encode(answer)])
    assert client.hear(Error) == answer


# ---------------------------------------------------------------------------------------------------------- the toxics


def test_latency_keeps_the_order_of_a_line(inject: Any) -> None:
    injecting = inject(
        {"type": "latency", "messages": ["update"], "delay": {"distribution": "uniform", "high_s": 0.02}}
    )
    client = injecting.joined()
    say_updates(client, 20)
    assert ids(injecting.server_receives_until_bye(client)) == list(range(1, 21))
    numbers = injecting.numbers()
    assert numbers.delay_s > 0
    assert numbers.faults == {"latency": 20}


def test_latency_does_not_delay_another_client(inject: Any) -> None:
    # The first one sent is delivered last, as its delay is longer.
    delay = {"type": "latency", "messages": ["update"]}
    injecting = inject({**delay, "clients": [0], "delay": 0.5}, {**delay, "clients": [1], "delay": 0.01})
    slow, fast = injecting.joined(0), injecting.joined(1)
    slow.say(update(1), [bytes(4)])
    slow.say(Bye())
    fast.say(update(2), [bytes(4)])
    assert ids([injecting.server.receives(), injecting.server.receives()]) == [2, 1]


def test_bandwidth_spaces_the_messages_of_a_line(inject: Any) -> None:
    injecting = inject({"type": "bandwidth", "bytes_per_s": 1e6, "direction": "up", "messages": ["update"]})
    client = injecting.joined()
    say_updates(client, 5)
    assert ids(injecting.server_receives_until_bye(client)) == [1, 2, 3, 4, 5]
    size = len(codec.encode(update(1))) + 4
    assert injecting.numbers().delay_s >= 5 * size / 1e6  # each waits at least for its own bytes


def test_drop_loses_only_the_selected_messages(inject: Any) -> None:
    injecting = inject({"type": "drop", "toxicity": 0.5, "messages": ["update"]})
    client = injecting.joined()
    say_updates(client, 40)
    heard = ids(injecting.server_receives_until_bye(client))
    assert heard == sorted(heard)
    assert len(heard) == 40 - injecting.numbers().faults["drop"]
    assert 0 < len(heard) < 40


def test_dropout_by_rounds_declines_for_the_client(inject: Any) -> None:
    injecting = inject({"type": "dropout", "p": 0.0})
    client = injecting.joined()
    injecting.server.gives(0, task_id=7, version=3)
    assert injecting.server.receives() == Error(reason=Reason.UNAVAILABLE, task_id=7)
    assert injecting.client_receives_until_beat(client) == []


def test_dropout_in_time_loses_messages_during_an_absence(inject: Any, tmp_path: Any) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,start_s,end_s\n" + "".join(f"{client},1e6,2e6\n" for client in range(4)))
    injecting = inject({"type": "dropout", "trace": str(trace), "messages": ["update", "task"]})
    client = injecting.joined()
    say_updates(client, 3)
    assert injecting.server_receives_until_bye(client) == []
    injecting.server.gives(0, task_id=1)
    assert injecting.client_receives_until_beat(client) == []


def test_slow_delays_an_update_and_its_line(inject: Any) -> None:
    injecting = inject({"type": "slow", "factor": 3.0})
    client = injecting.joined()
    injecting.server.gives(0, task_id=1)
    task, _ = client.task()
    client.say(update(task.task_id), [bytes(4)])
    assert ids(injecting.server_receives_until_bye(client)) == [1]
    assert injecting.numbers().faults == {"slow": 1}
    assert injecting.numbers().delay_s > 0


def test_duplicate_sends_a_message_twice(inject: Any) -> None:
    injecting = inject({"type": "duplicate", "messages": ["update"]})
    client = injecting.joined()
    client.say(update(1, 8), [b"abcd", b"efgh"])
    heard = [injecting.server.receives_bytes()[1:] for _ in range(2)]
    assert heard[0] == heard[1] == [codec.encode(update(1, 8)), b"abcd", b"efgh"]
    assert injecting.server_receives_until_bye(client) == []


def test_reorder_lets_other_messages_overtake(inject: Any) -> None:
    injecting = inject(
        {
            "type": "reorder",
            "messages": ["update"],
            "toxicity": 0.5,
            "delay": {"distribution": "constant", "value_s": 0.3},
        }
    )
    client = injecting.joined()
    say_updates(client, 12)
    heard = [injecting.server.receives() for _ in range(12)]
    assert sorted(ids(heard)) == list(range(1, 13))
    assert ids(heard) != list(range(1, 13))


@pytest.mark.parametrize("where", ["header", "payload"])
def test_corrupt_damages_one_bit_of_one_part(where: str, inject: Any) -> None:
    injecting = inject({"type": "corrupt", "where": where, "messages": ["update"]})
    client = injecting.joined()
    payload = [bytes(4096), b"\xff" * 4096]
    client.say(update(1, 8192), payload)
    _, header, *frames = injecting.server.receives_bytes()
    sent = b"".join([codec.encode(update(1, 8192)), *payload])
    heard = b"".join([header, *frames])
    flipped = [place for place, (one, other) in enumerate(zip(sent, heard, strict=True)) if one != other]
    assert len(flipped) == 1
    assert (flipped[0] < len(header)) == (where == "header")
    assert (sent[flipped[0]] ^ heard[flipped[0]]).bit_count() == 1


def test_a_blackout_of_messages_loses_them(inject: Any) -> None:
    injecting = inject(
        {"type": "blackout", "start_s": 0.0, "end_s": 1e6, "messages": ["update", "task"], "clients": [0]}
    )
    client, other = injecting.joined(0), injecting.joined(1)
    say_updates(client, 3)
    other.say(update(9), [bytes(4)])
    assert ids(injecting.server_receives_until_bye(other)) == [9]
    assert injecting.server_receives_until_bye(client) == []


def test_disconnect_cuts_the_connection_and_the_client_reconnects(inject: Any) -> None:
    injecting = inject({"type": "disconnect", "messages": ["update"], "clients": [0]})
    client = injecting.joined()
    first_route = injecting.server.routes[0]
    breaks = client.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    client.say(update(1), [bytes(4)])  # the connection breaks here, and this message is lost
    assert breaks.poll(PATIENCE_S * 1000)
    breaks.close(linger=0)
    # ZeroMQ connects again by itself; the server sees an unknown connection.
    client.say(Heartbeat(number=1, version=0))
    route, header = injecting.server.receives_bytes()
    assert route != first_route
    assert codec.decode(header) == Heartbeat(number=1, version=0)
    client.say_hello()
    hello = injecting.server.receives()
    assert isinstance(hello, Hello)
    injecting.server.sends(0, Ack(task_id=1, outcome="accepted", first_outcome="accepted"))
    assert client.hear(Ack).task_id == 1


# ------------------------------------------------------------------------------------------------------- the tcp layer


def test_the_tcp_layer_leaves_bytes_unchanged(inject: Any) -> None:
    injecting = inject(tcp=True)
    client = injecting.joined()
    payload = [bytes(range(256)) * 4096 for _ in range(4)]
    for task_id in range(1, 4):
        client.say(update(task_id, 4 * 2**20), payload)
        assert injecting.server.receives_bytes()[2:] == payload
        injecting.server.gives(0, task_id, frames=payload)
        assert client.hear_any()[1] == payload


def test_a_blackout_of_bytes_delays_them_and_loses_none(inject: Any) -> None:
    injecting = inject({"type": "blackout", "layer": "tcp", "start_s": 0.0, "end_s": 0.4, "direction": "up"})
    client = injecting.client()
    client.say_hello()
    say_updates(client, 5)
    heard = [injecting.server.receives() for _ in range(6)]
    assert ids(heard[1:]) == [1, 2, 3, 4, 5]
    assert injecting.numbers().faults["blackout"] >= 1


def test_a_process_that_reconnects_has_its_former_tcp_connection_reset(inject: Any) -> None:
    injecting = inject(tcp=True)
    former = injecting.joined(0)
    breaks = former.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    injecting.joined(0)
    assert breaks.poll(PATIENCE_S * 1000)
    breaks.close(linger=0)


def test_a_bandwidth_of_bytes_loses_no_bytes(inject: Any) -> None:
    injecting = inject({"type": "bandwidth", "layer": "tcp", "bytes_per_s": 2e6, "clients": [0]})
    client, other = injecting.joined(0), injecting.joined(1)
    for one in (client, other):
        one.say(update(1, 400_000), [bytes(400_000)])
        assert len(injecting.server.receives_bytes()[2]) == 400_000
    assert injecting.numbers().faults["bandwidth"] >= 400_000 // (64 * 1024)
