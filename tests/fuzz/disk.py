"""Files before the damage: each as written by its process, created once."""

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from fuzz.choices import Choices
from fuzz.material import ONES
from support.journal import accepted, checkpoint, evaluation, event, rejected, round_of, task
from support.wire import RUN
from unstale.journal import checkpoints
from unstale.journal.database import Database
from unstale.journal.rows import Batch, Location
from unstale.journal.segments import Segments
from unstale.net import keygen
from unstale.net.authorized_keys import ClientIds
from unstale_client import atomic_file
from unstale_client.actions import PendingUpdate
from unstale_client.outbox import Outbox
from unstale_proto.messages import Update

Files = Mapping[str, bytes]
"""Content by path below a folder."""

CONFIG = b"""seed: 3
clients: 4
rounds: 12
device: cpu
model: {name: logreg}
data:
  name: digits
policy:
  name: fedbuff
  settings: {a: 0.5}
trigger: {name: k-async, k: 2}
server:
  norm_max: 7.5
"""
ROW = bytes(range(24))
UPDATE = Update(
    task_id=8,
    base_version=3,
    kind="gradient",
    num_examples=5,
    steps=2,
    loss=0.25,
    learning_rate=0.5,
    signature="0" * 64,
    payload_bytes=len(ONES),
)


def _files(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@cache
def keys() -> Files:
    """Keys of a server, an injector and two owners of clients."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "keys"
        keygen.create(folder, "server", None)
        keygen.create(folder, "injector", ClientIds.parse("all", "clients"))
        keygen.create(folder, "phone", ClientIds.parse("0-1,7", "clients"))
        keygen.create(folder, "laptop", ClientIds.parse("2", "clients"))
        return _files(folder)


@cache
def database() -> Files:
    """`run.db` and the number of its newest event, of a run at version 1 with a pending update."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opened = Database(folder / "run.db")
        places = [
            Location(segment=1, offset=offset, size_bytes=len(ROW), checksum=xxhash.xxh3_64_intdigest(ROW))
            for offset in (16, 40, 64)
        ]
        opened.store(
            Batch(
                events=[event(seq, task_id=seq, holding=[1, 2]) for seq in range(5, 10)],
                tasks=[task(number) for number in range(1, 6)],
                updates=[
                    *(accepted(seq, handle, place) for seq, (handle, place) in enumerate(enumerate(places), 1)),
                    rejected(4),
                ],
                rounds=[round_of(1, 0, 1)],
                evaluations=[evaluation(1)],
                checkpoints=[checkpoint(1, 4)],
            ),
            sync=True,
        )
        opened.set_meta({"run_id": RUN})
        opened.close()
        return _files(folder)


@cache
def segments() -> Files:
    """A segment with three rows."""
    with tempfile.TemporaryDirectory() as name:
        opened = Segments(Path(name))
        for _ in range(3):
            opened.append(memoryview(ROW))
        opened.close()
        return _files(Path(name))


STATE: dict[str, Any] = {
    "learner": {"sent": torch.arange(3.0), "rate": 0.5, "buffers": [torch.zeros(0), None], 7: (1, True, "x")}
}
ABOUT = {"seq": 4}


@cache
def checkpoint_file() -> Files:
    with tempfile.TemporaryDirectory() as name:
        checkpoints.write(Path(name), 1, STATE, ABOUT)
        return _files(Path(name))


@cache
def outbox() -> Files:
    """The outbox of client 0: two pending updates, and its state."""
    with tempfile.TemporaryDirectory() as name:
        opened = Outbox(Path(name), 0, 1, durable=False)
        for number in (7, 8):
            pending = PendingUpdate(run_id=RUN, number=number, update=UPDATE, parcel=[memoryview(ONES)])
            opened.put(0, pending, {"control_d": np.float32([1.0, 2.0])} if number == 8 else {})
        opened.keep(0, RUN, 6, {"control_d": np.float32([3.0])})
        opened.close()
        return {path: content for path, content in _files(Path(name)).items() if path != "lock"}


def overwritten(content: bytes, choices: Choices) -> bytes:
    """Overwrite a few bytes at one place."""
    start = choices.number(len(content) + 1)
    piece = choices.taken(1 + choices.number(8))
    return content[:start] + piece + content[start + len(piece) :]


def sealed(facts: Any, body: bytes) -> bytes:
    """A valid file of the outbox with the right checksum."""
    about = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    head = atomic_file.MAGIC + len(about).to_bytes(4, "little") + about + body
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")
