"""A process that hosts a thousand clients, and a real server that is killed and restarted."""

import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from support.processes import Process, free_port
from support.running import until
from unstale_client.actions import PendingUpdate
from unstale_client.jobs import Job, Ready, Result, Settlement
from unstale_client.loop import ClientLoop, Observer
from unstale_client.session import State
from unstale_proto.messages import Ack, Message, Update, Welcome

pytestmark = [pytest.mark.network, pytest.mark.slow]

CLIENTS = 1000


class InstantWorker:
    """Answers each task with the same delta, in the loop's thread."""

    def __init__(self, post: Callable[[Result], None]) -> None:
        self._post = post

    def start(self) -> None:
        pass

    def submit(self, job: Job | Settlement) -> None:
        if not isinstance(job, Job):
            return
        task = job.task
        payload = np.full(task.payload_bytes // 4, 1e-6, "<f4").tobytes()
        update = Update(
            task_id=task.task_id,
            base_version=task.version,
            kind="delta",
            num_examples=1,
            steps=1,
            loss=1.0,
            learning_rate=task.learning_rate,
            signature=task.signature,
            payload_bytes=task.payload_bytes,
        )
        pending = PendingUpdate(
            run_id=job.welcome.run_id, number=task.number, update=update, parcel=[memoryview(payload)]
        )
        self._post(Ready(job=job, pending=pending))

    def close(self) -> None:
        pass


class Counts(Observer):
    """Welcomes and verdicts by client."""

    def __init__(self) -> None:
        self.welcomes: Counter[int] = Counter()
        self.verdicts: Counter[int] = Counter()

    def received(self, client_id: int, message: Message, payload_bytes: int) -> None:
        self.welcomes[client_id] += isinstance(message, Welcome)
        self.verdicts[client_id] += isinstance(message, Ack) and message.outcome == "accepted"


def server_command(port: int, run: Path) -> Sequence[str]:
    return [
        *("server", "--json", "--address", f"tcp://127.0.0.1:{port}", "--run", str(run)),
        *("--server.http-address", "127.0.0.1:0", "--server.num-examples-max", "null", "--server.lease-s", "60"),
        *("--clients", str(CLIENTS), "--rounds", "1000000", "--trigger", "buffered", "--trigger.k", "50"),
        *("--policy", "fedavg", "--model", "logreg", "--data", "digits", "--evaluate-every", "1000000"),
        *("--training", "sgd", "--partition", "iid", "--partition.min-examples", "1"),
    ]


def states(address: str) -> dict[str, int]:
    """Clients by state, as the server reports them."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    named = [line.split("}") for line in lines if line.startswith("unstale_clients{")]
    return {label.split('"')[1]: int(float(value)) for label, value in named}


def test_no_client_times_out_or_leaves_when_the_server_is_killed_and_restarted(tmp_path: Path) -> None:
    port, counts = free_port(), Counts()
    command = server_command(port, tmp_path / "run")
    loop = ClientLoop(
        server=f"tcp://127.0.0.1:{port}",
        client_ids=range(CLIENTS),
        worker=InstantWorker,
        heartbeat_s=2.0,
        linger_s=2.0,
        observer=counts,
    )
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        for start in (1, 2):
            before = counts.verdicts.copy()
            with Process(*command) as server:
                http = server.fact()["http_address"]
                until(
                    lambda start=start: (
                        len(+counts.welcomes) == CLIENTS == sum(number >= start for number in counts.welcomes.values())
                    ),
                    "a welcome for each client",
                )
                until(
                    lambda before=before: len(+(counts.verdicts - before)) == CLIENTS,
                    "an accepted update of each client",
                )
                assert [session.state for session in loop.sessions] == [State.IN] * CLIENTS
                found = states(http)
                assert {state: found.get(state, 0) for state in ("absent", "lost", "left")} == {
                    "absent": 0,
                    "lost": 0,
                    "left": 0,
                }
                if start == 1:
                    server.process.send_signal(signal.SIGKILL)
                    server.end()
                    continue
                assert thread.is_alive()
                loop.stop()
                thread.join(60.0)
                assert not thread.is_alive()
    finally:
        loop.stop()
        thread.join(60.0)
    assert max(counts.welcomes.values()) <= 4
