"""Rounds of a large model with several clients over links that break: seconds, bytes a second, and peak memory.

Server, injector and each client have a process of their own. A client takes part by `unstale_client.join`, with a
folder for its files. It holds one model, into which it copies the parameters of a task; it changes and sends them. The
injector breaks the connection of each client `--cuts` times in the run, after equal shares of its bytes.

Anonymous memory is bound to its process. Mapped pages of files can be dropped and read again, so the system counts
them as memory that is available. Both are sampled; the resident peak is the kernel's own. All are above the process
before it has a model. Anonymous memory needed: 1.2 models a client and 2.4; disk: six models a client.

    python -m benchmarks.gigabytes [--quick] [--megabytes 500] [--clients 6] [--rounds 3] [--cuts 5]
                                   [--encoding float32] [--gateways 0] [--folder FOLDER]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from benchmarks import machine, report
from unstale.config.settings import Settings
from unstale.coordinator.events import RoundApplied
from unstale.server.service import Server
from unstale.training.models import MODELS, Shape
from unstale_client import join
from unstale_proto.limits import FLOAT_BYTES

MEGABYTES, QUICK_MEGABYTES = 500, 40
CLIENTS, ROUNDS, CUTS = 6, 3, 5
LAYER = 25_000_000  # numbers
PEAK, ANONYMOUS, FILES = "VmHWM", ("RssAnon", "RssShmem"), ("RssFile",)
SAMPLE_S = 0.05
CUT_POLL_S, CUT_S = 0.005, 10.0  # a planned cut waits so long for a chunk
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number on the wire


class Layers(nn.Module):
    """A model of the given number of parameters, of which the first shift the logits."""

    def __init__(self, dimension: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        sizes = [min(LAYER, dimension - start) for start in range(0, dimension, LAYER)]
        self.layers = nn.ParameterList([torch.full((size,), 0.01) for size in sizes])

    def forward(self, inputs_BX: Tensor) -> Tensor:
        return inputs_BX.flatten(1)[:, : self.classes] + self.layers[0][: self.classes]


# --- the server ---


def serve(given: argparse.Namespace) -> None:
    """Serve one run of synchronous rounds, and print its events."""

    def layers(_: Shape, classes: int) -> nn.Module:
        _say(base=_memory_of("self"))
        return Layers(given.dimension, classes)

    MODELS["layers"] = (layers, None)
    server = Server(
        Settings.model_validate(
            {
                "clients": given.clients,
                "rounds": given.rounds,
                "device": "cpu",
                "model": {"name": "layers"},
                "training": {"name": "sgd"},
                "partition": {"name": "iid", "min_examples": 1},
                "policy": {"name": "fedavg"},
                "trigger": {"name": "sync"},
                "encoding": {"updates": given.encoding, "models": given.encoding},
                "server": {
                    "address": "tcp://127.0.0.1:0",
                    "http_address": None,
                    "lease_s": 600,
                    "linger_s": 5,
                    "gateways": given.gateways,
                },
                "run": {"directory": f"{given.folder}/run", "rows_memory_bytes_max": 0},
            }
        ),
        on_progress=lambda _: None,
        observe=lambda event, _: _say(round=event.version) if isinstance(event, RoundApplied) else None,
    )
    _say(address=server.address)
    outcome = server.run()
    _say(accepted=outcome.updates["accepted"])


# --- a client ---


def take_part(given: argparse.Namespace) -> None:
    """Train by hand: copy the parameters, change them, and send them."""
    _say(base=_memory_of("self"))
    own: dict[str, np.ndarray] = {}
    with join(given.address, client_id=given.client_id, state_dir=Path(given.folder)) as client:
        for task in client:
            for name, array in task.parameters.items():
                weights = own.setdefault(name, np.empty_like(array))
                np.copyto(weights, array)
                weights -= np.float32(1e-4)
            task.send(own, num_examples=1, loss=1.0)


# --- memory ---


def _memory_of(pid: int | str) -> dict[str, int]:
    """Resident memory of a process by kind, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    kinds = (PEAK, *ANONYMOUS, *FILES)
    return {kind: 1024 * int(line.split()[1]) for line in lines for kind in kinds if line.startswith(f"{kind}:")}


class Peaks:
    """Samples the memory of processes in a thread, until their end."""

    def __init__(self) -> None:
        self._peaks: dict[int, dict[str, int]] = {}
        self._pids: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def watch(self, pid: int) -> None:
        self._pids.append(pid)

    def of(self, pid: int, base: dict[str, int]) -> dict[str, int]:
        """Peaks of a process above its memory at the start: resident, anonymous, of files."""
        peaks = self._peaks[pid]
        anonymous, files = (sum(base[kind] for kind in kinds) for kinds in (ANONYMOUS, FILES))
        return {
            "resident": peaks[PEAK] - anonymous - files,
            "anonymous": peaks["anonymous"] - anonymous,
            "files": peaks["files"] - files,
        }

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            for pid in self._pids:
                try:
                    now = _memory_of(pid)
                except OSError:
                    continue
                if len(now) < 4:  # it has ended
                    continue
                found = {
                    PEAK: now[PEAK],
                    "anonymous": sum(now[kind] for kind in ANONYMOUS),
                    "files": sum(now[kind] for kind in FILES),
                }
                peaks = self._peaks.setdefault(pid, found)
                self._peaks[pid] = {kind: max(value, peaks[kind]) for kind, value in found.items()}


# --- the measurement ---


def run(given: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder))
        peaks = Peaks()
        stack.callback(peaks.close)
        given.folder = folder
        server = stack.enter_context(_process("serve", given))
        peaks.watch(server.pid)
        base = _line(server)["base"]
        address = _line(server)["address"]
        gateways = psutil.Process(server.pid).children()
        for gateway in gateways:
            peaks.watch(gateway.pid)
        at_the_gateways = [_memory_of(gateway.pid) for gateway in gateways]
        injector, http = _injector(stack, given, address)
        began_s = time.monotonic()
        clients = []
        for client_id in range(given.clients):
            own = argparse.Namespace(**{**vars(given), "address": injector, "client_id": client_id})
            own.folder = f"{folder}/client-{client_id}"
            clients.append(stack.enter_context(_process("take-part", own)))
            peaks.watch(clients[-1].pid)
        bases = [_line(client)["base"] for client in clients]
        processes = {"server": [server], "clients": clients}
        began = {name: _processor_s(each) for name, each in processes.items()}
        times_s = [began_s]
        cuts = Cuts(http, given)
        while "round" in (line := _line(server)):
            times_s.append(time.monotonic())
            cuts.rounds = line["round"]
        broken = cuts.close()
        cpu_s = {name: _processor_s(each) - began[name] for name, each in processes.items()}
        return {
            "accepted": line["accepted"],
            "round_s": [after - before for before, after in pairwise(times_s)],
            "broken": broken,
            "cpu_s": cpu_s,
            "server": peaks.of(server.pid, base),
            "gateways": [peaks.of(one.pid, its) for one, its in zip(gateways, at_the_gateways, strict=True)],
            "clients": [peaks.of(client.pid, its) for client, its in zip(clients, bases, strict=True)],
        }


def _injector(stack: ExitStack, given: argparse.Namespace, address: str) -> tuple[str, str]:
    """Start an injector; its addresses for clients and for its interface."""
    command = ["-m", "unstale", "inject", "--json", "--clients", str(given.clients)]
    command += ["--injector.address", "tcp://127.0.0.1:0", "--injector.upstream", address]
    command += ["--injector.http-address", "127.0.0.1:0", "--injector.tcp"]
    ready = _line(stack.enter_context(_started(command)))
    return ready["address"], ready["http_address"]


class Cuts:
    """Breaks the connections of clients when they have moved given shares of their bytes, in a thread until the end."""

    def __init__(self, http: str, given: argparse.Namespace) -> None:
        transfers = 2 * given.rounds
        self._planned = {
            client_id: [(cut + 0.5) / given.cuts * transfers for cut in range(given.cuts)]
            for client_id in range(given.clients)
        }
        self._http, self._given = http, given
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rounds = 0  # applied so far
        self._thread.start()

    def close(self) -> int:
        """Number of broken connections."""
        self._ended.set()
        self._thread.join()
        return self._broken()

    def _run(self) -> None:
        while not self._ended.wait(CUT_POLL_S):
            for client_id, planned in self._planned.items():
                if planned and self._moved(client_id) >= planned[0]:
                    planned.pop(0)
                    self._cut(client_id)

    def _moved(self, client_id: int) -> float:
        """Models and updates that a client has received and sent, by the sizes of their files."""
        folder = Path(self._given.folder)
        parts = [*folder.glob(f"client-{client_id}/*.model"), *folder.glob(f"run/transfers/{client_id}-*")]
        moved_bytes = sum(path.stat().st_size for path in parts if path.exists())
        return 2 * self.rounds + moved_bytes / wire_bytes(self._given)

    def _cut(self, client_id: int) -> None:
        """Break a connection at its next chunk."""
        broken, until_s = self._broken(), time.monotonic() + CUT_S
        cut = {"type": "disconnect", "name": "cut", "messages": ["chunk"], "clients": [client_id]}
        self._request("toxics", "POST", cut)
        while self._broken() == broken and time.monotonic() < until_s:
            time.sleep(CUT_POLL_S)
        self._request("toxics/cut", "DELETE")

    def _broken(self) -> int:
        broken: int = json.loads(self._request("state", "GET"))["faults"].get("disconnect", 0)
        return broken

    def _request(self, path: str, method: str, content: object = None) -> str:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"http://{self._http}/{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  (of our own process)
            text: str = answer.read().decode()
            return text


def wire_bytes(given: argparse.Namespace) -> int:
    """Size of a model, or an update, as it is sent."""
    return WIDTHS[given.encoding] * given.dimension


def _processor_s(processes: Sequence["subprocess.Popen[str]"]) -> float:
    return sum(machine.processor_s(process.pid) for process in processes)


def _process(role: str, given: argparse.Namespace) -> Any:
    arguments = {
        name: value for name, value in vars(given).items() if value is not None and name not in ("role", "quick")
    }
    options = [text for name, value in arguments.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    return _started(["-m", "benchmarks.gigabytes", "--role", role, *options])


@contextmanager
def _started(arguments: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _say(**facts: Any) -> None:
    """Print a JSON line for the parent process."""
    print(json.dumps(facts), flush=True)


def _line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the process has ended"
    found: dict[str, Any] = json.loads(line)
    return found


# --- the report ---


def markdown(found: dict[str, Any], given: argparse.Namespace) -> str:
    """The figures as a table."""
    model = FLOAT_BYTES * given.dimension
    round_s = found["round_s"]
    rate = 2 * given.clients * wire_bytes(given) / median(round_s)
    worst = {kind: max(client[kind] for client in found["clients"]) for kind in found["clients"][0]}

    def models(peaks: dict[str, int], kind: str) -> str:
        return f"{peaks[kind] / model:.2f}"

    def memory(name: str, peaks: dict[str, int], goal: str) -> tuple[str, ...]:
        kinds = ", ".join(f"{kind} {models(peaks, kind)}" for kind in ("resident", "files"))
        return f"memory of {name}, anonymous, in models", models(peaks, "anonymous"), f"{goal} ({kinds})"

    rows = [
        ("model", report.megabytes(model), f"{given.dimension:,} numbers in float32"),
        ("clients, rounds, updates accepted", f"{given.clients}, {given.rounds}, {found['accepted']}", ""),
        ("encoding of models and updates", given.encoding, f"{report.megabytes(wire_bytes(given))} on the wire"),
        ("connections broken, of a client", f"{found['broken'] / given.clients:.1f}", f"at least {given.cuts}"),
        ("seconds a round", report.median_and_spread(round_s, ".1f"), ""),
        ("payload to and from all clients", f"{rate / 1e9:.2f} GB/s", "NVFlare, published: 0.26 GB/s"),
        memory("the server", found["server"], "goal 4; NVFlare, published: 26"),
        *[memory("a gateway", each, "") for each in found["gateways"]],
        memory("a client, the largest", worst, "goal 2"),
        ("processor seconds of the server, a round", f"{found['cpu_s']['server'] / given.rounds:.1f}", ""),
        (
            "processor seconds of a client, a round",
            f"{found['cpu_s']['clients'] / given.clients / given.rounds:.1f}",
            "",
        ),
    ]
    return report.table(("", "figure", "beside"), rows)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MEGABYTES} MB, 2 clients and 2 rounds")
    parser.add_argument("--megabytes", type=int, help="size of the model in float32")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--cuts", type=int, default=CUTS, help="broken connections of each client in the run")
    parser.add_argument("--encoding", default="float32", choices=tuple(WIDTHS))
    parser.add_argument("--gateways", type=int, default=0, help="gateway processes of the server")
    parser.add_argument("--folder", help="where the files of all processes lie; the default is the system's own")
    parser.add_argument("--role", choices=("serve", "take-part"), help=argparse.SUPPRESS)
    parser.add_argument("--dimension", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--client-id", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    defaults = (QUICK_MEGABYTES, 2, 2) if given.quick else (MEGABYTES, CLIENTS, ROUNDS)
    for name, default in zip(("megabytes", "clients", "rounds"), defaults, strict=True):
        if getattr(given, name) is None:
            setattr(given, name, default)
    given.dimension = given.dimension or given.megabytes * 1_000_000 // FLOAT_BYTES
    return given


def main() -> None:
    given = parsed()
    if given.role == "serve":
        serve(given)
    elif given.role == "take-part":
        take_part(given)
    else:
        print(markdown(run(given), given))


if __name__ == "__main__":
    main()
