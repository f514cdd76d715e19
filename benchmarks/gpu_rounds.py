"""A round and an evaluation on a GPU, as they are and as they would be without early copies and large passes.

A round: ten rows have arrived, and the time from the closed round to the checked new model counts, by FedAvg. The rows
went up as they arrived, or go up now. An evaluation: 10,000 images, in large passes or in those of a CPU. Repetitions
of both kinds alternate. Goal: a ratio of at least 1 in each line.

    python -m benchmarks.gpu_rounds [--device cuda] [--quick]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch

from benchmarks import report
from unstale.config.build import row_uploads
from unstale.flat import FlatModel
from unstale.learner.device import choose
from unstale.learner.learner import Learner
from unstale.learner.updates import StagedUpdate, Staging
from unstale.policies import create
from unstale.training.evaluate import evaluate
from unstale.training.examples import TensorExamples
from unstale.training.models import build
from unstale.training.objectives import Classification

ROWS, IMAGES = 10, 10_000
DIMENSIONS = (62_006, 11_173_962)
MODELS = (("lenet_28", (1, 28, 28)), ("resnet18", (3, 32, 32)))


class _Rounds:
    """Rounds of a learner. early: rows go up as they arrive."""

    def __init__(self, dimension: int, device: torch.device, *, early: bool) -> None:
        policy = create("fedavg", dimension=dimension, clients=ROWS, device=device, round_size=ROWS)
        self._learner = Learner(torch.zeros(dimension), policy, learning_rate=lambda _: 0.1)
        uploads = row_uploads(ROWS, dimension, device) if early else None
        self._staging = Staging(dimension, ROWS, blocks_max=3, pin=device.type == "cuda", uploads=uploads)

    def seconds(self) -> float:
        handles = []
        for client in range(ROWS):
            handle, (row_D, *_) = self._staging.row()
            row_D.normal_()
            update = StagedUpdate(
                client_id=client, task_id=0, base_version=0, num_examples=1, batch_examples=1, loss=0.0, local_rate=0.1
            )
            self._staging.keep(handle, update)
            handles.append(handle)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started_s = time.perf_counter()
        closed = self._staging.take(handles)
        updates = [update.in_round(self._learner.version) for update in closed.updates]
        self._learner.apply_round(closed.ready(), updates)
        closed.release()
        return time.perf_counter() - started_s


def _evaluation(name: str, shape: tuple[int, ...], device: torch.device, images: int) -> Callable[[], float]:
    model = FlatModel(build(name, shape, 10, seed=1), device)
    model_d = model.parameters_d.clone()
    examples = TensorExamples(torch.randn(images, *shape, device=device), torch.randint(10, (images,), device=device))

    def seconds() -> float:
        started_s = time.perf_counter()
        evaluate(model, model_d, examples, Classification())
        return time.perf_counter() - started_s

    return seconds


def _compared(name: str, before: Callable[[], float], now: Callable[[], float], repeats: int) -> list[str]:
    pairs = [(before(), now()) for _ in range(repeats + 2)][2:]
    before_s, now_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = sorted(one / other for one, other in pairs)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    return [name, f"{before_s * 1e3:.2f}", f"{now_s * 1e3:.2f}", f"{statistics.median(ratios):.2f}", spread]


def run(device: torch.device, *, quick: bool) -> Iterator[list[str]]:
    repeats = 5 if quick else 15
    for dimension in DIMENSIONS[:1] if quick else DIMENSIONS:
        late, early = (_Rounds(dimension, device, early=early) for early in (False, True))
        yield _compared(f"round, d={dimension:,}, K={ROWS}", late.seconds, early.seconds, repeats)
    for name, shape in MODELS[:1] if quick else MODELS:
        seconds = _evaluation(name, shape, device, IMAGES // 10 if quick else IMAGES)

        def small(seconds: Callable[[], float] = seconds) -> float:
            with patch("unstale.training.evaluate.memory_bytes", return_value=0):
                return seconds()

        yield _compared(f"evaluation, {name}", small, seconds, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    given = parser.parse_args()
    rows = list(run(choose(given.device), quick=given.quick))
    print(report.table(["work", "before, ms", "now, ms", "times faster", "of pairs"], rows))


if __name__ == "__main__":
    main()
