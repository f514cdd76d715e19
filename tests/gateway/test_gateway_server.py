"""Servers whose connections are in gateway processes, over real sockets."""

import errno
import os
import signal
import socket
import threading
from contextlib import ExitStack

import numpy as np
import psutil
import pytest

from support.running import PATIENCE_S, RunningServer, small, until
from support.scrape import sample
from support.wire import RawClient, update_of
from unstale.config import Settings
from unstale.errors import UserError
from unstale.gateway import remote
from unstale_proto.messages import Ack, Task

pytestmark = pytest.mark.network

NUMBERS = 650  # of the model
ONES = np.ones(NUMBERS, np.float32)


def settings(gateways: int = 1, **changes: object) -> Settings:
    return small(**{"clients": 1, "rounds": 5, "server": {"gateways": gateways}, **changes})


def digest_after_training(gateways: int) -> str:
    """Digest of the model after the updates of one client."""
    with RunningServer(settings(gateways)) as server, RawClient(server.address) as client:
        client.join()
        for number in range(5):
            task, _ = client.task()
            assert client.answer(task, ONES * np.float32(0.01 * (1 + number))).outcome == "accepted"
        assert client.leave_after_stop().reason == "finished"
        return server.end().model_digest


@pytest.mark.parametrize("gateways", [1, 3])
def test_a_run_through_gateways_has_the_digest_of_one_without(gateways: int) -> None:
    assert digest_after_training(gateways) == digest_after_training(0)


def pids(server: RunningServer) -> list[int]:
    port = server.server._port
    assert isinstance(port, remote.GatewayPort)
    return [child._process.pid for child in port._children()]


def rejoined(client: RawClient) -> Task:
    """The task of a client that has lost its connection, and whose next message waits for another one."""
    client.join()
    return client.task()[0]


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL], ids=["as by libzmq", "killed"])
def test_a_gateway_that_ends_is_started_again_and_the_run_goes_on(number: signal.Signals) -> None:
    with RunningServer(settings(rounds=3)) as server, RawClient(server.address) as client:
        client.join()
        task, _ = client.task()
        for ended in range(1, 3):
            (pid,) = pids(server)
            os.kill(pid, number)
            until(lambda count=ended: sample(server.http, "unstale_gateways_ended_total") == count)
            until(lambda old=pid: pids(server) not in ([], [old]))
            task = rejoined(client)
            assert client.answer(task, ONES).outcome == "accepted"
            task, _ = client.task()
        assert client.answer(task, ONES).outcome == "accepted"
        assert client.leave_after_stop().reason == "finished"
        assert server.end().updates["accepted"] == 3


def test_gateways_end_with_their_server() -> None:
    with RunningServer(settings(2)) as server:
        gateways = [psutil.Process(pid) for pid in pids(server)]
        assert len(gateways) == 2
    assert not any(gateway.is_running() for gateway in gateways)


def test_connections_of_all_gateways_are_counted() -> None:
    with RunningServer(settings(3, clients=9, min_clients=9)) as server:
        with ExitStack() as stack:
            for client_id in range(9):
                stack.enter_context(RawClient(server.address, client_id)).join()
            until(lambda: sample(server.http, "unstale_connections", state="client") == 9)
        until(lambda: sample(server.http, "unstale_connections", state="client") == 0)


@pytest.mark.parametrize("memory_bytes", [3 * 4 * NUMBERS, 4 * NUMBERS], ids=["full ring", "longer than half"])
def test_payloads_pass_when_the_shared_memory_is_small(memory_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MEMORY_BYTES", memory_bytes)
    with RunningServer(settings(clients=8, min_clients=8, rounds=100)) as server, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address, client_id)) for client_id in range(8)]
        for client in clients:
            client.join()
        tasks = [client.task()[0] for client in clients]
        for client, task in zip(clients, tasks, strict=True):
            client.say(update_of(task), [ONES.tobytes()])
        for client in clients:
            assert client.hear(Ack).outcome == "accepted"


def test_an_address_in_use_is_one_sentence() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UserError, match=r"^server\.address tcp://127\.0\.0\.1:\d+ is in use; stop the program"):
            RunningServer(small(server={"gateways": 1, "address": address}))


def test_a_host_of_another_machine_is_one_sentence() -> None:
    address = "tcp://192.0.2.1:5555"
    with pytest.raises(UserError, match=r"^server\.address 'tcp://192\.0\.2\.1:5555' cannot be bound \("):
        RunningServer(small(server={"gateways": 1, "address": address, "insecure": True}))


def test_a_gateway_that_cannot_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstale.gateway.child.PROGRAM", "unstale.no_such_module")
    with pytest.raises(UserError, match=r"^a gateway \(server\.gateways\) ended as it started with exit code 1$"):
        RunningServer(settings())


def test_a_gateway_that_the_system_cannot_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningServer(settings()) as server, RawClient(server.address) as client:
        client.join()
        client.task()
        (pid,) = pids(server)
        refused = threading.Event()

        def refuse(*_: object, **__: object) -> None:
            refused.set()
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

        with monkeypatch.context() as during:
            during.setattr("unstale.gateway.child.subprocess.Popen", refuse)
            os.kill(pid, signal.SIGKILL)
            assert refused.wait(PATIENCE_S)
            assert pids(server) == []
        until(lambda: pids(server) not in ([], [pid]))
        assert rejoined(client).version == 0
