"""Networks whose first convolution lays images out with their channels last, against the same with PyTorch's own.

Steps of plain SGD, and an evaluation without gradients, in one process of one thread; both networks in turns. Seconds
are the process's own on a CPU, so that what else runs shows little. A ratio is of two that ran in one turn.

    python -m benchmarks.first_convolution [--quick]
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import report
from unstale.flat import FlatModel
from unstale.training.models import build
from unstale.training.models.networks import FirstConv2d

CASES = (
    ("lenet_cifar", (3, 32, 32), 10, 8),
    ("lenet_cifar", (3, 32, 32), 10, 32),
    ("lenet_cifar", (3, 32, 32), 10, 64),
    ("celeba_cnn", (3, 84, 84), 2, 4),
    ("celeba_cnn", (3, 84, 84), 2, 32),
    ("resnet8", (3, 32, 32), 10, 32),
    ("resnet18", (3, 32, 32), 10, 16),
)
"""Model, shape of an image, classes, mini-batch."""

TURNS = 5
LASTS_S = 0.3  # a turn of steps, about
EVALUATED = 200  # examples at a time


def plain(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network with PyTorch's own convolution instead of ours."""
    network = build(name, shape, classes, 0)
    for layer in network.modules():
        if isinstance(layer, FirstConv2d):
            layer.__class__ = nn.Conv2d  # type: ignore[assignment]
    return network


def run(name: str, shape: tuple[int, ...], classes: int, batch: int, turns: int) -> dict[str, list[float]]:
    """Time of ours over the plain one's, of each turn, for steps and evaluations; and ours, in ms."""
    networks = [FlatModel(build(name, shape, classes, 0)), FlatModel(plain(name, shape, classes))]
    inputs_bX, labels_b = torch.randn(batch, *shape), torch.arange(batch) % classes
    tests_mX = torch.randn(EVALUATED, *shape)
    times = max(1, round(LASTS_S / _taken_s(lambda: _step(networks[0], inputs_bX, labels_b), 3)))
    found: dict[str, list[float]] = {"steps": [], "evaluations": [], "step ms": []}
    for _ in range(turns):
        steps = [_taken_s(lambda one=one: _step(one, inputs_bX, labels_b), times) for one in networks]
        evaluations = [_taken_s(lambda one=one: _evaluate(one, tests_mX), 3) for one in networks]
        found["steps"].append(steps[0] / steps[1])
        found["evaluations"].append(evaluations[0] / evaluations[1])
        found["step ms"].append(steps[0] * 1e3)
    return found


def _step(model: FlatModel, inputs_bX: Tensor, labels_b: Tensor) -> None:
    model.gradient_d.zero_()
    cross_entropy(model.module(inputs_bX), labels_b).backward()  # type: ignore[no-untyped-call]
    model.parameters_d.add_(model.gradient_d, alpha=-0.001)


def _evaluate(model: FlatModel, tests_mX: Tensor) -> None:
    with torch.no_grad():
        model.module(tests_mX)


def _taken_s(work: Callable[[], None], times: int) -> float:
    """Seconds of one."""
    work()
    started_s = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - started_s) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one turn")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    turns = 1 if arguments.quick else TURNS
    rows = []
    for name, shape, classes, batch in CASES:
        found = run(name, shape, classes, batch, turns)
        rows.append(
            (
                f"{name}, batch {batch}",
                report.median_and_spread(found["step ms"], ".1f"),
                report.median_and_spread(found["steps"]),
                report.median_and_spread(found["evaluations"]),
            )
        )
    print(
        f"Images laid out with their channels last, over as they come; one thread, median and spread of {turns} turns, "
        f"evaluations of {EVALUATED} examples at a time.\n"
    )
    print(report.table(("network", "a step, ms", "steps, over plain", "evaluations, over plain"), rows))


if __name__ == "__main__":
    main()
