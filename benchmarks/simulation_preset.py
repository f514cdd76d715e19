"""A cell of fh-t1 in `unstale reproduce`, against a bare loop over the same local steps.

CIFAR-10, Dirichlet 0.3, 100 clients, K-async with K = 10, 5 local steps of batch 32, lenet_cifar, FedHist. What is
timed is a piece of the run of 5,000 rounds, from one evaluation to another; the start of the run is timed separately.
The bare loop is handwritten: an ordinary module, the mini-batches of the same tasks in order, gathered beforehand, and
a step of `torch.optim.SGD` for each. It has one model, sends and aggregates nothing; the run is also compared with one
that evaluates as often. All run in one single-threaded process, in turns; a ratio compares two in the same turn.
Seconds are processor time on a CPU, so that other load has little effect. A profiler measures the shares of parts in a
slower turn of its own.

    python -m benchmarks.simulation_preset [--data FILE.npz] [--quick] [--device cuda]

Without --data the images are noise of the shape and number of CIFAR-10's: equal work without learning.
"""

import argparse
import inspect
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from cProfile import Profile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from benchmarks import report
from benchmarks.noise import write_noise
from benchmarks.preset_start import CELL, TimingEnded
from unstale import translate
from unstale.config.settings import Settings, SimulationSettings
from unstale.config.workspace import TrainingContext, training_context
from unstale.coordinator.machine import Coordinator
from unstale.learner.learner import Learner, RoundResult
from unstale.learner.updates import RoundUpdate
from unstale.server.update_decoder import UpdateDecoder
from unstale.settings.learning import DataSettings
from unstale.simulator.assemble import simulation
from unstale.simulator.encoded import Encoded
from unstale.simulator.synchronous_compute import Watcher
from unstale.training.evaluate import evaluate
from unstale.training.local import LocalTask, LocalUpdate
from unstale.training.measured import Measured
from unstale.training.models import build
from unstale.training.trainer import Trainer
from unstale.training.trainings import StepTraining
from unstale.training.workload import ClientTask
from unstale_papers import runners
from unstale_papers.presets.fedhist import fh_t1

EVALUATIONS = 2
"""Evaluations in the timed piece, from the first after version 0 until before an untimed one."""

EVALUATED_AT_A_TIME = 1000  # examples, in the bare loop: as in `evaluate`
TURNS = 5
BUDGET = 0.87

PARTS: Mapping[str, Sequence[Callable[..., Any]]] = {
    "local steps": (StepTraining.compute,),
    "drawing mini-batches": (Trainer.local_task,),
    "aggregation": (Learner.apply_round,),
    "evaluation": (evaluate,),
    "messages and staging": (
        *(translate.to_task, translate.to_update, translate.to_update_arrived, translate.to_staged),
        *(translate.to_round, Encoded.payload, Encoded.version, UpdateDecoder.stage),
    ),
    "coordinator": (Coordinator.handle,),
}
"""Functions that do not call each other."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The timed rounds: after `first` until `last` is applied."""

    first: int
    last: int

    @classmethod
    def of(cls, settings: Settings, evaluations: int) -> "Piece":
        """A piece of so many evaluations and their rounds."""
        every = settings.evaluate_every
        return cls(first=every, last=(1 + evaluations) * every)

    def watched(self, settings: Settings, begin: Callable[[], None]) -> Callable[[float], None]:
        """An `on_progress` that calls begin at the start of the piece, and raises TimingEnded at its end."""

        def watch(share: float) -> None:
            version = round(share * settings.rounds)
            if version == self.first:
                begin()
            if version == self.last:
                raise TimingEnded

        return watch


def settings_of(data: Path, device: str = "cpu") -> Settings:
    """Settings of the cell, with the data of a file."""
    (cell,) = (cell for cell in fh_t1().cells if cell.labels == CELL)
    return cell.settings.model_copy(
        update={
            "data": DataSettings(name="npz", path=str(data), normalise=cell.settings.data.normalise),
            "simulation": SimulationSettings(backend="loop"),
            "device": device,
            "threads": 1,
        }
    )


def run(settings: Settings, quick: bool = False) -> dict[str, Any]:
    """Figures of every turn, and of the turn with the profiler."""
    turns, evaluations = (1, 1) if quick else (TURNS, EVALUATIONS)
    piece = Piece.of(settings, evaluations)
    context = training_context(settings)
    batches = _recorded(settings, context, piece)
    tests = (context.dataset.test_examples().to(context.device), context.dataset.test.labels_N.to(context.device))
    path = str(settings.data.path)
    figures: dict[str, list[float]] = {}
    for _ in range(turns):
        turn = {
            **_bare("bare", batches, tests, settings, evaluations, torch.contiguous_format),
            **_bare("channels last", batches, tests, settings, evaluations, torch.channels_last),
            "run": _run_s(settings, piece),
            "first round": _ends_after_s(
                *("simulation_preset", "--until-first-round", "--data", path, "--device", settings.device)
            ),
            "first round of the command": _ends_after_s("preset_start", path, settings.device),
        }
        for name, seconds in turn.items():
            figures.setdefault(name, []).append(seconds)
    return {
        "seconds": figures,
        "steps": len(batches),
        "rounds": piece.last - piece.first,
        "evaluations": evaluations,
        "shares": _shares(settings, piece),
    }


# --- the run ---


def _play(settings: Settings, piece: Piece, begin: Callable[[], None]) -> None:
    """Measure the cell as the engine does, up to the end of the piece."""
    try:
        runners.measure("run", settings, {}, on_progress=piece.watched(settings, begin))
    except TimingEnded:
        return
    raise AssertionError("the run ended before the timed piece")


def _clock(settings: Settings) -> Callable[[], float]:
    """Processor seconds of this process, or wall-clock seconds for another device."""
    return time.process_time if settings.device == "cpu" else time.perf_counter


def _run_s(settings: Settings, piece: Piece) -> float:
    now_s = _clock(settings)
    marks: list[float] = []
    _play(settings, piece, lambda: marks.append(now_s()))
    return now_s() - marks[0]


def _shares(settings: Settings, piece: Piece) -> dict[str, float]:
    """Shares of the piece by part, under a profiler."""
    now_s = _clock(settings)
    profile = Profile(now_s)
    marks: list[float] = []

    def begin() -> None:
        marks.append(now_s())
        profile.enable()

    _play(settings, piece, begin)
    profile.disable()
    taken_s = now_s() - marks[0]
    inside_s = {entry.code: entry.totaltime for entry in profile.getstats()}
    shares = {
        part: sum(inside_s.get(inspect.unwrap(function).__code__, 0.0) for function in functions) / taken_s
        for part, functions in PARTS.items()
    }
    return {**shares, "everything else": 1 - sum(shares.values())}


def _ends_after_s(benchmark: str, *arguments: str) -> float:
    """Seconds from the start of a process to the `time.perf_counter` that it prints."""
    started_s = time.perf_counter()
    printed = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return float(printed) - started_s  # one clock for all processes of a machine


def _until_first_round(settings: Settings) -> float:
    """`time.perf_counter` of the first applied round."""
    marks: list[float] = []
    _play(settings, Piece(first=1, last=1), lambda: marks.append(time.perf_counter()))
    return marks[0]


# --- the bare loop ---


class _Marks(Watcher):
    """Records the tasks in a piece of a run."""

    def __init__(self, piece: Piece, context: TrainingContext) -> None:
        self.tasks: list[tuple[int, LocalTask]] = []
        self._piece = piece
        self._compute = context.trainer._compute  # noqa: SLF001

    def compute(self, task: ClientTask, local_task: LocalTask) -> LocalUpdate:
        self.tasks.append((task.client_id, local_task))
        return self._compute(task, local_task)

    @override
    def round_applied(self, result: RoundResult, updates: Sequence[RoundUpdate]) -> None:
        if result.version == self._piece.first:
            self.tasks.clear()
        if result.version == self._piece.last:
            raise TimingEnded

    @override
    def evaluated(self, version: int, evaluation: Measured, at_s: float) -> None:
        pass


def _recorded(settings: Settings, context: TrainingContext, piece: Piece) -> list[Batch]:
    """The gathered mini-batches of all tasks in the piece, in order."""
    marks = _Marks(piece, context)
    with patch.object(context.trainer, "_compute", marks.compute), suppress(TimingEnded):
        simulation(settings, on_progress=lambda _: None, context=context, watcher=marks).run()
    batches = []
    for client_id, task in marks.tasks:
        inputs_nX, labels_n = context.trainer.tensors(client_id)
        batches += [(inputs_nX.index_select(0, batch_b), labels_n.index_select(0, batch_b)) for batch_b in task.batches]
    return batches


def _bare(
    name: str, batches: Sequence[Batch], tests: Batch, settings: Settings, evaluations: int, layout: torch.memory_format
) -> dict[str, float]:
    """Seconds of the steps, and of so many evaluations."""
    inputs_bX, _ = batches[0]
    model = build(settings.model.name, tuple(inputs_bX.shape[1:]), 10, settings.seed).to(settings.device)
    model = model.to(memory_format=layout)
    optimiser = torch.optim.SGD(model.parameters(), lr=settings.training.learning_rate)
    now_s = _clock(settings)
    started_s = now_s()
    for inputs_bX, labels_b in batches:
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs_bX.contiguous(memory_format=layout)), labels_b)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    loss.item()
    trained_s = now_s()
    with torch.no_grad():
        for _ in range(evaluations):
            _evaluate(model, tests, layout)
    return {name: trained_s - started_s, f"{name} evaluations": now_s() - trained_s}


def _evaluate(model: nn.Module, tests: Batch, layout: torch.memory_format) -> tuple[int, float]:
    """Number of correct predictions, and the sum of the losses."""
    right, loss = 0, 0.0
    parts = (torch.split(part, EVALUATED_AT_A_TIME) for part in tests)
    for inputs_bX, labels_b in zip(*parts, strict=True):
        logits_bC = model(inputs_bX.contiguous(memory_format=layout))
        right += int((logits_bC.argmax(dim=1) == labels_b).sum())
        loss += cross_entropy(logits_bC, labels_b, reduction="sum").item()
    return right, loss


# --- printed numbers ---


def markdown(figures: dict[str, Any], settings: Settings, data: str) -> str:
    """The figures as tables."""
    seconds, steps = figures["seconds"], figures["steps"]
    ours, turns = seconds["run"], len(seconds["run"])
    arrangements = {"the run": ours}
    for name, words in (("bare", "bare loop"), ("channels last", "bare loop, channels last")):
        both = zip(seconds[name], seconds[f"{name} evaluations"], strict=True)
        arrangements[f"{words}, the steps alone"] = seconds[name]
        arrangements[f"{words}, and as many evaluations"] = [sum(parts) for parts in both]
    rows = [
        (
            name,
            report.median_and_spread([steps / one for one in taken], ",.0f"),
            report.median_and_spread([other / one for one, other in zip(ours, taken, strict=True)]),
        )
        for name, taken in arrangements.items()
    ]
    profile = [(part, f"{share:.1%}") for part, share in figures["shares"].items()]
    trained = settings.training
    return "\n\n".join(
        (
            f"{data}, {settings.clients} clients, {settings.trigger.name} with K = {settings.trigger.k}, "
            f"{trained.steps} local steps of batch {trained.batch_size}, {settings.model.name}, "
            f"{settings.policy.name}, on {settings.device} with {torch.get_num_threads()} threads. {steps:,} local "
            f"steps in {figures['rounds']} rounds of a run of {settings.rounds:,}, and {figures['evaluations']} "
            f"evaluations; median and spread of {turns} turns. Budget: {BUDGET} of the bare loop.",
            report.table(("what", "local steps/s", "the run over it"), rows),
            "Start of a process to the first round: "
            f"{report.median_and_spread(seconds['first round'], '.1f')} s where it plays the cell itself, "
            f"{report.median_and_spread(seconds['first round of the command'], '.1f')} s where it is "
            "`unstale reproduce run`, which has another process play it.",
            report.table(("where the run's time goes", "share"), profile),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="CIFAR-10 as .npz with x_train, y_train, x_test, y_test")
    parser.add_argument("--quick", action="store_true", help="one turn, and half as many rounds")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda, ...")
    parser.add_argument("--until-first-round", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="unstale-bench-") as folder:
        data = arguments.data
        if data is None:
            data = Path(folder) / "noise.npz"
            write_noise(data)
        settings = settings_of(data, arguments.device)
        if arguments.until_first_round:
            print(_until_first_round(settings))
            return
        name = "Noise like CIFAR-10" if arguments.data is None else "CIFAR-10"
        print(markdown(run(settings, arguments.quick), settings, name))


if __name__ == "__main__":
    main()
