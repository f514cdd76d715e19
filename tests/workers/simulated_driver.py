"""A driver without Ray, which returns each task's content. Its address names a failure.

refuses            at once
crashes            at once
breaks             with a group whose tensor is empty
breaks:FILE        the same, and makes the file; if the file exists, it refuses
leaves             as `breaks`, but its process stays
stammers           with such a group, it sends a part of a frame and stays
listens no more    from when it is ready
"""

import json
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from safetensors.numpy import load

from unstale.workers.channel import Kind, receive, send


def main(descriptor: int) -> None:
    pipe = Connection(descriptor)
    address = json.loads(receive(pipe)[2])["address"]
    failure, _, file = address.partition(":")
    if failure == "refuses" or (file and Path(file).exists()):
        send(pipe, Kind.REFUSED, content=b"the sentence of the driver")
        return
    if failure == "crashes":
        return
    send(pipe, Kind.READY, 1)
    if failure == "listens no more":
        signal.pause()
    while True:
        kind, number, content = receive(pipe)
        if kind is Kind.CANCEL:
            continue
        if load(content)["values"].size:
            send(pipe, Kind.DONE, number, content)
        else:
            _end(failure, pipe, file)
            return


def _end(failure: str, pipe: Connection, file: str) -> None:
    if file:
        Path(file).touch()
    if failure == "leaves":
        pipe.close()
        signal.pause()
    if failure == "stammers":
        os.write(pipe.fileno(), b"\0\0")
        signal.pause()


if __name__ == "__main__":
    with suppress(EOFError, OSError):
        main(int(sys.argv[1]))
