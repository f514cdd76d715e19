"""A process that hosts a thousand clients, and a real server that is killed and restarted."""

import signal
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from benchmarks.client_scale import InstantWorker

from support.processes import Process, free_port
from support.running import PATIENCE_S, until
from support.scrape import sample
from unstale_client.loop import ClientLoop, Observer
from unstale_client.session import State
from unstale_proto.messages import Ack, Message, Welcome

pytestmark = [pytest.mark.network, pytest.mark.slow]

CLIENTS = 1000


class Thousand(Observer):
    """The clients, in a thread of their own, with the numbers of their welcomes and accepted updates."""

    def __init__(self, port: int) -> None:
        self.welcomes, self.accepted = [0] * CLIENTS, [0] * CLIENTS
        self.loop = ClientLoop(
            server=f"tcp://127.0.0.1:{port}",
            client_ids=range(CLIENTS),
            worker=InstantWorker,
            heartbeat_s=2.0,
            linger_s=2.0,
            observer=self,
        )
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.thread.start()

    def received(self, client_id: int, message: Message, payload_bytes: int) -> None:
        self.welcomes[client_id] += isinstance(message, Welcome)
        self.accepted[client_id] += isinstance(message, Ack) and message.outcome == "accepted"

    def end(self) -> None:
        self.loop.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def clients(port: int) -> Iterator[Thousand]:
    made = Thousand(port)
    yield made
    made.end()


def server_command(port: int, run: Path, gateways: int = 0) -> Sequence[str]:
    return [
        *(
            "server",
            "--server.gateways",
            str(gateways),
            "--json",
            "--address",
            f"tcp://127.0.0.1:{port}",
            "--run",
            str(run),
        ),
        *("--server.http-address", "127.0.0.1:0", "--server.num-examples-max", "null", "--server.lease-s", "60"),
        *("--clients", str(CLIENTS), "--rounds", "1000000", "--trigger", "buffered", "--trigger.k", "50"),
        *("--policy", "fedavg", "--model", "logreg", "--data", "digits", "--evaluate-every", "1000000"),
        *("--training", "gradient", "--partition", "iid", "--partition.min-examples", "1"),
    ]


def clients_in_state(address: str) -> dict[str, int]:
    """As the server reports them; without the states of which there is none."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("unstale_clients{")]
    numbers = {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}
    return {state: number for state, number in numbers.items() if number}


def test_no_client_times_out_or_leaves_when_the_server_is_killed_and_restarted(
    tmp_path: Path, port: int, clients: Thousand
) -> None:
    for start in (1, 2):
        with Process(*server_command(port, tmp_path / "run")) as server:
            address = server.fact()["http_address"]
            until(lambda start=start: min(clients.welcomes) >= start, "a welcome for each client")
            before = clients.accepted.copy()
            until(lambda before=before: all(map(int.__lt__, before, clients.accepted)), "an update of each client")
            assert {session.state for session in clients.loop.sessions} == {State.IN}
            states = clients_in_state(address)
            assert sum(states.values()) == CLIENTS and not states.keys() & {"absent", "lost", "left"}
            server.process.send_signal(signal.SIGKILL)


def test_no_client_leaves_when_gateways_are_aborted_while_all_reconnect(
    tmp_path: Path, port: int, clients: Thousand
) -> None:
    with Process(*server_command(port, tmp_path / "run", gateways=2)) as server:
        address = server.fact()["http_address"]
        until(lambda: min(clients.welcomes) >= 1, "a welcome for each client")
        gateways = psutil.Process(server.process.pid).children
        for number in range(6):
            until(gateways, "a gateway; the next one may be starting")
            aborted = gateways()[number % len(gateways())]
            aborted.send_signal(signal.SIGABRT)  # often before its clients are all back
            aborted.wait(PATIENCE_S)
        before = clients.accepted.copy()
        until(lambda: all(map(int.__lt__, before, clients.accepted)), "an update of each client")
        states = clients_in_state(address)
        assert sum(states.values()) == CLIENTS and not states.keys() & {"absent", "left"}
        assert sample(f"http://{address}", "unstale_gateways_ended_total") == 6
