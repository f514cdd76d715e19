"""A courier without Ray, which gives back what it is given. Its address says what else it does.

refuses            at once
crashes            at once
breaks             with a group whose tensor is empty
breaks:FILE        the same, and makes the file; where that is, it refuses
leaves             as `breaks`, but its process stays
stammers           with such a group, it says a part of an answer and stays
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

from unstale.remote.frames import Kind, hear, say


def main(descriptor: int) -> None:
    pipe = Connection(descriptor)
    address = json.loads(hear(pipe)[2])["address"]
    does, _, file = address.partition(":")
    if does == "refuses" or (file and Path(file).exists()):
        say(pipe, Kind.REFUSED, content=b"the sentence of the courier")
        return
    if does == "crashes":
        return
    say(pipe, Kind.READY)
    if does == "listens no more":
        signal.pause()
    while True:
        kind, number, content = hear(pipe)
        if kind is Kind.CANCEL:
            continue
        if load(content)["values"].size:
            say(pipe, Kind.DONE, number, content)
        else:
            _end(does, pipe, file)
            return


def _end(does: str, pipe: Connection, file: str) -> None:
    if file:
        Path(file).touch()
    if does == "leaves":
        pipe.close()
        signal.pause()
    if does == "stammers":
        os.write(pipe.fileno(), b"\0\0")
        signal.pause()


if __name__ == "__main__":
    with suppress(EOFError, OSError):
        main(int(sys.argv[1]))
