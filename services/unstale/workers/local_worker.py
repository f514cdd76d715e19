"""A worker process that computes one task at a time.

    python -m unstale.workers.local_worker DESCRIPTOR_OF_SOCKET

It receives its program, reports that it is ready, and then answers every task. It ends when the socket is closed, also
during a task, so that it never outlives the process that started it.
"""

import json
import os
import select
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from unstale.errors import UserError
from unstale.imports import imports
from unstale.workers.channel import Kind, Pipe, receive, send
from unstale.workers.program import Progress, loaded

SHARE_STEP = 0.01  # of a task, between two reports of progress


def _exit_with_parent(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, select.POLLHUP)
    while not any(event & select.POLLHUP for _, event in poller.poll()):
        pass
    os._exit(0)


def _reporter(pipe: Pipe, number: int) -> Progress:
    sent = 0.0

    def report(share: float) -> None:
        nonlocal sent
        if share >= sent + SHARE_STEP:
            sent = share
            send(pipe, Kind.PROGRESS, number, json.dumps(share).encode())

    return report


def main(descriptor: int) -> None:
    threading.Thread(target=_exit_with_parent, args=(descriptor,), name="parent", daemon=True).start()
    pipe: Pipe = Connection(descriptor)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _, _, program = receive(pipe)
        try:
            with imports():
                compute = loaded(program.decode())
        except UserError as error:
            send(pipe, Kind.REFUSED, content=str(error).encode())
            return
        send(pipe, Kind.READY, 1)
        while True:
            kind, number, content = receive(pipe)
            if kind is Kind.TASK:
                send(pipe, Kind.DONE, number, compute(content, _reporter(pipe, number)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
