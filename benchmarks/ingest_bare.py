"""What pyzmq alone can do, for `benchmarks.ingest`: receive an update, copy it into a matrix row, answer with a model.

The same socket options, frames and answer as the real server has; nothing is checked, counted or acknowledged. Prints
one JSON line when it listens, and one when SIGTERM has ended it.
"""

import argparse
import json
import signal
from types import FrameType

import numpy as np
import psutil
import zmq

from benchmarks.machine import peak_memory_bytes
from unstale.net import sockets
from unstale_proto import codec, payload
from unstale_proto.messages import Task

FRAMES_KEPT = 64 * 1024  # bytes; pyzmq is faster with smaller frames copied and larger ones not


class Ended(Exception):
    """SIGTERM came."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimension", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    memory_before_bytes = psutil.Process().memory_info().rss
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = sockets.router(context, heartbeat_s=2.0, linger_s=0.0)
    print(json.dumps({"address": sockets.bind(socket, "tcp://127.0.0.1:0")}), flush=True)
    try:
        _serve(socket, arguments.dimension, arguments.clients)
    except Ended:
        print(
            json.dumps(
                {"memory_before_bytes": memory_before_bytes, "memory_peak_bytes": peak_memory_bytes()}
            )
        )
    socket.close()
    context.term()


def _serve(socket: zmq.Socket[bytes], dimension: int, rows: int) -> None:
    matrix = np.zeros((rows, dimension), dtype="<f4").view(np.uint8)
    model = payload.split(np.zeros(dimension, dtype="<f4").data.cast("B"))
    answer = [zmq.Frame(frame, copy=len(frame) < FRAMES_KEPT) for frame in model]
    header = codec.encode(
        Task(
            task_id=1,
            number=0,
            version=0,
            learning_rate=0.1,
            signature="0" * 64,
            payload_bytes=matrix.shape[1],
        )
    )
    copies = matrix.shape[1] < FRAMES_KEPT
    received = 0
    while True:
        if copies:
            route, _, *parts = socket.recv_multipart()
        else:
            frames = socket.recv_multipart(copy=False)
            route, parts = frames[0].bytes, [frame.buffer for frame in frames[2:]]
        if parts:
            row = matrix[received % rows]
            received += 1
            offset = 0
            for part in parts:
                row[offset : offset + len(part)] = np.frombuffer(part, dtype=np.uint8)
                offset += len(part)
        socket.send_multipart([route, header, *answer], copy=False)


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise Ended


if __name__ == "__main__":
    main()
