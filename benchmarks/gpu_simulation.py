"""Two simulations on a GPU: a cell of fh-t1 beside two CPU cores, and pfl-research's CIFAR-10 workload.

`fh-t1`: local steps a second of one cell (CIFAR-10, 100 clients, K-async with K = 10, 5 local steps of batch 32,
lenet_cifar, FedHist), as `unstale reproduce` computes it: on the CPU by the loop, in two processes of one thread; on
the device in one process and in several, which share it. All processes of an arrangement wait for each other, then are
timed from one evaluation to another; their steps a second are added up. Arrangements alternate.

`pfl-cifar10`: seconds of 1,500 synchronous rounds of 50 of 1,000 clients with 50 images each and a CNN of 1,626,442
parameters, from the duration of fewer rounds, of which the first ones are not timed.

Images are noise of the shape and number of CIFAR-10's. On the CPU the backend of the device's part is vmap as well, so
that the same code is tried without a GPU.

    python -m benchmarks.gpu_simulation fh-t1|pfl-cifar10 [--device cuda] [--processes N] [--quick]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import pfl_cifar10, report
from benchmarks.flower import Marks
from benchmarks.noise import write_noise
from benchmarks.preset_start import TimingEnded
from benchmarks.simulation_preset import Piece, settings_of
from unstale.config.settings import Settings, SimulationSettings
from unstale.device_memory import limit_memory, memory_bytes
from unstale.learner.device import choose, cores
from unstale.simulator.assemble import simulation
from unstale_papers import gpu, runners

CORES = 2
GOAL_RATIO, GOAL_S = 30.0, 60.0
TURNS, EVALUATIONS = 3, 5
ROUNDS_BEFORE, ROUNDS = 10, 300
QUICK_EVERY = 3  # rounds between evaluations


class Process:
    """A process that computes a piece of a run from the moment when all are there."""

    def __init__(self, settings: Settings, evaluations: int, share: float) -> None:
        start = {"settings": settings.model_dump(mode="json", exclude_unset=True), "evaluations": evaluations}
        command = [sys.executable, "-m", "benchmarks.gpu_simulation", "--child", json.dumps({**start, "share": share})]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process of the benchmark ended with {self._process.wait()}")
        return line

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.communicate()


def child(start: dict[str, Any]) -> None:
    """Compute a piece; prints a line when it starts, waits for one, and prints steps a second."""
    settings = Settings.model_validate(start["settings"])
    torch.set_num_threads(1)
    limit_memory(choose(settings.device), start["share"])
    piece = Piece.of(settings, start["evaluations"])
    marks: list[float] = []

    def begin() -> None:
        print("there", flush=True)
        sys.stdin.readline()
        marks.append(time.perf_counter())

    try:
        runners.measure("run", settings, {}, on_progress=piece.watched(settings, begin))
    except TimingEnded:
        k, steps = settings.trigger.k, settings.training.steps
        assert k is not None and steps is not None
        print((piece.last - piece.first) * k * steps / (time.perf_counter() - marks[0]), flush=True)


def steps_per_s(settings: Settings, evaluations: int, count: int) -> float:
    """Local steps a second of so many processes together."""
    share = 1.0 if settings.device == "cpu" else gpu.share(count)
    processes = [Process(settings, evaluations, share) for _ in range(count)]
    for process in processes:
        process.read()
    for process in processes:
        process.begin()
    rates = [float(process.read()) for process in processes]
    for process in processes:
        process.end()
    return sum(rates)


def fh_t1(data: Path, device: str, processes: int, *, quick: bool) -> str:
    """The figures of the cell as a table."""
    cell = settings_of(data)
    if quick:
        cell = cell.model_copy(update={"evaluate_every": QUICK_EVERY})
    evaluations, turns = (1, 1) if quick else (EVALUATIONS, TURNS)
    batched = "vmap" if device == "cpu" else "auto"
    arrangements: dict[str, tuple[Settings, int]] = {
        f"{CORES} CPU cores, loop": (_with(cell, "cpu", "loop"), CORES),
        f"{device}, loop, 1 process": (_with(cell, device, "loop"), 1),
        f"{device}, {batched}, 1 process": (_with(cell, device, batched), 1),
        f"{device}, {batched}, {processes} processes": (_with(cell, device, batched), processes),
    }
    if device == "cpu":
        del arrangements["cpu, loop, 1 process"]
    if processes == 1:
        del arrangements[f"{device}, {batched}, 1 processes"]
    rates: dict[str, list[float]] = {name: [] for name in arrangements}
    for _ in range(turns):
        for name, (settings, count) in arrangements.items():
            rates[name].append(steps_per_s(settings, evaluations, count))
            print(f"{name}: {rates[name][-1]:,.0f} local steps/s", file=sys.stderr, flush=True)
    first = next(iter(rates.values()))
    rows = [
        (
            name,
            report.median_and_spread(taken, ",.0f"),
            report.median_and_spread([ours / cpu for ours, cpu in zip(taken, first, strict=True)], ".1f"),
        )
        for name, taken in rates.items()
    ]
    return (
        f"A cell of fh-t1, median and spread of {turns} alternating turns. Goal: {GOAL_RATIO:g} times as many local "
        f"steps a second as {CORES} CPU cores, on an H200.\n\n"
        + report.table(("arrangement", "local steps/s", f"times {CORES} cores"), rows)
    )


def _with(settings: Settings, device: str, backend: Any) -> Settings:
    return settings.model_copy(update={"device": device, "simulation": SimulationSettings(backend=backend)})


def pfl(data: Path, device: str, before: int, rounds: int) -> str:
    """The figures of pfl-research's workload as a table. before: rounds that are not timed."""
    backend = "vmap" if device == "cpu" else "auto"
    settings = _with(pfl_cifar10.settings_of(data, before + rounds), device, backend)
    marks = Marks()
    started_s = time.perf_counter()
    simulation(settings, on_progress=lambda _: None, watcher=marks).run()
    timed_s = marks.applied_s[-1] - marks.applied_s[before - 1]
    per_round_s = timed_s / rounds
    rows = [
        ("seconds of 1,500 rounds", f"{per_round_s * pfl_cifar10.ROUNDS_OF_WORKLOAD:,.1f}"),
        ("clients/s", f"{pfl_cifar10.CLIENTS_OF_A_ROUND / per_round_s:,.0f}"),
        (f"seconds of the first rounds, {before}, and the start", f"{marks.applied_s[before - 1] - started_s:.1f}"),
    ]
    return (
        f"pfl-research's CIFAR-10 workload on {device}, backend {backend}, from {rounds} rounds. Goal: under "
        f"{GOAL_S:g} s on an H200.\n\n" + report.table(("what", "value"), rows)
    )


def default_processes(device: str) -> int:
    """As `unstale reproduce run` has."""
    where = choose(device)
    return gpu.processes(memory_bytes(where), cores()) if where.type == "cuda" else 1


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", nargs="?", choices=("fh-t1", "pfl-cifar10"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, help="of fh-t1 on the device; default: as unstale reproduce run")
    parser.add_argument("--quick", action="store_true", help="few rounds, and one turn")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child is not None:
        child(json.loads(given.child))
        return
    if given.workload is None:
        parser.error("name a workload: fh-t1 or pfl-cifar10")
    with tempfile.TemporaryDirectory(prefix="unstale-bench-") as folder:
        data = Path(folder) / "noise.npz"
        write_noise(data)
        if given.workload == "pfl-cifar10":
            print(pfl(data, given.device, *((1, 1) if given.quick else (ROUNDS_BEFORE, ROUNDS))))
            return
        processes = given.processes or default_processes(given.device)
        print(fh_t1(data, given.device, processes, quick=given.quick))


if __name__ == "__main__":
    main()
