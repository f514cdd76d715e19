"""Models and updates of 8 MiB over real sockets that break, and processes that are killed. Source: PROTOCOL.md 4.7."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cuts import Link
from support.large import MODEL_BYTES, RunningClient, wide
from support.processes import START_S, Process, free_port
from support.running import PATIENCE_S, RunningServer, until
from support.scrape import sample
from support.wire import RawClient, update_of
from unstale_proto.messages import Ack, Chunk, Credit, Heartbeat, Task
from unstale_proto.transfer import checksum

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_a_large_model_and_its_update_are_exchanged(tmp_path: Path) -> None:
    settings = wide(rounds=3)
    with RunningServer(settings) as server, RunningClient(settings, server.address, tmp_path):
        assert server.end().versions == 3
    assert not list(tmp_path.glob("*.model"))


def test_clients_of_one_process_fetch_a_model_once(tmp_path: Path) -> None:
    settings = wide(clients=4, trigger={"name": "sync"})
    with (
        RunningServer(settings) as server,
        Link(server.address) as link,
        RunningClient(settings, link.address, tmp_path),
    ):
        assert server.end().versions == 1
    assert link.passed < 5.1 * MODEL_BYTES  # four updates and one model


def test_over_a_link_that_is_cut_ten_times_little_is_sent_twice(tmp_path: Path) -> None:
    settings = wide()
    with (
        RunningServer(settings) as server,
        Link(server.address, every_bytes=MODEL_BYTES // 6, cuts=10) as link,
        RunningClient(settings, link.address, tmp_path),
    ):
        assert server.end().versions == 1
    assert link.cuts_left == 0
    assert link.passed < 1.6 * 2 * MODEL_BYTES  # a model down, an update up


def announced(task: Task, payload: bytes) -> Any:
    return update_of(task, checksum=checksum([memoryview(payload)]))


def upload(client: RawClient, task: Task, payload: bytes, alive: Sequence[RawClient] = ()) -> Ack:
    """Send an update as credit arrives, and receive the verdict. alive: the clients that send heartbeats meanwhile."""
    client.say(announced(task, payload))
    position, beats = 0, 0
    while True:
        while not client.socket.poll(500):
            beats += 1
            assert 0.5 * beats < PATIENCE_S, "no credit comes"
            for each in (client, *alive):
                each.say(Heartbeat(number=beats, version=0))
        message, _ = client.hear_any()
        if isinstance(message, Ack):
            return message
        if not isinstance(message, Credit):
            continue  # a task or a heartbeat
        position = message.have if message.again else position
        while position < message.until:
            end = min(position + 4 * 1024 * 1024, message.until)
            client.say(Chunk(task_id=task.task_id, offset=position), [memoryview(payload)[position:end]])
            position = end


def test_a_slow_and_a_dead_client_do_not_hold_up_the_others() -> None:
    settings = wide(clients=4, rounds=1000)
    payload = np.full(MODEL_BYTES // 4, 1e-3, dtype="<f4").tobytes()
    with RunningServer(settings) as server, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address, client_id)) for client_id in range(4)]
        for client in clients:
            client.join()
        tasks = [client.hear(Task) for client in clients]
        stuck, others = zip(clients[:2], tasks[:2], strict=True), zip(clients[2:], tasks[2:], strict=True)
        for client, task in stuck:
            client.say(announced(task, payload))  # they have both places, and send little or nothing
            assert client.hear(Credit).until > 0
        clients[0].say(Chunk(task_id=tasks[0].task_id, offset=0), [memoryview(payload)[:4]])
        for client, task in others:
            assert upload(client, task, payload, clients).outcome == "accepted"
        assert sample(server.http, "unstale_transfers", direction="received", state="waiting") == 0


# --------------------------------------------------------------------------------------------------------------- killed


def server_command(port: int, folder: Path) -> list[str]:
    return [
        *("server", "--json", "--address", f"tcp://127.0.0.1:{port}", "--run", str(folder)),
        *("--server.http-address", "null"),  # its port is one for all, and two of these may run at once
        *("--clients", "1", "--rounds", "1", "--trigger", "async", "--policy", "fedbuff"),
        *("--model", "support.factories:wide", "--partition", "iid"),
        # It leaves when its client has heard of the end, however busy the machine is.
        *("--server.heartbeat-s", "0.3", "--server.lease-s", "20", "--server.linger-s", "40"),
    ]


def client_command(server: str, folder: Path) -> list[str]:
    return [*("client", "--server", server, "--client.directory", str(folder)), *("--model", "support.factories:wide")]


def start(arguments: list[str]) -> Process:
    return Process(*arguments, python_path=Path(__file__).parents[1])


def sizes(folder: Path, pattern: str) -> list[int]:
    return [path.stat().st_size for path in folder.glob(pattern)]


CUTS = {
    "upload": (MODEL_BYTES + 5 * 1024 * 1024, "run/transfers/0-1.part", MODEL_BYTES),
    "download": (5 * 1024 * 1024, "kept/*.model", 2 * MODEL_BYTES),
}
"""After how many bytes the link stops; where what has come lies; what there is to come, had nothing of that been kept.
"""


@pytest.mark.parametrize("killed", ["server", "client"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_transfer_resumes_after_a_side_was_killed(cut: str, killed: str, tmp_path: Path) -> None:
    run, kept, port = tmp_path / "run", tmp_path / "kept", free_port()
    hold_bytes, part, to_come_bytes = CUTS[cut]
    with ExitStack() as stack:
        server = stack.enter_context(start(server_command(port, run)))
        link = stack.enter_context(Link(f"tcp://127.0.0.1:{port}", hold_bytes=hold_bytes))
        client = stack.enter_context(start(client_command(link.address, kept)))
        assert link.held.wait(START_S)
        until(lambda: sizes(tmp_path, part) > [0])
        (before_bytes,) = sizes(tmp_path, part)
        if killed == "server":
            server.process.kill()
            server.end()
            server = stack.enter_context(start(server_command(port, run)))
        else:
            client.process.kill()
            client.end()
            client = stack.enter_context(start(client_command(link.address, kept)))
        passed = link.passed
        link.go_on()
        assert server.end() == 0, server.errors()
        assert client.end() == 0, client.errors()
        assert link.passed - passed < to_come_bytes - before_bytes + 1024 * 1024
        assert sizes(tmp_path, "run/transfers/*") == sizes(tmp_path, "kept/*.model") == []
