"""The step of each policy on a GPU beside the CPU: its time, and how often the CPU waits for the GPU in it.

Versions increase and clients return after a few rounds, as in `benchmarks.aggregation`. A step of the GPU ends when its
result is there. Waits are those that PyTorch reports (`torch.cuda.set_sync_debug_mode`).

At the large sizes there are a few policies unless some are named.

    python -m benchmarks.gpu_policies [--device cuda] [--only POLICY ...] [--quick]
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks import report
from benchmarks.aggregation import CLIENTS, GROUPS, SETTINGS, STALENESS_MAX, batch_of
from unstale.config.memory import allocator
from unstale.learner.device import choose
from unstale.policies import Policy, UpdateBatch, create, names

SIZES = ((62_006, 10), (62_006, 50), (11_173_962, 10), (11_173_962, 50))  # LeNet's and ResNet-18's parameters; rows
LARGE = 10**6
OF_LARGE = ("fedavg", "fedhist", "wkafl", "fedar", "mifa", "fedvarp", "krum")
WARM, STEPS = 4, 5


def run(device: torch.device, only: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Iterator[list[str]]:
    """A row for each policy and size."""
    for dimension, rows in sizes:
        for name in only or (OF_LARGE if dimension > LARGE else names()):
            seconds, waits = {}, 0.0
            for where in (torch.device("cpu"), device):
                policy = create(
                    name,
                    dimension=dimension,
                    clients=4 * rows if dimension > LARGE else CLIENTS,
                    device=where,
                    round_size=rows,
                    rounds=10**6,
                    allocate=allocator("auto", None, where),
                    **SETTINGS.get(name, {}),
                )
                seconds[where.type], waits = _steps(policy, batch_of(dimension, rows, where))
                del policy
            cpu_s, device_s = seconds["cpu"], seconds[device.type]
            figures = (f"{cpu_s * 1e3:.2f}", f"{device_s * 1e3:.2f}", f"{cpu_s / device_s:.1f}", f"{waits:.0f}")
            print(f"{name}, d={dimension:,}, K={rows}: {figures}", file=sys.stderr, flush=True)
            yield [f"{name}, d={dimension:,}, K={rows}", *figures]


def _steps(policy: Policy[Any], batch: UpdateBatch) -> tuple[float, float]:
    """Median seconds of a step, and how often the CPU waited in the last one."""
    seconds, waits = [], 0
    on_gpu = policy.device.type == "cuda"
    for version in range(WARM + STEPS):
        batch.matrix_Kd[version % len(batch)].normal_()
        now = replace(
            batch, version=version + STALENESS_MAX, client_ids_K=batch.client_ids_K + len(batch) * (version % GROUPS)
        )
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            started_s = time.perf_counter()
            policy.step(now)
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started_s)
        waits = sum("synchroniz" in str(one.message) for one in caught)
    return statistics.median(seconds[WARM:]), waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", default=(), metavar="POLICY")
    parser.add_argument("--quick", action="store_true", help="the smallest size")
    given = parser.parse_args()
    rows = run(choose(given.device), given.only, SIZES[:1] if given.quick else SIZES)
    print(report.table(["policy", "CPU, ms", f"{given.device}, ms", "times faster", "waits a step"], list(rows)))


if __name__ == "__main__":
    main()
