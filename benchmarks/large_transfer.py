"""A model of 760 MB and its update over a link that breaks about ten times: bytes sent, time, and memory of both sides.

Server, injector and client run in processes of their own. The injector has the toxic `disconnect`, which breaks the
connection at the first chunk of each few seconds. The client does not train: it sends the model back as its update, so
that its memory is that of the transfers. Budget: two model sizes of memory above the process's size before it.

    python -m benchmarks.large_transfer [--quick]
"""

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
import zmq
from torch import Tensor, nn

from benchmarks import machine, report
from unstale.config.settings import RunSettings, ServerSettings, Settings
from unstale.server.service import Server
from unstale.settings.learning import ModelSettings, PolicySettings, TrainingSettings, TriggerSettings
from unstale.training.models import MODELS, Shape
from unstale_client.actions import Action, PendingUpdate, Retire, Send, Train
from unstale_client.models import Models
from unstale_client.net import sockets
from unstale_client.net.clock import now_s
from unstale_client.outbox import Outbox
from unstale_client.partial_files import PartialFiles
from unstale_client.session import ClientSession, State
from unstale_proto import codec
from unstale_proto.messages import Ack, Chunk, Task, Update

DIMENSION = 190_000_000
CUT_EVERY_S, QUICK_EVERY_S = 0.9, 0.3
CUT_FOR_S = 0.05  # duration for which each toxic waits for a chunk
CUTS_MAX = 90  # the injector's limit of toxics
NOW, PEAK = "memory_bytes", "memory_peak_bytes"


class Vector(nn.Module):
    """A model of the given number of parameters, of which the first shift the logits."""

    def __init__(self, dimension: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.weight_d = nn.Parameter(torch.ones(dimension))

    def forward(self, inputs_BX: Tensor) -> Tensor:
        return inputs_BX.flatten(1)[:, : self.classes] + self.weight_d[: self.classes]


def say(**facts: Any) -> None:
    """Print a JSON line for the parent process."""
    print(json.dumps(facts), flush=True)


# --- the server ---


def serve(dimension: int, folder: str) -> None:
    """Wait in a round of two updates for one, so that the memory of a round is not measured."""

    def vector(_: Shape, classes: int) -> nn.Module:
        return Vector(dimension, classes)

    MODELS["vector"] = (vector, None)
    server = Server(
        Settings(
            clients=2,
            min_clients=1,
            rounds=1,
            device="cpu",
            model=ModelSettings(name="vector"),
            training=TrainingSettings(name="gradient"),
            policy=PolicySettings(name="fedavg"),
            trigger=TriggerSettings(name="k-async", k=2),
            server=ServerSettings(address="tcp://127.0.0.1:0", http_address=None, linger_s=0),
            run=RunSettings(directory=f"{folder}/run"),
        ),
        on_progress=lambda _: None,
        observe=lambda event, _: say(event=type(event).__name__, **memory()),
    )
    say(address=server.address, **memory())
    server.run()


def memory() -> dict[str, Any]:
    """Resident memory of this process."""
    return {NOW: machine.memory_bytes(), PEAK: machine.peak_memory_bytes()}


# --- the client ---


class Client:
    """A client session on a socket without training, whose update is the model."""

    def __init__(self, server: str, folder: Path) -> None:
        self._outbox = Outbox(folder, 0, 1, durable=False)
        models = Models(PartialFiles(folder, suffix=".model").open, lambda: PartialFiles().open("spare"))
        self._session = ClientSession(0, secrets.token_hex(16), models=models)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = sockets.dealer(self._context, heartbeat_s=2.0, linger_s=0)
        sockets.connect(self._socket, server)
        self.up_bytes = self.down_bytes = 0
        self.outcome: str | None = None
        self.trained_s = 0.0

    def run(self) -> None:
        """Run until the verdict."""
        while self.outcome is None:
            away = self._session.state is State.AWAY
            due_s = self._session.due_s
            patience_s = 0.1 if due_s is None else max(0.0, due_s - now_s())
            ready = self._socket.poll(int(patience_s * 1000) + 1, zmq.POLLIN | (zmq.POLLOUT if away else 0))
            if ready & zmq.POLLOUT:
                self._follow(self._session.reachable(now_s()))
            if ready & zmq.POLLIN:
                self._receive()
            self._follow(self._session.tick(now_s()))

    def close(self) -> None:
        """Close the socket without a bye."""
        self._socket.close(linger=0)
        self._context.term()
        self._outbox.close()

    def _receive(self) -> None:
        while (received := sockets.receive(self._socket)) is not None:
            message = codec.decode(received[0])
            frames = [frame.buffer for frame in received[1]]
            if isinstance(message, Chunk):
                self.down_bytes += sum(map(len, frames))
            if isinstance(message, Ack):
                self.outcome = message.outcome
            self._follow(self._session.received(message, frames, now_s()))

    def _follow(self, instructions: Sequence[Action]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                parts = [codec.encode(instruction.message), *instruction.parcel]
                try:
                    self._socket.send_multipart(parts, zmq.NOBLOCK, copy=len(parts) == 1)
                except zmq.Again:
                    self._session.unreachable()
                    return
                self.up_bytes += sum(map(len, parts[1:]))
            elif isinstance(instruction, Train):
                self._train(instruction)
            elif isinstance(instruction, Retire):
                self.outcome = instruction.reason

    def _train(self, train: Train) -> None:
        self.trained_s = now_s()
        task = train.task
        update = answer(task, task.checksum)
        pending = PendingUpdate(run_id=train.welcome.run_id, number=task.number, update=update, parcel=train.parcel)
        pending = self._outbox.put(0, pending, {})
        self._follow(self._session.trained(pending.run_id, pending.update, pending.parcel))


def take_part(server: str, folder: str) -> None:
    """Run the client's process."""
    client = Client(server, Path(folder))
    before = memory()[NOW]
    started_s = now_s()
    client.run()
    seconds = now_s() - started_s
    facts = memory()
    client.close()
    say(
        outcome=client.outcome,
        seconds=seconds,
        down_s=client.trained_s - started_s,
        up_bytes=client.up_bytes,
        down_bytes=client.down_bytes,
        before_bytes=before,
        **facts,
    )


# --- both ---


def answer(task: Task, checksum: str | None) -> Update:
    """The header of an update that announces so many bytes as the task has."""
    return Update(
        task_id=task.task_id,
        base_version=task.version,
        kind="gradient",
        num_examples=8,
        steps=1,
        loss=1.0,
        learning_rate=task.learning_rate,
        signature=task.signature,
        payload_bytes=task.payload_bytes,
        checksum=checksum,
    )


# --- the measurement ---


def run(*, quick: bool = False) -> dict[str, Any]:
    """The figures of one transfer in both directions."""
    dimension = DIMENSION // 10 if quick else DIMENSION
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        own = ("-m", "benchmarks.large_transfer")
        server = stack.enter_context(_process(*own, "--serve", folder, "--dimension", str(dimension)))
        scenario = Path(folder) / "cuts.yaml"
        every_s = QUICK_EVERY_S if quick else CUT_EVERY_S
        cuts = [
            {
                "type": "disconnect",
                "messages": ["chunk"],
                "start_s": place * every_s,
                "end_s": place * every_s + CUT_FOR_S,
            }
            for place in range(1, CUTS_MAX)
        ]
        scenario.write_text(yaml.safe_dump({"groups": [{"name": "all", "toxics": cuts}]}))
        listening = json.loads(_line(server))
        injector = stack.enter_context(
            _process(
                *("-m", "unstale", "inject", "--json", "--clients", "2", "--scenario", str(scenario)),
                *("--injector.address", "tcp://127.0.0.1:0", "--injector.upstream", listening["address"]),
                *("--injector.http-address", "127.0.0.1:0"),
            )
        )
        passing = json.loads(_line(injector))
        client = stack.enter_context(_process(*own, "--take-part", passing["address"], "--folder", folder))
        found = json.loads(_line(client))
        peak_bytes = 0
        while peak_bytes == 0:
            event = json.loads(_line(server))
            if event["event"] == "UpdateArrived":
                peak_bytes = event[PEAK]
        touched = _touched(passing["http_address"])
    return {
        "model_bytes": 4 * dimension,
        "cuts": touched,
        **found,
        "server_before_bytes": listening[NOW],
        "server_peak_bytes": peak_bytes,
    }


def _touched(http: str) -> int:
    """Number of connections that the toxics broke."""
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith('unstale_injected_faults_total{toxic="disconnect"}')]
    return int(float(found[0].split()[-1])) if found else 0


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the process has ended"
    return line


def markdown(found: dict[str, Any]) -> str:
    """The figures as a table."""
    model = found["model_bytes"]

    def above(peak: str, before: str) -> str:
        return f"{(found[peak] - found[before]) / model:.2f}"

    rows = [
        ("model", f"{model / 1e6:.0f} MB", ""),
        ("connections broken", str(found["cuts"]), ""),
        ("bytes of the model sent", f"{found['down_bytes'] / model:.2f} models", ""),
        ("bytes of the update sent", f"{found['up_bytes'] / model:.2f} models", ""),
        ("until the model was there", f"{found['down_s']:.1f} s", ""),
        ("until the verdict", f"{found['seconds']:.1f} s", ""),
        ("memory of the server above its base", above("server_peak_bytes", "server_before_bytes"), "2 models"),
        ("memory of the client above its base", above(PEAK, "before_bytes"), "2 models"),
    ]
    return (
        f"A model and an update, to and fro through an injector with `disconnect`; "
        f"verdict: {found['outcome']}.\n\n{report.table(('what', 'figure', 'budget'), rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a model of 80 MB")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--take-part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--dimension", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.dimension, arguments.serve)
    elif arguments.take_part:
        take_part(arguments.take_part, arguments.folder)
    else:
        print(markdown(run(quick=arguments.quick)))


if __name__ == "__main__":
    main()
