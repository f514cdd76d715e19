"""A simulation of an app against its training function in a bare loop; budget: 15 % over the bare loop.

The app is the regression of `examples/regression`: an MLP, and passes over the rows of a client with SGD. The bare loop
calls the same function on the same model and rows, as often as the simulation does, and does nothing else. Both
alternate in one process with one thread; an overhead is the ratio of two neighbours in CPU time, which does not count
the time in which other processes have the core.

    python -m benchmarks.app_overhead [--quick]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import unstale
from benchmarks import report
from unstale.config.settings import Settings
from unstale.simulator.assemble import simulation

CLIENTS, ROWS, BATCH = 20, 110, 16
PASSES = {"about 5 ms": 2, "about 50 ms": 20}
"""Passes over the rows of a client in a task, by the time that they take."""

ROUNDS, PAIRS = {"about 5 ms": 200, "about 50 ms": 30}, 7
BUDGET_OVERHEAD = 0.15


def make_app(passes: int) -> unstale.App:
    """The app of the regression, on drawn rows."""

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

    return unstale.App(model=model, data=data, train=train)


app: unstale.App
"""The one that is measured: settings name it."""


def run(quick: bool = False) -> list[dict[str, Any]]:
    """Seconds of each pair: of the simulation, and of the bare loop with as many tasks."""
    global app
    found = []
    for name, passes in PASSES.items():
        app = make_app(passes)
        rounds = ROUNDS[name] // (10 if quick else 1)
        _pair(rounds // 10)  # imports and caches
        pairs = [_pair(rounds) for _ in range(2 if quick else PAIRS)]
        found.append({"task": name, "passes": passes, "pairs": pairs})
    return found


def _pair(rounds: int) -> tuple[int, float, float]:
    """Number of tasks, and the seconds of both."""
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
    tasks = sum(made.run().updates.values())
    simulated_s = time.process_time() - began_s
    loop = _bare_loop(tasks)
    began_s = time.process_time()
    loop()
    return tasks, simulated_s, time.process_time() - began_s


def _bare_loop(tasks: int) -> Callable[[], object]:
    """Trains one model on the rows of one client after the other."""
    module, read = app.model(), app.data
    assert read is not None
    rows = [read(SimpleNamespace(client_id=client_id)) for client_id in range(CLIENTS)]

    def loop() -> None:
        for number in range(tasks):
            generator = torch.Generator().manual_seed(number)
            app.train(module, rows[number % CLIENTS], SimpleNamespace(learning_rate=0.01, generator=generator))

    return loop


def markdown(figures: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    rows = []
    for found in figures:
        overheads = sorted(simulated_s / bare_s - 1 for _, simulated_s, bare_s in found["pairs"])
        task_ms = statistics.median(1000 * bare_s / tasks for tasks, _, bare_s in found["pairs"])
        overhead = statistics.median(overheads)
        rows.append(
            [
                found["task"],
                f"{found['pairs'][0][0]}",
                f"{task_ms:.2f}",
                f"{1000 * overhead * task_ms:.0f}",
                f"{overhead:.1%}",
                f"{overheads[0]:.1%} to {overheads[-1]:.1%}",
                f"{'within' if overhead <= BUDGET_OVERHEAD else 'above'} {BUDGET_OVERHEAD:.0%}",
            ]
        )
    head = ["training", "tasks", "bare task, ms", "more in the simulation, us", "overhead", "of all pairs", "budget"]
    return report.table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer tasks and pairs")
    print(markdown(run(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
