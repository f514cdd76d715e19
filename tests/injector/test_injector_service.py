"""The injector as a whole: its addresses, a server that starts late or ends, its bounds, and its end."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import zmq

from support.processes import Process, free_port
from support.running import PATIENCE_S
from unstale.config import Settings
from unstale.config.scenario import conditions
from unstale.errors import UserError
from unstale.injector import proxy
from unstale.injector.service import Injector
from unstale_proto import codec
from unstale_proto.messages import Bye, Heartbeat

BYE = codec.encode(Bye())

pytestmark = pytest.mark.network


def settings(**changes: Any) -> Settings:
    section = {"address": "tcp://127.0.0.1:0", "http_address": None, "upstream": f"tcp://127.0.0.1:{free_port()}"}
    return Settings(clients=2, injector={**section, **changes})


def test_an_unreachable_server_gets_a_one_sentence_error() -> None:
    upstream = f"tcp://127.0.0.1:{free_port()}"
    injector = Injector(settings(upstream=upstream, patience_s=0.05))
    with pytest.raises(UserError) as refused:
        injector.run()
    assert str(refused.value) == f"no server answered at {upstream} for 0.05 s; start it, or check injector.upstream"


@pytest.mark.parametrize("tcp", [False, True])
def test_an_address_in_use_gets_a_one_sentence_error(tcp: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            UserError,
            match=rf"^injector\.address {address} .*in use.*; stop the program that uses it, or choose another",
        ):
            Injector(settings(address=address, tcp=tcp))


@pytest.mark.parametrize("tcp", [False, True])
def test_an_address_of_another_machine_cannot_be_bound(tcp: bool) -> None:
    # 192.0.2.0/24 is reserved for documentation: no machine has it.
    with pytest.raises(UserError, match=r"^injector\.address '?tcp://192\.0\.2\.1:5556'? cannot be (bound|used) \("):
        Injector(settings(address="tcp://192.0.2.1:5556", insecure=True, tcp=tcp))


def test_an_invalid_upstream_address_gets_a_one_sentence_error() -> None:
    with pytest.raises(UserError, match=r"^injector\.upstream 'tcp://127\.0\.0\.1:no' is not an address \("):
        Injector(
            settings().model_copy(
                update={"injector": settings().injector.model_copy(update={"upstream": "tcp://127.0.0.1:no"})}
            )
        )


def test_a_missing_scenario_gets_an_error_before_the_start() -> None:
    with pytest.raises(UserError, match=r"^unknown scenario 'lt'"):
        Injector(settings().model_copy(update={"scenario": Settings(scenario={"name": "lt"}).scenario}))


def test_each_toxic_of_a_scenario_has_the_clients_of_its_group(tmp_path: Path) -> None:
    toxics = [{"type": "drop", "clients": {"share": 0.5}}, {"type": "latency", "delay": 0}]
    groups = [{"name": "one", "clients": ["0-3"], "toxics": toxics}, {"name": "two", "toxics": toxics[1:]}]
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps({"groups": groups}))
    chosen = Settings(clients=10, scenario={"name": str(file)})
    some = frozenset(range(4))
    assert [one.group for one in conditions(chosen).toxics] == [some, some, frozenset(range(10))]


def test_messages_sent_before_the_server_starts_reach_it(inject: Any, server: Any) -> None:
    address = server.address
    server.socket.unbind(address)
    injecting = inject()
    client = injecting.client()
    client.say_hello()
    client.say(Bye())
    injecting.until(lambda numbers: numbers.in_flight_messages == 2)
    server.socket.bind(address)
    assert server.receives().type == "hello"
    assert server.receives() == Bye()


def test_only_a_few_messages_wait_for_an_unreachable_server(inject: Any, server: Any) -> None:
    address = server.address
    server.socket.unbind(address)
    injecting = inject()
    client = injecting.client()
    client.say_hello()
    for number in range(2 * proxy.WAITING_MAX):
        client.say(Heartbeat(number=number, version=0))
    numbers = injecting.until(lambda numbers: numbers.overflowed >= proxy.WAITING_MAX + 1)
    assert (numbers.in_flight_messages, numbers.overflowed) == (proxy.WAITING_MAX, proxy.WAITING_MAX + 1)
    server.socket.bind(address)
    assert server.receives().type == "hello"


def test_the_injector_stores_at_most_its_bound_and_loses_no_message(inject: Any) -> None:
    # Each update is delayed, so they accumulate up to the bound; then the injector reads only after some have left.
    injecting = inject(
        {"type": "latency", "delay": 0.05, "messages": ["bye"]}, in_flight_bytes_max=1024 * 1024, clients=2
    )
    client = injecting.joined()
    most = 0
    sender = threading.Thread(
        target=lambda: [client.socket.send_multipart([BYE, bytes(300_000)]) for _ in range(40)], daemon=True
    )
    sender.start()
    for _ in range(40):
        assert len(injecting.server.receives_bytes()[2]) == 300_000
        most = max(most, injecting.numbers().in_flight_bytes)
    sender.join(PATIENCE_S)
    assert 300_000 <= most <= 1024 * 1024 + 2 * 300_100


def test_the_end_of_a_client_closes_its_connection_to_the_server(inject: Any) -> None:
    injecting = inject()
    client = injecting.joined()
    client.socket.close()
    beat = Heartbeat(number=0, version=0)

    def is_unroutable(_: object) -> bool:
        try:
            injecting.server.sends(0, beat)
        except zmq.ZMQError as error:
            return bool(error.errno == zmq.EHOSTUNREACH)
        return False

    injecting.until(is_unroutable)
    assert injecting.numbers().connections == 0


def test_the_final_event_reports_the_counts(inject: Any) -> None:
    injecting = inject({"type": "drop", "messages": ["heartbeat"]})
    client = injecting.joined()
    client.say(Heartbeat(number=0, version=0))
    client.say(Bye())
    assert injecting.server.receives() == Bye()
    end = injecting.stop()
    assert end is not None
    assert (end.up, end.down, end.faults) == (2, 1, {"drop": 1})
    assert not [thread for thread in threading.enumerate() if thread.name in ("proxy", "relay", "http")]


def test_the_command_listens_reports_and_ends(server: Any) -> None:
    with Process(
        "inject", "--json", "--injector.address", "tcp://127.0.0.1:0", "--injector.http-address", "127.0.0.1:0",
        "--injector.upstream", server.address, "--clients", "3", "--scenario", "lte",
    ) as process:  # fmt: skip
        listening = process.fact()
        assert listening["event"] == "listening"
        assert listening["address"].startswith("tcp://127.0.0.1:")
        process.process.terminate()
        end = process.fact()  # the last, or the one just before it
        assert (end["event"], end["up"], end["down"]) == ("injected", 0, 0)
        assert process.end() == 0


def test_a_command_line_mistake_gets_a_one_sentence_error() -> None:
    with Process("inject", "--scenario", "nowhere.yaml") as process:
        assert process.end() == 2
        assert process.errors().count("\n") == 1
        assert process.errors().startswith("unstale: cannot read scenario nowhere.yaml")
