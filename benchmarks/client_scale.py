"""Processor time of a client process per update and per heartbeat, over the number of clients that it hosts.

A bare ROUTER in a process of its own welcomes the clients and gives a fixed number of them a task, of 170 parameters,
in turn; each update gives the next client a task. Nothing is trained, so that only the loop, the sessions, the codec
and ZeroMQ count. For heartbeats no client has a task, and all of them send heartbeats at a fixed rate.

    python -m benchmarks.client_scale [--quick] [--clients 4000] [--window-s 10]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import zmq

from benchmarks import report
from unstale_client.actions import PendingUpdate
from unstale_client.jobs import Job, Ready, Result, Settlement
from unstale_client.loop import ClientLoop, Observer
from unstale_client.net import files, sockets
from unstale_proto import codec
from unstale_proto.messages import (
    Ack,
    Heartbeat,
    Hello,
    Message,
    PartitionPlan,
    Task,
    TensorSpec,
    TrainingPlan,
    Update,
    Welcome,
)

DIMENSION = 170
PAYLOAD = bytes(4 * DIMENSION)
SIGNATURE = "0" * 64
COUNTS = (1, 100, 1000, 4000)
LOADS = {"updates": "update, 200/s", "saturated": "update, saturated", "heartbeats": "heartbeat, 200/s"}
TASKS = 16  # outstanding tasks when saturated, at most one for each client
PER_S = 200  # updates or heartbeats of all clients together
WELCOMES_PER_S = 2000
PAIRS = 3


class Figures(NamedTuple):
    """Of one window. loop_s: processor time of the loop's thread alone, without the thread of ZeroMQ."""

    messages: int  # updates or heartbeats
    seconds: float
    processor_s: float
    loop_s: float


# --- the server's process ---


def serve(clients: int, load: str) -> None:
    """Answer clients for ever. Prints the address."""
    files.allow_connections(clients, files_each=1)
    socket = sockets.router(zmq.Context(), heartbeat_s=2.0, linger_s=0.0)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 0)  # the clients leave first
    print(json.dumps({"address": sockets.bind(socket, "tcp://127.0.0.1:0")}), flush=True)
    heartbeat_s = max(clients / PER_S, 0.002) if load == "heartbeats" else 3600.0
    welcome = Welcome(
        client_id=0, run_id="1" * 32, clients=clients, seed=0, version=0, model="logreg", data="digits",
        partition=PartitionPlan(name="iid"), training=TrainingPlan(name="gradient", batch_size=8, steps=1),
        tensors=(TensorSpec(name="w", shape=(DIMENSION,), dtype="float32"),), signature=SIGNATURE,
        heartbeat_s=heartbeat_s, lease_s=86_400.0,
    )  # fmt: skip
    greeted: dict[bytes, None] = {}  # clients without a welcome
    members: set[bytes] = set()
    idle: deque[bytes] = deque()
    task_id = 0
    paced_s = time.monotonic()
    while True:
        if socket.poll(1 if greeted or load == "updates" else None):
            route, header, *_ = socket.recv_multipart()
            message = codec.decode(header)
            if isinstance(message, Hello):
                if route not in members:
                    greeted[route] = None
            elif isinstance(message, Heartbeat):
                socket.send_multipart([route, codec.encode(Heartbeat(number=message.number, version=0))])
            elif isinstance(message, Update):
                ack = Ack(task_id=message.task_id, outcome="accepted", first_outcome="accepted")
                socket.send_multipart([route, codec.encode(ack)])
                idle.append(route)
        # Welcomes are spread, too, so that the heartbeats are.
        now_s = time.monotonic()
        per_s = WELCOMES_PER_S if greeted and load != "heartbeats" else PER_S
        due = int((now_s - paced_s) * per_s)
        paced_s = now_s if not (greeted or idle) else paced_s + due / per_s
        for _ in range(min(due, len(greeted))):
            route = next(iter(greeted))
            del greeted[route]
            members.add(route)
            socket.send_multipart([route, codec.encode(welcome)])
            idle.append(route)
        if greeted or load == "heartbeats":
            continue
        outstanding = clients - len(idle)
        for _ in range(min(len(idle), due if load == "updates" else TASKS - outstanding)):
            task_id += 1
            task = Task(
                task_id=task_id, number=task_id, version=0, learning_rate=0.1, signature=SIGNATURE,
                payload_bytes=len(PAYLOAD),
            )  # fmt: skip
            socket.send_multipart([idle.popleft(), codec.encode(task), PAYLOAD])


# --- the process of the clients ---


class InstantWorker:
    """Posts an update of zeros for each task at once."""

    def __init__(self, post: Callable[[Result], None]) -> None:
        self._post = post

    def start(self) -> None:
        pass

    def submit(self, job: Job | Settlement) -> None:
        if not isinstance(job, Job):
            return
        task = job.task
        update = Update(
            task_id=task.task_id, base_version=task.version, kind="gradient", num_examples=1, steps=1, loss=1.0,
            learning_rate=task.learning_rate, signature=task.signature, payload_bytes=task.payload_bytes,
        )  # fmt: skip
        parcel = [memoryview(bytes(task.payload_bytes))]
        pending = PendingUpdate(run_id=job.welcome.run_id, number=task.number, update=update, parcel=parcel)
        self._post(Ready(job=job, pending=pending))

    def close(self) -> None:
        pass


class Window(Observer):
    """Counts messages for `window_s`, from a second after all clients have joined, then calls `end`."""

    def __init__(self, clients: int, counted: type[Message], window_s: float, end: Callable[[], None]) -> None:
        self._left, self._counted, self._window_s, self._end = set(range(clients)), counted, window_s, end
        self._joined_s: float | None = None
        self._began: tuple[float, float, float] | None = None
        self._messages = 0
        self.figures: Figures | None = None

    def received(self, client_id: int, message: Message, payload_bytes: int) -> None:  # noqa: ARG002  (as inherited)
        if isinstance(message, Welcome):
            self._left.discard(client_id)
            if not self._left and self._joined_s is None:
                self._joined_s = time.monotonic()

    def sent(self, client_id: int, message: Message, payload_bytes: int) -> None:  # noqa: ARG002  (as inherited)
        if self._joined_s is None or not isinstance(message, self._counted) or self.figures is not None:
            return
        now_s = time.monotonic()
        if self._began is None:
            if now_s >= self._joined_s + 1.0:
                self._began = now_s, time.process_time(), time.thread_time()
            return
        self._messages += 1
        began_s, processor_s, loop_s = self._began
        if now_s >= began_s + self._window_s:
            self.figures = Figures(
                self._messages, now_s - began_s, time.process_time() - processor_s, time.thread_time() - loop_s
            )
            self._end()


def host(address: str, clients: int, load: str, window_s: float) -> None:
    """Host the clients for a window. Prints its figures."""
    window = Window(clients, Heartbeat if load == "heartbeats" else Update, window_s, lambda: loop.stop())
    loop = ClientLoop(
        server=address, client_ids=range(clients), worker=InstantWorker, heartbeat_s=2.0, linger_s=0.0, observer=window
    )
    loop.run()
    print(json.dumps(window.figures), flush=True)


# --- the measurement ---


def measure(clients: int, load: str, window_s: float) -> Figures:
    """One window of both processes."""
    common = ("--clients", str(clients), "--load", load)
    with _process("serve", *common) as server:
        assert server.stdout is not None
        try:
            address = json.loads(server.stdout.readline())["address"]
            with _process("host", *common, "--address", address, "--window-s", str(window_s)) as process:
                assert process.stdout is not None
                return Figures(*json.loads(process.stdout.readline()))
        finally:
            server.kill()


def _process(role: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.client_scale", "--role", role, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def markdown(counts: tuple[int, ...], window_s: float, pairs: int) -> str:
    """The figures as a table."""
    rows = []
    for clients in counts:
        for load, name in LOADS.items():
            windows = [measure(clients, load, window_s) for _ in range(pairs)]
            rows.append(
                (
                    f"{clients:,}",
                    name,
                    report.median_and_spread([1e6 * one.processor_s / one.messages for one in windows], ",.0f"),
                    f"{statistics.median(1e6 * one.loop_s / one.messages for one in windows):,.0f}",
                    f"{statistics.median(one.messages / one.seconds for one in windows):,.0f}",
                )
            )
    return report.table(("clients", "of each", "processor time, us", "loop's thread, us", "messages/s"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short window each")
    parser.add_argument("--clients", type=int, help=f"default: each of {COUNTS}")
    parser.add_argument("--window-s", type=float, default=5.0)
    parser.add_argument("--role", choices=("serve", "host"), help=argparse.SUPPRESS)
    parser.add_argument("--load", choices=tuple(LOADS), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    own: Any = parser.parse_args()
    if own.role == "serve":
        serve(own.clients, own.load)
    elif own.role == "host":
        host(own.address, own.clients, own.load, own.window_s)
    else:
        counts = COUNTS if own.clients is None else (own.clients,)
        print(markdown(counts, 1.0 if own.quick else own.window_s, 1 if own.quick else PAIRS))


if __name__ == "__main__":
    main()
