"""A bare pyzmq server for `benchmarks.ingest`: receive an update, copy it into a matrix row, answer with a model.

It has the socket options, frames and answers of the real server, without validation, counts or acks. Prints one JSON
line when it listens, and one after SIGTERM.
"""

import argparse
import json
import os
import signal

import numpy as np
import zmq

from benchmarks.machine import memory_bytes, peak_memory_bytes
from unstale_client.net import sockets
from unstale_proto import codec, payload
from unstale_proto.messages import Task

FRAMES_KEPT = 64 * 1024  # bytes; pyzmq is faster if it copies smaller frames only


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimension", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    arguments = parser.parse_args()
    memory_before_bytes = memory_bytes()
    signal.signal(signal.SIGTERM, lambda *_: _end(memory_before_bytes))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = sockets.router(context, heartbeat_s=2.0, linger_s=0.0)
    print(json.dumps({"address": sockets.bind(socket, "tcp://127.0.0.1:0")}), flush=True)
    _serve(socket, arguments.dimension, arguments.clients)


def _serve(socket: zmq.Socket[bytes], dimension: int, rows: int) -> None:
    matrix = np.zeros((rows, dimension), dtype="<f4").view(np.uint8)
    model = payload.split(np.zeros(dimension, dtype="<f4").data.cast("B"))
    answer = [zmq.Frame(frame, copy=len(frame) < FRAMES_KEPT) for frame in model]
    header = codec.encode(
        Task(task_id=1, number=0, version=0, learning_rate=0.1, signature="0" * 64, payload_bytes=matrix.shape[1])
    )
    copies = matrix.shape[1] < FRAMES_KEPT
    received = 0
    while True:
        parts: list[bytes] | list[memoryview]
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


def _end(memory_before_bytes: int) -> None:
    """Print the last line and exit: pyzmq may swallow an exception from a signal handler."""
    last = {"memory_before_bytes": memory_before_bytes, "memory_peak_bytes": peak_memory_bytes()}
    print(json.dumps(last), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
