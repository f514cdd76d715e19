"""Peak memory of a server whose clients all send a model of 45 MB, over the number of clients; budget: flat, and
three models above the same server with as many clients and a tiny model.

Synchronous rounds of all clients, policy fedavg, durability normal, all keys at their defaults but
`run.rows_memory_bytes_max: 0`, so that all rows wait on disk; and one run with rounds of four updates, which arrive
during the previous round. Every run has a server of its own. The clients are sessions of one other process, which do
not train and all send the same bytes; that process fetches a model once.

    python -m benchmarks.server_memory [--quick] [--plot FILE.png]
"""

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import zmq

from benchmarks import report
from benchmarks.large_transfer import NOW, PEAK, Vector, answer, memory, say
from unstale.config.settings import RunSettings, ServerSettings, Settings
from unstale.server.service import Server
from unstale.settings.learning import (
    ModelSettings,
    PartitionSettings,
    PolicySettings,
    TrainingSettings,
    TriggerSettings,
)
from unstale.training.models import MODELS, Shape
from unstale_client.actions import Action, Retire, Send, Train
from unstale_client.models import Models
from unstale_client.net import files, sockets
from unstale_client.net.clock import now_s
from unstale_client.partial_files import PartialFiles
from unstale_client.session import ClientSession, State
from unstale_proto import codec, payload
from unstale_proto.transfer import checksum

DIMENSION = 11_250_000
CLIENTS = (1, 4, 16, 64, 256)
ROUNDS = 2
ASYNCHRONOUS = {"clients": 16, "rounds": 16, "k": 4}
BUDGET = 3  # models
NEXT_TO_NONE = 1000  # numbers


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """Figures of each number of clients, and of asynchronous rounds."""
    dimension = DIMENSION // 10 if quick else DIMENSION
    figures = [_measure(clients, dimension, rounds=ROUNDS) for clients in CLIENTS]
    return [*figures, _measure(dimension=dimension, **ASYNCHRONOUS)]


def _measure(clients: int, dimension: int, *, rounds: int, k: int = 0) -> dict[str, Any]:
    """k: updates of a round; 0 for synchronous rounds."""
    return {
        "clients": clients,
        "k": k,
        "model_bytes": 4 * dimension,
        "bare_bytes": _served(clients, NEXT_TO_NONE, rounds, k)["peak_bytes"],
        **_served(clients, dimension, rounds, k),
    }


def _served(clients: int, dimension: int, rounds: int, k: int) -> dict[str, Any]:
    """The reported memory of one server."""
    own = [sys.executable, "-m", "benchmarks.server_memory", "--dimension", str(dimension)]
    own += ["--clients", str(clients), "--rounds", str(rounds), "--k", str(k), "--folder"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([*own, folder, "--serve"], stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None
        listening = json.loads(server.stdout.readline())
        subprocess.run([*own, folder, "--take-part", listening["address"]], check=True)
        ended = json.loads(server.stdout.readline())
    return {"before_bytes": listening["before_bytes"], "peak_bytes": ended[PEAK], "updates": ended["updates"]}


def serve(clients: int, dimension: int, folder: str, *, rounds: int, k: int) -> None:
    """Run the server's process. Memory before: after imports and data, without a model."""
    before_bytes = 0

    def vector(_: Shape, classes: int) -> torch.nn.Module:
        nonlocal before_bytes
        before_bytes = memory()[NOW]
        return Vector(dimension, classes)

    MODELS["vector"] = (vector, None)
    server = Server(
        Settings(
            clients=clients,
            rounds=rounds,
            evaluate_every=10**9,
            device="cpu",
            model=ModelSettings(name="vector"),
            partition=PartitionSettings(name="iid", min_examples=1),
            training=TrainingSettings(name="gradient"),
            policy=PolicySettings(name="fedavg"),
            trigger=TriggerSettings(name="k-async", k=k) if k else TriggerSettings(name="sync"),
            server=ServerSettings(address="tcp://127.0.0.1:0", http_address=None, lease_s=600, linger_s=0),
            run=RunSettings(directory=f"{folder}/run", rows_memory_bytes_max=0),
        ),
        on_progress=lambda _: None,
    )
    say(address=server.address, before_bytes=before_bytes)
    outcome = server.run()
    say(updates=outcome.updates["accepted"], **memory())


class Host:
    """Sessions of all clients, in one thread. Every update is the same vector."""

    def __init__(self, server: str, clients: int, dimension: int, folder: Path) -> None:
        vector_d = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32) * np.float32(1e-6)
        self._parcel = payload.split(vector_d.data.cast("B"))
        self._checksum = checksum(self._parcel)
        models = Models(PartialFiles(folder, suffix=".model").open, lambda: PartialFiles().open("spare"))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * clients + 64)
        self._poller = zmq.Poller()
        self._lines: dict[zmq.Socket[bytes], ClientSession] = {}
        for client_id in range(clients):
            socket = sockets.dealer(self._context, heartbeat_s=2.0, linger_s=1000)
            sockets.connect(socket, server)
            self._lines[socket] = ClientSession(client_id, secrets.token_hex(16), models=models)
            self._poller.register(socket, zmq.POLLIN | zmq.POLLOUT)

    def run(self) -> None:
        """Run until the end of the run reaches all sessions."""
        while any(session.state is not State.OVER for session in self._lines.values()):
            for socket, ready in self._poller.poll(100):
                session = self._lines[socket]
                if ready & zmq.POLLOUT and session.state is State.AWAY:
                    self._follow(socket, session.reachable(now_s()))
                while (received := sockets.receive(socket)) is not None:
                    header, frames = received
                    message = codec.decode(header)
                    views = [frame.buffer for frame in frames]
                    self._follow(socket, session.received(message, views, now_s()))
            for socket, session in self._lines.items():
                self._follow(socket, session.tick(now_s()))

    def close(self) -> None:
        for socket in self._lines:
            socket.close()
        self._context.term()

    def _follow(self, socket: zmq.Socket[bytes], instructions: Sequence[Action]) -> None:
        session = self._lines[socket]
        for instruction in instructions:
            if isinstance(instruction, Send):
                parts = [codec.encode(instruction.message), *instruction.parcel]
                try:
                    socket.send_multipart(parts, zmq.NOBLOCK, copy=len(parts) == 1)
                except zmq.Again:
                    session.unreachable()
                    break
            elif isinstance(instruction, Train):
                self._follow(socket, self._trained(session, instruction))
            elif isinstance(instruction, Retire):
                assert instruction.reason == "finished", instruction
        away = session.state is State.AWAY
        self._poller.register(socket, zmq.POLLIN | zmq.POLLOUT if away else zmq.POLLIN)

    def _trained(self, session: ClientSession, train: Train) -> list[Action]:
        update = answer(train.task, self._checksum)
        return session.trained(train.welcome.run_id, update, self._parcel)


def take_part(server: str, clients: int, dimension: int, folder: str) -> None:
    """Run the clients' process."""
    files.allow_connections(clients, files_each=2)
    host = Host(server, clients, dimension, Path(folder))
    host.run()
    host.close()


def markdown(figures: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    rows = [
        (
            str(one["clients"]),
            str(one["k"] or "all"),
            f"{one['updates']:,}",
            report.megabytes(one["before_bytes"]),
            report.megabytes(one["peak_bytes"]),
            f"{(one['peak_bytes'] - one['before_bytes']) / one['model_bytes']:.2f} models",
            report.megabytes(one["bare_bytes"]),
            f"{(one['peak_bytes'] - one['bare_bytes']) / one['model_bytes']:.2f} models",
        )
        for one in figures
    ]
    head = ("clients", "in a round", "updates", "before", "peak", "above", "peak with no model", "above")
    model = report.megabytes(figures[0]["model_bytes"])
    return (
        f"Resident memory of a server with a model of {model}, policy fedavg, rows on disk. With what lies in memory "
        "because it is read from a file. Before: all is imported, the data set is read, no model is there. Peak with "
        f"no model: of the same run with one of {NEXT_TO_NONE:,} numbers, thus with as many connections.\n\n"
        f"{report.table(head, rows)}"
    )


def plot(figures: list[dict[str, Any]], file: Path) -> None:
    """Draw the curve of the synchronous rounds."""
    figures = [one for one in figures if not one["k"]]
    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture, axes = pyplot.subplots(figsize=(6.4, 4), layout="constrained")
    clients = [one["clients"] for one in figures]
    models = [(one["peak_bytes"] - one["bare_bytes"]) / one["model_bytes"] for one in figures]
    axes.plot(clients, models, marker="o", color="#0072b2", label="peak of the server")
    axes.axhline(BUDGET, linestyle="--", color="#d55e00", label="budget")
    axes.plot(
        clients,
        [count + 2 for count in clients],
        linestyle=":",
        color="#777777",
        label="were all updates held in memory",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(clients, [str(count) for count in clients])
    axes.set_ylim(0, 2 * BUDGET)
    axes.set_xlabel("clients")
    axes.set_ylabel("models above the same server with no model")
    axes.set_title(f"Memory of a server with a model of {report.megabytes(figures[0]['model_bytes'])}", loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    picture.savefig(file, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a model of 4.5 MB")
    parser.add_argument("--plot", type=Path, help="draw the curve into this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--take-part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--k", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--dimension", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.clients, arguments.dimension, arguments.folder, rounds=arguments.rounds, k=arguments.k)
    elif arguments.take_part:
        take_part(arguments.take_part, arguments.clients, arguments.dimension, arguments.folder)
    else:
        figures = run(quick=arguments.quick)
        print(markdown(figures))
        if arguments.plot is not None:
            plot(figures, arguments.plot)


if __name__ == "__main__":
    main()
