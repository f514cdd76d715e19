"""A proxy between clients and server that forwards messages, and drops those that a test selects."""

import threading
from collections.abc import Callable
from typing import Any, Self

import zmq

from support.running import PATIENCE_S
from unstale_client.net import sockets
from unstale_client.net.wakeable_queue import WakeableQueue
from unstale_proto import codec
from unstale_proto.messages import Message

Swallows = Callable[[Message, bool], bool]
"""Whether a message is lost, by the message and whether it is sent up, to the server."""


class Proxy:
    """Runs within a context. server: its address. Each client connection has its own to the server,
    as the server expects; messages between two ends keep their order."""

    def __init__(self, server: str, swallows: Swallows) -> None:
        self._server = server
        self._swallows = swallows
        self._queue: WakeableQueue[None] = WakeableQueue()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._front = sockets.router(self._context, heartbeat_s=60, linger_s=0)
        self.address = sockets.bind(self._front, "tcp://127.0.0.1:0")
        self._backs: dict[bytes, zmq.Socket[bytes]] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        self._poller.register(self._queue.fileno(), zmq.POLLIN)
        self.sizes: list[tuple[bool, int, int]] = []  # of all messages: whether up, bytes of header and of payload
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.post(None)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the proxy does not end"

    def _run(self) -> None:
        while not self._queue.drain():
            ready: dict[Any, int] = dict(self._poller.poll())
            if self._front in ready:
                route, header, *frames = self._front.recv_multipart()
                self.sizes.append((True, len(header), sum(map(len, frames))))
                if not self._swallows(codec.decode(header), True):
                    self._back(route).send_multipart([header, *frames])
            for route, back in list(self._backs.items()):
                if back in ready:
                    header, *frames = back.recv_multipart()
                    self.sizes.append((False, len(header), sum(map(len, frames))))
                    if not self._swallows(codec.decode(header), False):
                        self._pass_down(route, [header, *frames])
        for socket in (self._front, *self._backs.values()):
            socket.close(linger=0)
        self._context.term()
        self._queue.close()

    def _back(self, route: bytes) -> zmq.Socket[bytes]:
        if route not in self._backs:
            back = self._context.socket(zmq.DEALER)
            back.connect(self._server)
            self._poller.register(back, zmq.POLLIN)
            self._backs[route] = back
        return self._backs[route]

    def _pass_down(self, route: bytes, frames: list[bytes]) -> None:
        try:
            self._front.send_multipart([route, *frames])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:  # the client has gone
                raise
