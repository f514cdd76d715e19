"""Clients trained on a Ray cluster of this machine, over the same ones in processes of this machine.

Each backend computes the same jobs, all from one base version, with one worker for each core. They alternate in pairs;
a ratio is that of the seconds of a pair. There is no goal: the table shows how long a task must be until Ray costs
little.

    python -m benchmarks.ray_workers [--quick]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.simulation import noise
from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.learner.versions import Version
from unstale.simulator.backends.backend import Backend, Job
from unstale.simulator.backends.choose import choose

CLIENTS = 32
PAIRS = 9
MODELS = {"logreg": ((), 1), "lenet_cifar": ((32, 32, 3), 1), "lenet_cifar, 20 steps": ((32, 32, 3), 20)}
"""Shape of the images, and steps of a task."""


def compare(settings: Settings, pairs: int) -> list[list[float]]:
    """Seconds of all jobs with `processes` and on Ray, pair by pair."""
    model = training_context(settings).model
    base = Version(model_d=model.parameters_d.clone(), buffers_b=model.buffers_b.clone())
    there = settings.model_copy(update={"ray": "local"})
    here = settings.model_copy(update={"simulation": settings.simulation.model_copy(update={"backend": "processes"})})
    backends = [choose(chosen, training_context(chosen), CLIENTS) for chosen in (here, there)]
    seconds: list[list[float]] = [[], []]
    for number in range(pairs + 1):
        jobs = [
            Job(client_id=client_id, number=number, base=base, learning_rate=0.1, evaluate=False)
            for client_id in range(CLIENTS)
        ]
        for one in (0, 1) if number % 2 else (1, 0):
            duration_s = _seconds(backends[one], jobs)
            if number:  # the first ones gather the examples
                seconds[one].append(duration_s)
    for backend in backends:
        backend.close()
    return seconds


def _seconds(backend: Backend, jobs: list[Job]) -> float:
    started_s = time.perf_counter()
    backend.compute(jobs)
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one model, five pairs")
    quick = parser.parse_args().quick
    rows = []
    with tempfile.TemporaryDirectory(prefix="unstale-bench-") as folder:
        for name in list(MODELS)[:1] if quick else MODELS:
            shape, steps = MODELS[name]
            settings = Settings(
                clients=CLIENTS,
                device="cpu",
                model={"name": name.partition(",")[0]},
                data=noise(Path(folder), shape),
                partition={"name": "iid", "min_examples": 1},
                training={"name": "sgd", "steps": steps, "batch_size": 32},
                policy={"name": "fedavg"},
            )
            processes, on_ray = compare(settings, 5 if quick else PAIRS)
            ratios = [there / here for here, there in zip(processes, on_ray, strict=True)]
            each_ms = [f"{statistics.median(seconds) / CLIENTS * 1e3:.2f}" for seconds in (processes, on_ray)]
            rows.append([name, *each_ms, report.median_and_spread(ratios)])
    print(report.table(["model", "processes, ms a client", "Ray, ms a client", "Ray over processes"], rows))


if __name__ == "__main__":
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  (Ray's workers otherwise yield to others)
    torch.set_num_threads(1)
    main()
