"""How long inverting takes until its estimates are as good as those of the published procedure.

Ten clients that hold the most of one class are 40 rounds stale. The published procedure inverts them one at a time:
random start, sign-Adam with rate 1, raw labels in a binary cross-entropy, half as many examples as the client holds,
1,000 iterations. Ours inverts all ten together. Both run in one process, with one thread; what is compared is the time
until the mean error |estimate - true update|_1 is what the published procedure ends with. Evaluating is not counted.

The published procedure takes a quarter of an hour for one client, so it is run on some of them (`--clients`), and its
time for ten is ten times the mean. Errors are compared over those. Seconds are of the processor, so that other work on
the machine does not count.

    python -m benchmarks.inversion_speed --data mnist --file mnist.npz --out speed.jsonl
    python -m benchmarks.inversion_speed --table speed.jsonl ...
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine, report
from benchmarks.stale_updates import StaleUpdates
from unstale.compensators import CompensatorContext, StaleRound
from unstale.compensators.inversion.engine import Inversion
from unstale.compensators.inversion.inversions import Inversions
from unstale.compensators.inversion.settings import InversionSettings

ROUNDS, STALENESS = 100, 40
PUBLISHED = {"preset": "reference", "images_max": None, "batch_clients": 1}
MARKS = (10, 25, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
MIXTURES = ((0.0, 1.0), (0.5, 0.5), (0.5, 1.0), (1.0, 1.0))
"""Residual and trust: the plain estimate, that of a first inversion, and others that are learned."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Seconds and errors of each update after so many iterations, by residual/trust."""

    iterations: int
    seconds: float
    disparity: float
    errors: dict[str, list[float]]


class Procedure:
    """One way to invert, watched. settings: of the inversion."""

    def __init__(self, cases: StaleUpdates, settings: InversionSettings, seed: int) -> None:
        context = CompensatorContext(
            network=cases.network,
            steps=cases.steps,
            seed=seed,
            clients=len(cases.holders),
            device=torch.device("cpu"),
        )
        self._settings = settings
        self._network = cases.network
        self._inversions = Inversions(settings, context)

    def run(self, stale: StaleRound, true: Sequence[Tensor], marks: Sequence[int]) -> Iterator[Mark]:
        """Invert all updates of a round together."""
        started_s = time.process_time()
        ones = [self._inversions.begin(update) for update in stale.updates]
        seconds = time.process_time() - started_s
        for iteration in range(1, self._settings.iterations + 1):
            started_s = time.process_time()
            self._inversions.engine.iterate(ones)
            seconds += time.process_time() - started_s
            if iteration in marks:
                disparity = fmean(float(one.disparity) for one in ones)
                yield Mark(iteration, seconds, disparity, self._errors(ones, stale, true))

    def _errors(
        self, ones: Sequence[Inversion], stale: StaleRound, true: Sequence[Tensor]
    ) -> dict[str, list[float]]:
        errors: dict[str, list[float]] = {_name(*mixture): [] for mixture in MIXTURES}
        again: Callable[..., Tensor] = self._inversions.engine.local_update
        for one, update, true_d in zip(ones, stale.updates, true, strict=True):
            u_d = update.vector_d * update.local_rate
            here_d = again(one.now, self._network.parts(update.base_d), one.steps, one.rate)
            there_d = again(one.now, self._network.parts(stale.model_d), one.steps, one.rate)
            for residual, trust in MIXTURES:
                estimate_d = torch.lerp(u_d, there_d + residual * (u_d - here_d), trust)
                error = float((estimate_d - update.local_rate * true_d).abs().sum())
                errors[_name(residual, trust)].append(error)
        return errors


def _name(residual: float, trust: float) -> str:
    return f"{residual:g}/{trust:g}"


def measure(options: argparse.Namespace) -> None:
    """Run both procedures, and write a line for whatever was found."""
    torch.set_num_threads(1)

    def say(**facts: Any) -> None:
        line = json.dumps({"data": options.data, "examples": options.examples, **facts})
        print(line, flush=True)
        with options.out.open("a") as out:
            out.write(line + "\n")

    cases = StaleUpdates(data=options.data, file=options.file, seed=0, examples=options.examples)
    versions = cases.models(ROUNDS)
    stale = cases.stale_round(versions, ROUNDS, STALENESS, cases.holders)
    true = cases.true_updates(stale)
    unchanged = [
        update.local_rate * float((update.vector_d - true_d).abs().sum())
        for update, true_d in zip(stale.updates, true, strict=True)
    ]
    say(what="stale", errors=unchanged)
    for repeat in range(options.repeats):
        settings = InversionSettings(batch_clients=len(stale.updates))
        watched = Procedure(cases, settings, repeat).run(stale, true, range(1, settings.iterations + 1))
        for mark in watched:
            say(what="ours", repeat=repeat, **_plain(mark))
    settings = InversionSettings(**{**PUBLISHED, "iterations": options.iterations})
    for place in range(options.clients):
        alone = replace(stale, updates=[stale.updates[place]])
        for mark in Procedure(cases, settings, 0).run(alone, [true[place]], MARKS):
            say(what="published", place=place, **_plain(mark))


def _plain(mark: Mark) -> dict[str, Any]:
    return {
        "iterations": mark.iterations,
        "seconds": mark.seconds,
        "disparity": mark.disparity,
        "errors": mark.errors,
    }


def table(files: Sequence[Path]) -> str:
    """A row for each data set and mixture."""
    rows = []
    for file in files:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        ended = {line["place"]: line for line in lines if line["what"] == "published"}
        last = max(line["iterations"] for line in ended.values())
        done = [line for line in ended.values() if line["iterations"] == last]
        places = [line["place"] for line in done]
        target = fmean(line["errors"][_name(0.0, 1.0)][0] for line in done)
        ten_s = 10 * fmean(line["seconds"] for line in done)
        (stale,) = (line["errors"] for line in lines if line["what"] == "stale")
        repeats = sorted({line["repeat"] for line in lines if line["what"] == "ours"})
        for mixture in (_name(*mixture) for mixture in MIXTURES):
            reached = []
            for repeat in repeats:
                own = [line for line in lines if line["what"] == "ours" and line["repeat"] == repeat]
                there = [
                    line
                    for line in own
                    if fmean(line["errors"][mixture][place] for place in places) <= target
                ]
                reached.append(min(there, key=lambda line: line["iterations"]) if there else None)
            rows.append(
                [
                    lines[0]["data"],
                    f"{fmean(stale[place] for place in places):.2f}",
                    f"{target:.2f} after {last:,}",
                    f"{ten_s:,.0f} s",
                    mixture,
                    _reached(reached, "iterations", ".0f"),
                    _reached(reached, "seconds", ".1f"),
                    _ratio(reached, ten_s),
                ]
            )
    headings = [
        "data", "error of stale", "published error", "published, ten clients", "residual/trust", "our iterations",
        "our seconds, ten clients", "times less",
    ]  # fmt: skip
    return report.table(headings, rows)


def _reached(found: Sequence[dict[str, Any] | None], key: str, spec: str) -> str:
    if any(one is None for one in found):
        return "not reached"
    return report.median_and_spread([float(one[key]) for one in found if one is not None], spec)


def _ratio(found: Sequence[dict[str, Any] | None], ten_s: float) -> str:
    if any(one is None for one in found):
        return "-"
    return report.median_and_spread([ten_s / one["seconds"] for one in found if one is not None], ".0f")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=("mnist", "cifar10"), default="mnist")
    parser.add_argument("--file", type=Path, help="the data in a .npz of four arrays")
    parser.add_argument("--out", type=Path, help="file for what is found")
    parser.add_argument("--examples", type=int, default=450, help="that a client holds at most")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=3, help="that the published procedure is run on")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--table", type=Path, nargs="+", help="make a table of what was found")
    options = parser.parse_args()
    if options.table:
        print(machine.description("python -m benchmarks.inversion_speed"), "\n")
        print(table(options.table))
    else:
        measure(options)


if __name__ == "__main__":
    main()
