"""The simulator against a bare training loop over the same batches; budget: 15 % overhead.

The simulation is recorded once, to know who computes which mini-batch in which order. Bare is what one would write by
hand: an ordinary module, the same mini-batches drawn beforehand, K gradients accumulated, one step. Simulator and
loop alternate; the overhead is taken pair by pair.

    python -m benchmarks.simulation [--quick]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks import report
from unstale.config import parts
from unstale.config.learning import (
    DataSettings,
    ModelSettings,
    PartitionSettings,
    PolicySettings,
    TrainingSettings,
)
from unstale.config.settings import Settings, TriggerSettings
from unstale.config.workplace import workplace
from unstale.coordinator import actions, events
from unstale.seeds import Stream, stream
from unstale.simulator.assemble import simulation
from unstale.training.models import build

CLIENTS = 20
K = 5
BATCH = 32
PAIRS = 5
ROUNDS = 100
BUDGET_OVERHEAD = 0.15

Batch = tuple[Tensor, Tensor]


def run(quick: bool = False) -> list[dict[str, Any]]:
    """Figures of each model: client-gradients a second of both, and overheads pair by pair."""
    pairs, rounds = (2, 20) if quick else (PAIRS, ROUNDS)
    with tempfile.TemporaryDirectory(prefix="unstale-bench-") as folder:
        path = Path(folder) / "cifar-like.npz"
        _write_random_images(path)
        return [
            _measure("digits_cnn", DataSettings(), pairs, rounds),
            _measure("lenet_cifar", DataSettings(name="npz", path=str(path)), pairs, rounds),
        ]


def _write_random_images(path: Path) -> None:
    """The shape of CIFAR-10, less of it, and noise."""
    rng = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for part, examples in (("train", 2000), ("test", 100)):
        parts[f"x_{part}"] = rng.integers(0, 256, (examples, 32, 32, 3), dtype=np.uint8)
        parts[f"y_{part}"] = np.arange(examples) % 10
    np.savez(path, **parts)


def _measure(model: str, data: DataSettings, pairs: int, rounds: int) -> dict[str, Any]:
    settings = Settings(
        clients=CLIENTS,
        rounds=rounds,
        evaluate_every=10**9,
        device="cpu",
        model=ModelSettings(name=model),
        data=data,
        partition=PartitionSettings(name="iid", min_examples=1),
        training=TrainingSettings(name="gradient", steps=1, batch_size=BATCH),
        policy=PolicySettings(name="fedavg"),
        trigger=TriggerSettings(name="k-async", k=K),
    )
    batches = _batches(settings, _order(settings))
    simulated_s, bare_s = [], []
    for _ in range(pairs):
        simulated_s.append(_simulated_s(settings))
        bare_s.append(_bare_s(settings, batches))
    return {
        "model": model,
        "gradients": len(batches),
        "simulated_per_s": [len(batches) / seconds for seconds in simulated_s],
        "bare_per_s": [len(batches) / seconds for seconds in bare_s],
        "overheads": [ours_s / theirs_s - 1 for ours_s, theirs_s in zip(simulated_s, bare_s, strict=True)],
    }


def _order(settings: Settings) -> list[tuple[int, int]]:
    """(client id, number of its task) of every update of the simulation, in order of arrival."""
    numbers: dict[tuple[int, int], int] = {}
    order = []

    def observe(event: events.Event, what_to_do: Sequence[actions.Action]) -> None:
        if isinstance(event, events.UpdateArrived):
            order.append((event.client_id, numbers.pop((event.client_id, event.task_id))))
        for action in what_to_do:
            if isinstance(action, actions.SendTask):
                numbers[action.client_id, action.task_id] = action.number

    simulation(settings, on_progress=lambda _: None, observe=observe).run()
    return order


def _batches(settings: Settings, order: list[tuple[int, int]]) -> list[Batch]:
    """The mini-batches that the simulated clients draw, gathered."""
    dataset = workplace(settings).dataset
    shares = parts.shares(settings, dataset)
    batches = []
    for client_id, number in order:
        own_n = shares[client_id]
        rng = stream(settings.seed, Stream.BATCHES, client_id, number)
        drawn_m = torch.from_numpy(own_n[rng.choice(len(own_n), size=min(BATCH, len(own_n)), replace=False)])
        batches.append((dataset.train_examples(drawn_m), dataset.labels_train_N[drawn_m]))
    return batches


def _simulated_s(settings: Settings) -> float:
    built = simulation(settings, on_progress=lambda _: None)
    started_s = time.perf_counter()
    built.run()
    return time.perf_counter() - started_s


def _bare_s(settings: Settings, batches: list[Batch]) -> float:
    inputs, labels = batches[0]
    model = build(settings.model.name, tuple(inputs.shape[1:]), 10, settings.seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=settings.training.learning_rate)
    started_s = time.perf_counter()
    for position, (inputs, labels) in enumerate(batches, start=1):
        loss = cross_entropy(model(inputs), labels) / K
        loss.backward()  # type: ignore[no-untyped-call]
        if position % K == 0:
            optimiser.step()
            optimiser.zero_grad()
    return time.perf_counter() - started_s


def markdown(figures: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    rows = [
        (
            figure["model"],
            f"{statistics.median(figure['overheads']):+.0%} "
            f"({min(figure['overheads']):+.0%} to {max(figure['overheads']):+.0%})",
            f"{BUDGET_OVERHEAD:.0%}",
            report.median_and_spread(figure["simulated_per_s"], ",.0f"),
            report.median_and_spread(figure["bare_per_s"], ",.0f"),
        )
        for figure in figures
    ]
    return (
        f"{CLIENTS} clients, gradient of one mini-batch of {BATCH}, fedavg, k-async with K = {K}, "
        f"{figures[0]['gradients']} client-gradients, {torch.get_num_threads()} threads; median and spread of "
        f"{len(figures[0]['overheads'])} alternating pairs.\n\n"
        + report.table(
            ("model", "overhead (spread)", "budget", "simulator, gradients/s", "bare loop, gradients/s"), rows
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and pairs")
    print(markdown(run(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
