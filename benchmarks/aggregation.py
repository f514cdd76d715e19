"""The step of each policy against reading its matrix of updates once, at the machine's memory bandwidth.

The bandwidth is that of the faster of two reductions, the sum and the extremes, over a matrix far larger than the
caches. The fastest repetition counts, because other load can only slow one down. A matrix that fits the caches can be
read faster; the column `read here` has its measured speed.

Rounds are consecutive: versions increase, updates are 0 to 3 rounds stale, and each client returns after a few rounds,
so that memories of all clients are read and written. There are 1,000 clients; their rows are in a sparse file, which
stores only the clients in these rounds.

    python -m benchmarks.aggregation [--quick] [--device cuda]
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.report import table
from unstale.learner.device import choose
from unstale.policies import Policy, UpdateBatch, create, names

DIMENSIONS = (62_006, 1_000_000, 11_000_000)  # LeNet for CIFAR-10, a small CNN, ResNet-18
ROWS = (10, 50)
CLIENTS = 1000
GROUPS = 4  # rounds until a client returns
STALENESS_MAX = 3
MATRIX_BYTES_MAX = 3_000_000_000
BANDWIDTH_BYTES = 512_000_000
SECONDS = 1.0  # for each policy at each size, at least three rounds
ROUNDS_BEFORE = 12  # not counted: first access to memory, histories fill
ROUNDS_MAX = 200
BUDGETS = {"fedhist": 6.0, "wkafl": 6.0}
WEIGHTED = (
    "direct",
    "dynsgd",
    "fedasync",
    "fedavg",
    "fedavg-is",
    "fedavg-s",
    "fedbuff",
    "fedprox",
    "moon",
    "sasgd",
    "twafl",
    "weighted",
)
"""Policies whose weights depend only on an update's own metadata: budget 2."""
SETTINGS: dict[str, dict[str, Any]] = {"fedavg-is": {"probabilities": 0.5}, "mifa": {"init": "zeros"}}


def run(
    quick: bool = False,
    device: str = "cpu",
    only: Sequence[str] = (),
    dimensions: Sequence[int] = DIMENSIONS,
    rows: Sequence[int] = ROWS,
) -> dict[str, Any]:
    """Bandwidth, and by size: the time of one read as measured, and each policy's ratio to one at the bandwidth.

    quick: small sizes and few rounds. only: these policies; none named: all.
    """
    where = choose(device)
    large = torch.ones(BANDWIDTH_BYTES // 4, device=where)
    bytes_per_s = large.nbytes / _read_s(large, 5 if quick else 20)
    del large
    sizes = [
        _measure(dimension, count, where, 0.05 if quick else SECONDS, bytes_per_s, only or names())
        for dimension in (dimensions[:1] if quick else dimensions)
        for count in rows
        if 4 * dimension * count <= MATRIX_BYTES_MAX
    ]
    return {
        "benchmark": "aggregation",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        "gigabytes_per_s": bytes_per_s / 1e9,
        "sizes": sizes,
    }


def _measure(
    dimension: int, rows: int, device: torch.device, seconds: float, bytes_per_s: float, measured: Sequence[str]
) -> dict[str, Any]:
    batch = batch_of(dimension, rows, device)
    ratios = {}
    for name in measured:
        policy = create(
            name,
            dimension=dimension,
            clients=CLIENTS,
            device=device,
            round_size=rows,
            rounds=10**6,
            allocate=_sparse,
            **SETTINGS.get(name, {}),
        )
        ratios[name] = _step_s(policy, batch, seconds) * bytes_per_s / batch.matrix_Kd.nbytes
    return {"dimension": dimension, "updates": rows, "read_here_s": _read_s(batch.matrix_Kd, 5), "ratios": ratios}


def _step_s(policy: Policy[Any], batch: UpdateBatch, seconds: float) -> float:
    """The duration of the fastest round within so many seconds."""
    fastest_s, spent_s, version = math.inf, 0.0, 0
    while version < ROUNDS_BEFORE + 3 or (spent_s < seconds and version < ROUNDS_MAX):
        batch.matrix_Kd[version % len(batch)].normal_()  # otherwise all past directions would be equal
        now = replace(
            batch, version=version + STALENESS_MAX, client_ids_K=batch.client_ids_K + len(batch) * (version % GROUPS)
        )
        took_s = _seconds(partial(policy.step, now), policy.device)
        if version >= ROUNDS_BEFORE:
            fastest_s, spent_s = min(fastest_s, took_s), spent_s + took_s
        version += 1
    return fastest_s


def _sparse(rows: int, columns: int) -> Tensor:
    """Zeros in a sparse file, which stores only written rows."""
    with tempfile.NamedTemporaryFile(prefix="unstale-bench-") as file:
        file.truncate(4 * rows * columns)
        return torch.from_file(file.name, shared=True, size=rows * columns).view(rows, columns)


def _read_s(matrix: Tensor, repeats: int) -> float:
    """The least time to read every number of the matrix."""
    reads = (matrix.sum, lambda: torch.aminmax(matrix))
    return min(_seconds(read, matrix.device) for _ in range(repeats) for read in reads)


def batch_of(
    dimension: int, rows: int, device: torch.device, matrix_Kd: Tensor | None = None, *, models: int = STALENESS_MAX + 1
) -> UpdateBatch:
    """A round whose updates were computed from several models, the current one among them. matrix_Kd: of its rows."""
    base_models = [torch.randn(dimension, device=device) for _ in range(models)]
    staleness_K = torch.arange(rows) % models
    if matrix_Kd is None:
        matrix_Kd = torch.randn(rows, dimension, device=device)
    return UpdateBatch(
        version=0,
        matrix_Kd=matrix_Kd,
        staleness_K=staleness_K,
        num_examples_K=torch.arange(1, rows + 1),
        loss_K=torch.ones(rows),
        client_ids_K=torch.arange(rows),
        extra_Kd=matrix_Kd,
        model_d=base_models[0],
        base_models=tuple(base_models[s] for s in staleness_K.tolist()),
        rate=0.1,
        local_rates_K=torch.full((rows,), 0.1),
    )


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    started_s = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started_s


def _budget(name: str) -> str:
    if name in BUDGETS:
        return f"{BUDGETS[name]:g}"
    return "2" if name in WEIGHTED else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    parser.add_argument("--only", nargs="+", default=(), metavar="POLICY", help="only these")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(machine.description("python -m benchmarks.aggregation"))
    figures = run(arguments.quick, arguments.device, arguments.only)
    print(f"- device: {figures['device']}, {figures['threads']} thread\n")
    print(f"Memory bandwidth {figures['gigabytes_per_s']:.1f} GB/s. Each figure: time of a step / time of reading the")
    print(f"[K, d] matrix once at it. N = {CLIENTS:,}; fedhist with its own h = N/(2K); fedasync with three older")
    print("base models beside the current one. A dash: no budget is set for this policy.\n")
    sizes = figures["sizes"]
    headings = ("policy", "budget", *(f"d={size['dimension']:,} K={size['updates']}" for size in sizes))
    rows = [
        (name, _budget(name), *(f"{size['ratios'][name]:.2f}" for size in sizes)) for name in arguments.only or names()
    ]
    rows.append(("one read here", "", *(f"{size['read_here_s'] * 1e3:.2f} ms" for size in sizes)))
    print(table(headings, rows))


if __name__ == "__main__":
    main()
