"""Iterations of gradient inversion a second: operation by operation, and as one CUDA graph.

Eight clients with 32 reconstructed images each are inverted together. Both ways start from the same numbers, and
alternate in pairs. Launches are those of one iteration: kernels, copies and fills on CUDA (by the profiler), operations
that compute on the CPU. Without CUDA, graphs are simulated as their operations one by one.

Both ways must agree: the examples after the first 20 iterations within 1e-3, and the mean disparity after all of them
within 1 %. With deterministic algorithms and strict float32 all bits are expected to be equal, and it says whether they
are.

    python -m benchmarks.gpu_inversion [--device cuda] [--iterations 500] [--precision tf32] [--kernels] [--quick]
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import report
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.inversion.state import Inversion, Target
from unstale.compensators.network import LocalSteps, Network
from unstale.graphs import CudaGraphs, Graphs, Work
from unstale.learner.device import PRECISIONS, choose, set_precision
from unstale.training.models import build

GOAL_ITERATIONS, GOAL_S = 15_000, 60.0
FIRST, FIRST_TOLERANCE, LAST_TOLERANCE = 20, 1e-3, 0.01
KERNELS_SHOWN = 15
WARM = 5  # iterations before measuring
SHAPES = {"lenet_28": (1, 28, 28), "lenet_gi": (1, 28, 28), "lenet_cifar": (3, 32, 32)}
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


class _Eager:
    """Graphs of which none is captured. Given to an engine on CUDA, it computes every iteration eagerly."""

    def warm_up(self, work: Work) -> None:
        work()

    def capture(self, work: Work) -> Work | None:  # noqa: ARG002
        return None

    def upload(self, buffer: Tensor, values: Tensor) -> None:
        buffer.copy_(values)

    def mark(self) -> Work:
        return lambda: None


class _Repeating(_Eager):
    """On the CPU: a replay computes the work again."""

    def capture(self, work: Work) -> Work | None:
        return work


class Case:
    """Inversions of random updates, all with the same start for each call of `begun`."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        shape = SHAPES[options.model]
        self._options = options
        self._device = device
        module = build(options.model, shape, 10, seed=0).to(device)
        self._network = Network(module, shape, 10)
        generator = torch.Generator().manual_seed(1)
        count, dimension = options.clients, self._network.dimension
        start_d = torch.cat([parameter.detach().cpu().flatten() for parameter in module.parameters()])
        self._base_Bd = (start_d + 0.01 * torch.randn(count, dimension, generator=generator)).to(device)
        self._update_Bd = (0.003 * torch.randn(count, dimension, generator=generator)).to(device)
        self._inputs_BrX = torch.randn(count, options.examples, *shape, generator=generator).clamp(-2, 2).to(device)
        self._labels_BrC = torch.randn(count, options.examples, 10, generator=generator).to(device)

    def engine(self, graphs: Graphs | None) -> Engine:
        options = self._options
        settings = InversionSettings(
            batch_clients=options.clients, iterations=options.iterations, adapt=False, learning_rate=0.1
        )
        return Engine(self._network, LocalSteps(steps=options.steps), settings, graphs)

    def begun(self) -> list[Inversion]:
        return [
            Inversion(
                target=Target(
                    base=self._network.parts(base_d),
                    update=self._network.parts(update_d),
                    steps=self._options.steps,
                    rate=0.1,
                ),
                iterations=10**6,
                now=Reconstruction(inputs_rX=inputs_rX, labels_rC=labels_rC),
            )
            for base_d, update_d, inputs_rX, labels_rC in zip(
                self._base_Bd, self._update_Bd, self._inputs_BrX, self._labels_BrC, strict=True
            )
        ]


class Procedure:
    """An engine with its inversions, and the iterates after the first `FIRST` iterations."""

    def __init__(self, case: Case, graphs: Graphs | None) -> None:
        self.engine, self.ones = case.engine(graphs), case.begun()
        self.first: list[Tensor] = []

    def iterate(self, times: int) -> None:
        for _ in range(times):
            self.engine.iterate(self.ones)
            if self.ones[0].done == FIRST:
                self.first = [one.now.inputs_rX for one in self.ones]


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Until the device has finished."""
    _synchronize(device)
    started_s = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - started_s


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Count(TorchDispatchMode):
    launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = func._schema.returns  # noqa: SLF001  (nothing public tells views apart)
        self.launches += not (returns and returns[0].alias_info and not returns[0].alias_info.is_write)
        return func(*args, **(kwargs or {}))


def kernels(procedure: Procedure, device: torch.device) -> str:
    """A table of the kernels that take most of the device's time in one iteration."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        procedure.iterate(1)
        _synchronize(device)
    averages = [event for event in profiled.key_averages() if event.self_device_time_total]
    averages.sort(key=lambda event: -event.self_device_time_total)
    total_us = sum(event.self_device_time_total for event in averages)
    rows = [
        [event.key[:80], f"{event.count}", f"{event.self_device_time_total:,.0f}"] for event in averages[:KERNELS_SHOWN]
    ]
    number = sum(event.count for event in averages)
    return report.table(["kernel", "calls", "us"], [*rows, ["all", f"{number:,}", f"{total_us:,.0f}"]])


def launches(procedure: Procedure, device: torch.device) -> int:
    """Of one iteration."""
    if device.type != "cuda":
        with _Count() as counted:
            procedure.iterate(1)
        return counted.launches
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiled:
        procedure.iterate(1)
        _synchronize(device)
    return sum(event.count for event in profiled.key_averages() if event.key.startswith(LAUNCHES))


def compared(eager: Procedure, captured: Procedure) -> tuple[list[str], bool]:
    """Lines about the difference of results, and whether they agree."""
    first = max(float((a - b).abs().max()) for a, b in zip(eager.first, captured.first, strict=True))
    disparities = [sum(float(one.disparity) for one in each.ones) / len(each.ones) for each in (eager, captured)]
    last = abs(disparities[0] - disparities[1]) / disparities[0]
    is_equal = all(
        torch.equal(a, b) for one, other in zip(eager.ones, captured.ones, strict=True)
        for a, b in zip(one.state, other.state, strict=True)
    )  # fmt: skip
    lines = [
        f"- difference of examples after {FIRST} iterations: {first:.3g} (at most {FIRST_TOLERANCE:g})",
        f"- relative difference of disparity after {eager.ones[0].done}: {last:.3g} (at most {LAST_TOLERANCE:g})",
        f"- all bits equal: {'yes' if is_equal else 'no'}",
    ]
    return lines, first <= FIRST_TOLERANCE and last <= LAST_TOLERANCE


def measure(options: argparse.Namespace) -> tuple[str, bool]:
    """The report, and whether both ways agree."""
    torch.set_num_threads(1)
    device = choose(options.device)
    set_precision(device, options.precision)
    case = Case(options, device)
    ways = {"eager": _Eager(), "captured": CudaGraphs(device) if device.type == "cuda" else _Repeating()}
    procedures = {name: Procedure(case, graphs) for name, graphs in ways.items()}
    for procedure in procedures.values():
        procedure.iterate(WARM)
    rates: dict[str, list[float]] = {name: [] for name in procedures}
    each = max(1, (options.iterations - WARM) // options.pairs)
    for _ in range(options.pairs):
        for name, procedure in procedures.items():
            rates[name].append(each / seconds(lambda procedure=procedure: procedure.iterate(each), device))
    lines, agree = compared(*procedures.values())
    counts = {name: launches(procedure, device) for name, procedure in procedures.items()}
    speedups = [b / a for a, b in zip(rates["eager"], rates["captured"], strict=True)]
    rows = [
        [name, report.median_and_spread(rates[name], ".1f"), f"{counts[name]:,}", f"{_goal_s(rates[name]):,.0f}"]
        for name in procedures
    ]
    headings = ["way", "iterations a second", "launches an iteration", f"seconds for {GOAL_ITERATIONS:,}"]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    memory = f", {torch.cuda.max_memory_allocated(device) / 1e6:,.0f} MB" if device.type == "cuda" else ""
    text = "\n".join(
        [
            f"{options.model} on {name} (torch {torch.__version__}), {options.clients} clients, {options.examples} "
            f"examples, {options.steps} local steps, {options.pairs} pairs of {each} iterations, "
            f"{options.precision}{memory}; goal: {GOAL_ITERATIONS:,} iterations in {GOAL_S:.0f} s.",
            "",
            report.table(headings, rows),
            "",
            f"- captured over eager: {report.median_and_spread(speedups)}",
            *lines,
            *(["", kernels(procedures["captured"], device)] if options.kernels and device.type == "cuda" else []),
        ]
    )
    return text, agree


def _goal_s(rates: Sequence[float]) -> float:
    return GOAL_ITERATIONS / sorted(rates)[len(rates) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", choices=SHAPES, default="lenet_28")
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--precision", choices=PRECISIONS, default="strict")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5, help="local steps of the clients")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--kernels", action="store_true", help="also the kernels that take most of the time, on CUDA")
    parser.add_argument("--quick", action="store_true", help="30 iterations of two clients with four examples")
    options = parser.parse_args()
    if options.quick:
        options.iterations, options.clients, options.examples, options.steps, options.pairs = 35, 2, 4, 1, 3
    if options.iterations < WARM + FIRST:
        parser.error(f"--iterations is {options.iterations}, expected {WARM + FIRST} or more")
    text, agree = measure(options)
    print(text)
    if not agree:
        sys.exit("the results of both ways do not agree")


if __name__ == "__main__":
    main()
