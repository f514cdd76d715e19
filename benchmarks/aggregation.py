"""The step of each policy against reading its matrix of updates once, at the machine's memory bandwidth.

The bandwidth is that of the faster of two reductions, the sum and the extremes, over a matrix far larger than the
caches. The fastest repetition counts, because whatever else the machine does at the time can only slow one down.
A matrix that fits the caches can be read faster than that; the column `read here` says how fast it was.

    python -m benchmarks.aggregation [--quick] [--device cuda]
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import machine
from benchmarks.report import table
from unstale.learner.device import choose
from unstale.policies import UpdateBatch, create, names

DIMENSIONS = (62_006, 1_000_000, 11_000_000)  # LeNet for CIFAR-10, a small CNN, ResNet-18
ROWS = (10, 50)
MATRIX_BYTES_MAX = 3_000_000_000
BANDWIDTH_BYTES = 512_000_000
READ_BYTES = 10_000_000_000  # by every policy at each size; decides the number of repetitions
REPEATS_MAX = 200
BUDGET_RATIO = 2.0
CLIENTS = 100


def run(quick: bool = False, device: str = "cpu") -> dict[str, Any]:
    """Bandwidth, and by size: the time of one read as measured, and each policy's ratio to one at the bandwidth.

    quick: small sizes and few repetitions.
    """
    where = choose(device)
    repeats_max = 5 if quick else REPEATS_MAX
    large = torch.ones(BANDWIDTH_BYTES // 4, device=where)
    bytes_per_s = large.nbytes / _read_s(large, min(repeats_max, 20))
    del large
    sizes = [
        _measure(dimension, rows, where, repeats_max, bytes_per_s)
        for dimension in (DIMENSIONS[:2] if quick else DIMENSIONS)
        for rows in ROWS
        if 4 * dimension * rows <= MATRIX_BYTES_MAX
    ]
    return {
        "benchmark": "aggregation",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        "gigabytes_per_s": bytes_per_s / 1e9,
        "budget_ratio": BUDGET_RATIO,
        "sizes": sizes,
    }


def _measure(
    dimension: int, rows: int, device: torch.device, repeats_max: int, bytes_per_s: float
) -> dict[str, Any]:
    batch = _batch(dimension, rows, device)
    repeats = min(repeats_max, 5 + READ_BYTES // batch.matrix_Kd.nbytes)
    policies = {name: create(name, dimension=dimension, clients=CLIENTS, device=device) for name in names()}
    fastest_s = dict.fromkeys(policies, math.inf)
    for _ in range(repeats):
        for name, policy in policies.items():
            fastest_s[name] = min(fastest_s[name], _seconds(lambda policy=policy: policy.step(batch), device))
    return {
        "dimension": dimension,
        "updates": rows,
        "read_here_s": _read_s(batch.matrix_Kd, repeats),
        "step_s": fastest_s,
        "ratios": {name: step_s * bytes_per_s / batch.matrix_Kd.nbytes for name, step_s in fastest_s.items()},
    }


def _read_s(matrix: torch.Tensor, repeats: int) -> float:
    """The least time in which every number of the matrix was read."""
    reads = (matrix.sum, lambda: torch.aminmax(matrix))
    return min(_seconds(read, matrix.device) for _ in range(repeats) for read in reads)


def _batch(dimension: int, rows: int, device: torch.device) -> UpdateBatch:
    """A round whose updates were computed from four models, the current one among them."""
    models = [torch.randn(dimension, device=device) for _ in range(4)]
    return UpdateBatch(
        version=0,
        matrix_Kd=torch.randn(rows, dimension, device=device),
        staleness_K=torch.arange(rows) % 4,
        num_examples_K=torch.arange(1, rows + 1),
        loss_K=torch.ones(rows),
        client_ids_K=torch.arange(rows),
        model_d=models[0],
        base_models=tuple(models[row % 4] for row in range(rows)),
        rate=0.1,
        local_rates_K=torch.full((rows,), 0.1),
    )


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    started_s = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes and few repetitions")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    arguments = parser.parse_args()
    print(machine.description("python -m benchmarks.aggregation"))
    figures = run(arguments.quick, arguments.device)
    print(f"- device: {figures['device']}, {figures['threads']} threads\n")
    print(f"Memory bandwidth {figures['gigabytes_per_s']:.1f} GB/s; time of a step / time of one read at it;")
    print(f"budget {BUDGET_RATIO:g}; fedasync with three older base models beside the current one.\n")
    headings = ("d", "K", "one read here", *names())
    rows = [
        (
            f"{size['dimension']:,}",
            str(size["updates"]),
            f"{size['read_here_s'] * 1e3:.3f} ms",
            *(f"{size['ratios'][name]:.2f}" for name in names()),
        )
        for size in figures["sizes"]
    ]
    print(table(headings, rows))


if __name__ == "__main__":
    main()
