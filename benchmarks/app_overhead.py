"""A simulation of an app against its training function in a bare loop; budget: 15 % over the bare loop.

The app is the regression of `examples/regression`: an MLP, and passes over the rows of a client with SGD. After each
task of the simulation, the same function trains another model on the same rows outside of it: the bare task. Its time
is taken from that of the simulation, and the overhead is what the rest takes more than all bare tasks. So each task has
its pair within milliseconds, and what other processes do to the machine meets both alike. All in one process with one
thread, in CPU time.

    python -m benchmarks.app_overhead [--quick]
"""

import argparse
import statistics
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import unstale
from benchmarks import report
from unstale.config.settings import Settings
from unstale.simulator.assemble import simulation

CLIENTS, ROWS, BATCH = 20, 110, 16
PASSES = {"about 2 ms": 1, "about 5 ms": 3, "about 50 ms": 30}
"""Passes over the rows of a client in a task, by the time that they take."""

ROUNDS, RUNS = {"about 2 ms": 100, "about 5 ms": 50, "about 50 ms": 10}, 9
BUDGET_OVERHEAD = 0.15


class Run(NamedTuple):
    """A simulation. simulation_s: without the bare tasks, whose time is bare_s."""

    tasks: int
    simulation_s: float
    bare_s: float


def make_app(passes: int, bare_s: list[float]) -> unstale.App:
    """The app of the regression, on drawn rows. bare_s: receives the seconds of each bare task."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def data(client: Any) -> tuple[Tensor, Tensor]:
        drawn = torch.Generator().manual_seed(client.client_id)
        inputs = torch.randn(ROWS, 10, generator=drawn)
        return inputs, inputs.sum(dim=1, keepdim=True) + torch.randn(ROWS, 1, generator=drawn)

    def train(module: nn.Module, rows: tuple[Tensor, Tensor], task: Any) -> unstale.Trained:
        inputs, targets = rows
        optimiser = torch.optim.SGD(module.parameters(), lr=task.learning_rate, momentum=0.9)
        for _ in range(passes):
            for batch in torch.randperm(len(inputs), generator=task.generator).split(BATCH):
                loss = nn.functional.mse_loss(module(inputs[batch]), targets[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return unstale.Trained(num_examples=len(inputs), loss=loss.item())

    bare = model()

    def train_and_compare(module: nn.Module, rows: tuple[Tensor, Tensor], task: Any) -> unstale.Trained:
        trained = train(module, rows, task)
        generator = torch.Generator().manual_seed(task.number)
        began_s = time.process_time()
        train(bare, rows, SimpleNamespace(learning_rate=task.learning_rate, generator=generator))
        bare_s.append(time.process_time() - began_s)
        return trained

    return unstale.App(model=model, data=data, train=train_and_compare)


app: unstale.App
"""The one that is measured: settings name it."""


def run(quick: bool = False) -> list[dict[str, Any]]:
    """The runs with each length of a task."""
    figures = []
    for name, passes in PASSES.items():
        rounds = ROUNDS[name] // (10 if quick else 1)
        _simulate(passes, rounds // 5)  # imports and caches
        runs = [_simulate(passes, rounds) for _ in range(2 if quick else RUNS)]
        figures.append({"task": name, "runs": runs})
    return figures


def _simulate(passes: int, rounds: int) -> Run:
    """Simulate, with a bare task after each task."""
    global app
    bare_s: list[float] = []
    app = make_app(passes, bare_s)
    settings = Settings(
        app=f"{__name__}:app",
        clients=CLIENTS,
        rounds=rounds,
        device="cpu",
        threads=1,
        training={"learning_rate": 0.01},
        trigger={"name": "k-async", "k": 5},
        policy={"name": "fedavg"},
        evaluate_every=rounds,
    )
    made = simulation(settings, on_progress=lambda _: None)
    began_s = time.process_time()
    made.run()
    return Run(len(bare_s), time.process_time() - began_s - sum(bare_s), sum(bare_s))


def markdown(figures: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    rows = []
    for figure in figures:
        runs: list[Run] = figure["runs"]
        overheads = [run.simulation_s / run.bare_s - 1 for run in runs]
        tasks, overhead = runs[0].tasks, statistics.median(overheads)
        rows.append(
            [
                figure["task"],
                f"{tasks}",
                f"{1000 * statistics.median(run.bare_s for run in runs) / tasks:.2f}",
                f"{1e6 * statistics.median(run.simulation_s - run.bare_s for run in runs) / tasks:.0f}",
                report.median_and_spread(overheads, ".1%"),
                f"{'within' if overhead <= BUDGET_OVERHEAD else 'above'} {BUDGET_OVERHEAD:.0%}",
            ]
        )
    head = ["training", "tasks", "bare task, ms", "more in the simulation, us", "overhead", "budget"]
    return report.table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer tasks and pairs")
    print(markdown(run(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
