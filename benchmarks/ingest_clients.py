"""Clients that answer at once, for `benchmarks.ingest`: one DEALER each, all in this process, and no training.

They speak the protocol of `proto/PROTOCOL.md`: hello, then for each task one prepared update under its id. They are
the same for the real server and for the bare one, whose tasks look alike.
"""

import secrets
import time

import msgpack
import numpy as np
import zmq

from unstale_client.net import sockets
from unstale_proto import codec, limits, payload
from unstale_proto.messages import Hello, Update

FRAMES_KEPT = 64 * 1024  # bytes; as in the servers
PATIENCE_MS = 60_000


class Client:
    """One client. `answer` sends the update of the last task; until then the client is idle with a task."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, client_id: int, dimension: int) -> None:
        self.socket = sockets.dealer(context, heartbeat_s=2.0, linger_s=0.0)
        sockets.connect(self.socket, address)
        vector_d = np.random.default_rng(client_id).standard_normal(dimension).astype("<f4") * 1e-6
        self._update = [
            zmq.Frame(frame, copy=len(frame) < FRAMES_KEPT) for frame in payload.split(vector_d.data.cast("B"))
        ]
        template = Update(
            task_id=1, base_version=0, kind="gradient", num_examples=8, steps=1, loss=1.0, learning_rate=0.1,
            signature="0" * 64, payload_bytes=4 * dimension,
        )  # fmt: skip
        self._header = {"protocol": limits.PROTOCOL_VERSION, "type": "update", **template.model_dump()}
        self.socket.send(codec.encode(Hello(client_id=client_id, session=secrets.token_hex(16))))

    def receive(self) -> str | None:
        """Receive a message, if any, and return its type. A task prepares its update."""
        try:
            received = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        while self.socket.getsockopt(zmq.RCVMORE):
            self.socket.recv(copy=False)
        header = msgpack.unpackb(received)
        if header["type"] == "task":
            self._header["task_id"] = header["task_id"]
            self._header["base_version"] = header["version"]
            self._header["signature"] = header["signature"]
        type_: str = header["type"]
        return type_

    def answer(self) -> None:
        """Send the update."""
        self.socket.send(msgpack.packb(self._header), zmq.SNDMORE)
        last = len(self._update) - 1
        for position, frame in enumerate(self._update):
            self.socket.send(frame, zmq.SNDMORE if position < last else 0, copy=False)


class Clients:
    """The clients of one server, all idle between the calls."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, *, count: int, dimension: int) -> None:
        self.sent = 0
        self._clients = [Client(context, address, client_id, dimension) for client_id in range(count)]
        self._poller = zmq.Poller()
        self._by_socket = {client.socket: client for client in self._clients}
        for client in self._clients:
            self._poller.register(client.socket, zmq.POLLIN)
        self._tasks(count)

    def updates_per_s(self, warm_s: float, window_s: float) -> float:
        """Answer every task at once for a while; return the updates accepted per second after the warm-up.

        Each new task counts as the acceptance of the update before it. The clock runs from one task to another.
        """
        self._answer(self._clients)
        self._exchange(warm_s)
        started_s = self._exchange(0.0)[1]
        answered, ended_s = self._exchange(window_s)
        self._tasks(len(self._clients))
        return answered / (ended_s - started_s)

    def ack_s(self, pause_s: float) -> list[float]:
        """Each client in turn sends one update to an otherwise idle server; seconds to its ack."""
        return [self._one_ack_s(client, pause_s) for client in self._clients]

    def close(self) -> None:
        for client in self._clients:
            client.socket.close()

    def _one_ack_s(self, client: Client, pause_s: float) -> float:
        time.sleep(pause_s)
        sent_s = time.perf_counter()
        self._answer([client])
        while (kind := client.receive()) != "ack":
            assert kind is None, f"expected an ack, got {kind}"
            assert client.socket.poll(PATIENCE_MS), "the server no longer answers"
        took_s = time.perf_counter() - sent_s
        self._tasks(1)
        return took_s

    def _answer(self, clients: list[Client]) -> None:
        for client in clients:
            client.answer()
        self.sent += len(clients)

    def _exchange(self, seconds: float) -> tuple[int, float]:
        """Answer tasks for so long, at least one; return their number and the arrival of the last."""
        answered = 0
        end_s = time.perf_counter() + seconds
        while True:
            for client in self._ready():
                while (kind := client.receive()) is not None:
                    assert kind in ("task", "ack"), kind
                    if kind == "task":
                        came_s = time.perf_counter()
                        self._answer([client])
                        answered += 1
            if answered and time.perf_counter() >= end_s:
                return answered, came_s

    def _tasks(self, expected: int) -> None:
        """Wait until so many tasks have arrived, without an answer."""
        while expected:
            for client in self._ready():
                while (kind := client.receive()) is not None:
                    expected -= kind == "task"

    def _ready(self) -> list[Client]:
        ready = self._poller.poll(PATIENCE_MS)
        assert ready, "the server no longer answers"
        return [self._by_socket[socket] for socket, _ in ready]
