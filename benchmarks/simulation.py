"""The simulator against bare training loops over the same batches; budget: 15 % overhead over the bare loop.

The simulation is recorded once, for the clients and mini-batches in order. The bare loop is handwritten: an ordinary
module, the same mini-batches drawn and gathered beforehand, K gradients accumulated, one step, and as many evaluations.
It also has the fastest arrangement of this machine: channels last, and one independent process per core. All alternate;
an overhead compares two in the same turn. Processes start before the clock.

    python -m benchmarks.simulation [--quick] [--device cuda]
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import report
from unstale.config.data import ClientData
from unstale.config.settings import Settings, SimulationSettings
from unstale.config.workspace import training_context
from unstale.coordinator import actions, events
from unstale.metrics.progress import Progress
from unstale.seeds import Stream, stream
from unstale.settings.learning import (
    DataSettings,
    ModelSettings,
    PartitionSettings,
    PolicySettings,
    TrainingSettings,
    TriggerSettings,
)
from unstale.simulator.assemble import simulation
from unstale.training.models import build as build_model

CLIENTS = 20
K = 5
BATCH = 32
TURNS = 5
ROUNDS = 200
BUDGET_OVERHEAD = 0.15
MODELS = {"digits_cnn": (), "lenet_28": (28, 28, 1), "lenet_cifar": (32, 32, 3)}
"""Models, and the shape of their noise images; none: the digits."""

BARE, LOOP = "bare loop", "simulator, loop"

Batch = tuple[Tensor, Tensor]
Seconds = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A simulation's work. order: client id and task number of every update in order of arrival. evaluations: number of
    evaluations of the model.
    """

    settings: Settings
    order: Sequence[tuple[int, int]]
    evaluations: int


def run(
    turns: int = TURNS, rounds: int = ROUNDS, device: str = "cpu", only: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Figures of each model: seconds of each arrangement, by turn. only: these arrangements; none named: all."""
    with tempfile.TemporaryDirectory(prefix="unstale-bench-") as folder:
        return [
            _measure(_recorded(_settings(model, noise(Path(folder), shape), rounds, device)), turns, only)
            for model, shape in MODELS.items()
        ]


def noise(folder: Path, shape: Sequence[int]) -> DataSettings:
    if not shape:
        return DataSettings()
    path = folder / f"noise-{shape[0]}.npz"
    rng = np.random.default_rng(0)
    content: dict[str, Any] = {}
    for part, examples in (("train", 2000), ("test", 100)):
        content[f"x_{part}"] = rng.integers(0, 256, (examples, *shape), dtype=np.uint8)
        content[f"y_{part}"] = np.arange(examples) % 10
    np.savez(path, **content)
    return DataSettings(name="npz", path=str(path))


def _settings(model: str, data: DataSettings, rounds: int, device: str) -> Settings:
    return Settings(
        clients=CLIENTS,
        rounds=rounds,
        evaluate_every=10**9,
        device=device,
        model=ModelSettings(name=model),
        data=data,
        partition=PartitionSettings(name="iid", min_examples=1),
        training=TrainingSettings(name="gradient", batch_size=BATCH),
        policy=PolicySettings(name="fedavg"),
        trigger=TriggerSettings(name="k-async", k=K),
    )


def _recorded(settings: Settings) -> Recorded:
    numbers: dict[tuple[int, int], int] = {}
    order = []
    evaluations: list[Progress] = []

    def observe(event: events.Event, following: Sequence[actions.Action]) -> None:
        if isinstance(event, events.UpdateArrived):
            order.append((event.client_id, numbers.pop((event.client_id, event.task_id))))
        for action in following:
            if isinstance(action, actions.SendTask):
                numbers[action.client_id, action.task_id] = action.number

    simulation(settings, on_progress=evaluations.append, observe=observe).run()
    return Recorded(settings=settings, order=order, evaluations=len(evaluations))


def _measure(recorded: Recorded, turns: int, only: Sequence[str]) -> dict[str, Any]:
    settings = recorded.settings
    batches = list(_batches(recorded))
    tests = _tests(settings)
    on_cpu = settings.device == "cpu"

    def bare(layout: torch.memory_format) -> Seconds:
        return lambda: _bare_s(settings, batches, tests, recorded.evaluations, layout)

    arrangements: dict[str, Seconds] = {
        BARE: bare(torch.contiguous_format),
        "bare loop, channels last": bare(torch.channels_last),
        LOOP: lambda: _simulated_s(settings, "loop"),
        "simulator, vmap": lambda: _simulated_s(settings, "vmap"),
    }
    cores = os.cpu_count() or 1
    with _bare_processes(recorded, cores if on_cpu else 1) as side_by_side_s:
        if on_cpu and cores > 1:
            arrangements[f"bare, {cores} processes"] = side_by_side_s
            arrangements[f"simulator, {cores} processes"] = lambda: _simulated_s(settings, "processes")
        seconds: dict[str, list[float]] = {name: [] for name in only or arrangements}
        for _ in range(turns):
            for name, taken in seconds.items():
                taken.append(arrangements[name]())
    return {"model": settings.model.name, "gradients": len(batches), "seconds": seconds}


def _batches(recorded: Recorded, first_round: int = 0, every: int = 1) -> Iterator[Batch]:
    """The mini-batches that the simulated clients draw, gathered; of some rounds."""
    settings = recorded.settings
    dataset = training_context(settings).dataset
    shares = ClientData.of(settings, dataset).train()
    for position, (client_id, number) in enumerate(recorded.order):
        if position // K % every != first_round:
            continue
        own_n = shares[client_id]
        rng = stream(settings.seed, Stream.BATCHES, client_id, number)
        drawn_m = torch.from_numpy(own_n[rng.choice(len(own_n), size=min(BATCH, len(own_n)), replace=False)])
        inputs_mX = dataset.train_examples(drawn_m).to(settings.device)
        yield inputs_mX, dataset.train.labels_N[drawn_m].to(settings.device)


def _tests(settings: Settings) -> Batch:
    dataset = training_context(settings).dataset
    return dataset.test_examples().to(settings.device), dataset.test.labels_N.to(settings.device)


def _simulated_s(settings: Settings, backend: str) -> float:
    chosen = settings.model_copy(update={"simulation": SimulationSettings(backend=backend)})
    built = simulation(chosen, on_progress=lambda _: None)
    started_s = time.perf_counter()
    built.run()
    return time.perf_counter() - started_s


def _bare_s(
    settings: Settings, batches: Sequence[Batch], tests: Batch, evaluations: int, layout: torch.memory_format
) -> float:
    inputs_mX, _ = batches[0]
    model = build_model(settings.model.name, tuple(inputs_mX.shape[1:]), 10, settings.seed).to(settings.device)
    model = model.to(memory_format=layout)
    laid_out = [(inputs.contiguous(memory_format=layout), labels) for inputs, labels in batches]
    optimiser = torch.optim.SGD(model.parameters(), lr=settings.training.learning_rate)
    started_s = time.perf_counter()
    for position, (inputs_mX, labels_m) in enumerate(laid_out, start=1):
        loss = cross_entropy(model(inputs_mX), labels_m) / K
        loss.backward()  # type: ignore[no-untyped-call]
        if position % K == 0:
            optimiser.step()
            optimiser.zero_grad()
    for _ in range(evaluations):
        _evaluate(model, *tests)
    return time.perf_counter() - started_s


@torch.no_grad()
def _evaluate(model: nn.Module, inputs_MX: Tensor, labels_M: Tensor) -> tuple[float, float]:
    logits_MC = model.eval()(inputs_MX)
    model.train()
    right = (logits_MC.argmax(dim=1) == labels_M).float().mean()
    return right.item(), cross_entropy(logits_MC, labels_M).item()


@contextmanager
def _bare_processes(recorded: Recorded, count: int) -> Iterator[Seconds]:
    """Bare loops in single-threaded processes, each over every count-th round: duration of the slowest."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection[Any, Any]] = []
    for place in range(count if count > 1 else 0):
        ours, theirs = context.Pipe()
        context.Process(target=_bare_process, args=(theirs, recorded, place, count), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv_bytes()

    def side_by_side_s() -> float:
        for pipe in pipes:
            pipe.send_bytes(b"go")
        return max(float(pipe.recv_bytes()) for pipe in pipes)

    yield side_by_side_s
    for pipe in pipes:
        pipe.send_bytes(b"")


def _bare_process(pipe: "Connection[Any, Any]", recorded: Recorded, place: int, count: int) -> None:
    torch.set_num_threads(1)
    batches = list(_batches(recorded, place, count))
    tests = _tests(recorded.settings)
    evaluations = 0 if place else recorded.evaluations
    while True:  # the first time is not measured
        taken_s = _bare_s(recorded.settings, batches, tests, evaluations, torch.contiguous_format)
        pipe.send_bytes(str(taken_s).encode())
        if not pipe.recv_bytes():
            return


def markdown(figures: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    rows = [row for figure in figures for row in _rows(figure["model"], figure["gradients"], figure["seconds"])]
    turns = len(figures[0]["seconds"][BARE])
    return (
        f"{CLIENTS} clients, gradient of one mini-batch of {BATCH}, fedavg, k-async with K = {K}, "
        f"{figures[0]['gradients']} client-gradients, {torch.get_num_threads()} threads a process; median and spread "
        f"of {turns} turns. Budget: {BUDGET_OVERHEAD:.0%} over the bare loop. The best bare is the fastest by its "
        "median.\n\n"
        + report.table(("model, arrangement", "gradients/s", "over the bare loop", "over the best bare"), rows)
    )


def _rows(model: str, gradients: int, seconds: dict[str, list[float]]) -> Iterator[tuple[str, ...]]:
    best = min((name for name in seconds if name.startswith("bare")), key=lambda name: statistics.median(seconds[name]))

    def over(name: str, other: str) -> str:
        overheads = [ours / theirs - 1 for ours, theirs in zip(seconds[name], seconds[other], strict=True)]
        return report.median_and_spread(overheads, "+.0%")

    for name, taken in seconds.items():
        per_s = report.median_and_spread([gradients / one for one in taken], ",.0f")
        yield f"{model}, {name}", per_s, over(name, BARE), over(name, best)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and turns")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda, ...")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size = {"turns": 2, "rounds": 40} if arguments.quick else {}
    print(markdown(run(**size, device=arguments.device)))


if __name__ == "__main__":
    main()
