"""Writes `run-4.tar.xz`: a run directory of database format 4. README.md names the version of the code it needs."""

import os
import sys
import tarfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from support.running import RunningServer, small
from support.wire import RawClient
from unstale.journal.segments import Segments
from unstale_proto.messages import OwnEvaluation

SIZE = 650  # numbers of a row of the model
ROUNDS = 7


def main(folder: Path) -> None:
    """Serve seven rounds of two updates to three clients, and stop with one update that waits for its round."""
    os.chdir(folder)
    defaults = Segments.__init__.__kwdefaults__
    assert defaults is not None
    defaults["segment_bytes"] = 8192  # three rows, so that checkpoints cover whole segments
    settings = small(
        clients=3,
        rounds=20,
        evaluate_every=2,
        evaluate_clients_every=3,
        trigger={"name": "k-async", "k": 2},
        training={"name": "sgd", "learning_rate": 0.5, "steps": 1, "batch_size": 8},
        run={"directory": "run", "free_bytes_min": 0, "checkpoint_every": 2, "durability": "normal"},
    )
    with RunningServer(settings) as server, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address, number)) for number in range(3)]
        for client in clients:
            client.join()
        tasks = [client.task()[0] for client in clients]
        for number in range(ROUNDS):
            for index in range(2):
                own = OwnEvaluation(accuracy=0.25, loss=1.5, examples=8) if tasks[index].evaluate else None
                vector = np.full(SIZE, 0.05 * 2.0 ** -(number + index), dtype="<f4")
                assert clients[index].answer(tasks[index], vector, kind="delta", evaluation=own).outcome == "accepted"
            tasks[:2] = [client.task()[0] for client in clients[:2]]
        not_finite = np.full(SIZE, np.nan, dtype="<f4")
        assert clients[1].answer(tasks[1], not_finite, kind="delta").outcome == "rejected"
        assert clients[0].answer(tasks[0], np.full(SIZE, 0.01, dtype="<f4"), kind="delta").outcome == "accepted"
    with tarfile.open("run-4.tar.xz", "w:xz") as archive:
        archive.add("run", filter=_nobody)


def _nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]))
