"""The step of each policy against one read of the matrix of updates; the budget is a ratio of 2.

Reference: the matrix's sum, or its largest and smallest number, whichever is faster; each reads the matrix once and
writes nothing. Reads and steps alternate. The fastest of the repetitions counts, because whatever else the machine
does at the time can only slow one down.

    python -m benchmarks.aggregation [--quick] [--device cuda]
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from unstale.learner.device import choose
from unstale.policies import UpdateBatch, create, names

DIMENSIONS = (62_006, 1_000_000, 11_000_000)  # LeNet for CIFAR-10, a small CNN, ResNet-18
ROWS = (10, 50)
MATRIX_BYTES_MAX = 3_000_000_000
READ_BYTES = 10_000_000_000  # by every policy at each size; decides the number of repetitions
BUDGET_RATIO = 2.0
CLIENTS = 100


def run(quick: bool = False, device: str = "cpu") -> dict[str, Any]:
    """Figures by size: seconds and GB/s of one read, each policy's ratio to it. quick: small sizes, few repeats."""
    where = choose(device)
    dimensions = DIMENSIONS[:2] if quick else DIMENSIONS
    sizes = [_measure(d, rows, where, repeats_max=5 if quick else 200) for d in dimensions for rows in ROWS]
    return {
        "benchmark": "aggregation",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        "budget_ratio": BUDGET_RATIO,
        "sizes": [size for size in sizes if size is not None],
    }


def _measure(dimension: int, rows: int, device: torch.device, *, repeats_max: int) -> dict[str, Any] | None:
    if 4 * dimension * rows > MATRIX_BYTES_MAX:
        return None
    batch = _batch(dimension, rows, device)
    calls: dict[str, Callable[[], object]] = {
        "sum": batch.matrix_Kd.sum,
        "extremes": lambda: torch.aminmax(batch.matrix_Kd),
    }
    for name in names():
        policy = create(name, dimension=dimension, clients=CLIENTS, device=device)
        calls[name] = lambda policy=policy: policy.step(batch)
    fastest_s = dict.fromkeys(calls, math.inf)
    for _ in range(min(repeats_max, 5 + READ_BYTES // batch.matrix_Kd.nbytes)):
        for name, call in calls.items():
            fastest_s[name] = min(fastest_s[name], _seconds(call, device))
    read_s = min(fastest_s.pop("sum"), fastest_s.pop("extremes"))
    return {
        "dimension": dimension,
        "updates": rows,
        "read_s": read_s,
        "read_gigabytes_per_s": batch.matrix_Kd.nbytes / read_s / 1e9,
        "ratios": {name: step_s / read_s for name, step_s in fastest_s.items()},
    }


def _batch(dimension: int, rows: int, device: torch.device) -> UpdateBatch:
    """A round whose updates were computed from four models, the current one among them."""
    models = [torch.randn(dimension, device=device) for _ in range(4)]
    return UpdateBatch(
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
    figures = run(arguments.quick, arguments.device)
    print(f"torch {figures['torch']}, {figures['threads']} threads, {figures['device']}")
    print(f"time of a step / time of one read of the matrix; budget {BUDGET_RATIO:g}")
    print(f"{'d':>12}{'K':>5}{'read':>12}{'GB/s':>8}" + "".join(f"{name:>10}" for name in names()))
    for size in figures["sizes"]:
        ratios = "".join(f"{size['ratios'][name]:>10.2f}" for name in names())
        read = f"{size['read_s'] * 1e3:>9.3f} ms{size['read_gigabytes_per_s']:>8.1f}"
        print(f"{size['dimension']:>12,}{size['updates']:>5}{read}{ratios}")


if __name__ == "__main__":
    main()
