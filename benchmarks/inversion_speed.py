"""Time of inversion until its estimates equal those of the published procedure.

Ten clients with the most examples of one class are 40 rounds stale. The published procedure inverts them one at a time:
random start, sign-Adam with rate 1, raw labels in a binary cross-entropy, half as many examples as the client has,
1,000 iterations. Ours inverts all ten together. Both run in one process, with one thread, and are compared by the time
until the mean error |estimate - true update|_1 reaches the final one of the published procedure, without evaluations.

For comparison: the error of a mixture without any iteration (noise as images, labels read from the update), and of the
shortened stale update. Where these suffice, a ratio says nothing about inversion. The published error may rise again
with further iterations, so a second ratio is against the first evaluation at which it is that small.

The published procedure takes a quarter of an hour for one client, so it runs on some of them (`--clients`), and its
time for ten is ten times the mean. Errors are compared over those. Seconds are processor time, so that other load does
not count. Memory is the peak of the process during the inversion, and its size before: data, models and libraries.

    python -m benchmarks.inversion_speed --data mnist --file mnist.npz --out speed.jsonl
    python -m benchmarks.inversion_speed --table speed.jsonl ...
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine, report
from benchmarks.stale_updates import StaleUpdates
from unstale.compensators import CompensatorContext, StaleRound
from unstale.compensators.inversion.inversions import Inversions
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.inversion.state import Inversion

ROUNDS, STALENESS = 100, 40
PUBLISHED = {"preset": "reference", "images_max": None, "batch_clients": 1}
MARKS = (10, 25, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
SCALES = (0.9, 0.75)  # of stale updates
PLAIN = "0/1"
MIXTURES = ((0.0, 1.0), (0.5, 0.5), (0.5, 1.0), (1.0, 1.0))
"""Residual and trust: the plain estimate, that of a first inversion, and learned ones."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Seconds and errors of each update after so many iterations, by residual/trust."""

    iterations: int
    seconds: float
    disparity: float
    errors: dict[str, list[float]]


class Procedure:
    """A measured inversion. settings: of the inversion."""

    def __init__(self, cases: StaleUpdates, settings: InversionSettings, seed: int) -> None:
        context = CompensatorContext(network=cases.network, steps=cases.steps, seed=seed, device=torch.device("cpu"))
        self._settings = settings
        self._network = cases.network
        self._inversions = Inversions(settings, context)

    def run(self, stale: StaleRound, true: Sequence[Tensor], marks: Sequence[int]) -> Iterator[Mark]:
        """Invert all updates of a round together."""
        started_s = time.process_time()
        ones = [self._inversions.begin(update) for update in stale.updates]
        seconds = time.process_time() - started_s
        if 0 in marks:
            yield Mark(0, seconds, nan, self._errors(ones, stale, true))
        for iteration in range(1, self._settings.iterations + 1):
            started_s = time.process_time()
            self._inversions.engine.iterate(ones)
            seconds += time.process_time() - started_s
            if iteration in marks:
                disparity = fmean(float(one.disparity) for one in ones)
                yield Mark(iteration, seconds, disparity, self._errors(ones, stale, true))

    def _errors(self, ones: Sequence[Inversion], stale: StaleRound, true: Sequence[Tensor]) -> dict[str, list[float]]:
        errors: dict[str, list[float]] = {_name(*mixture): [] for mixture in MIXTURES}
        again: Callable[..., Tensor] = self._inversions.engine.local_update
        for one, update, true_d in zip(ones, stale.updates, true, strict=True):
            u_d = update.vector_d * update.local_rate
            here_d = again(one.now, self._network.parts(update.base_d), one.target.steps, one.target.rate)
            there_d = again(one.now, self._network.parts(stale.model_d), one.target.steps, one.target.rate)
            for residual, trust in MIXTURES:
                estimate_d = torch.lerp(u_d, there_d + residual * (u_d - here_d), trust)
                error = float((estimate_d - update.local_rate * true_d).abs().sum())
                errors[_name(residual, trust)].append(error)
        return errors


def _name(residual: float, trust: float) -> str:
    return f"{residual:g}/{trust:g}"


def measure(options: argparse.Namespace) -> None:
    """Run both procedures, and write a line per result."""
    torch.set_num_threads(1)

    def say(**facts: Any) -> None:
        line = json.dumps({"data": options.data, "examples": options.examples, **facts})
        print(line, flush=True)
        with options.out.open("a") as out:
            out.write(line + "\n")

    say(what="machine", text=machine.description(f"python -m benchmarks.inversion_speed {' '.join(sys.argv[1:])}"))
    cases = StaleUpdates(data=options.data, file=options.file, seed=0, examples=options.examples)
    versions = cases.models(ROUNDS)
    stale = cases.stale_round(versions, ROUNDS, STALENESS, cases.holders)
    true = cases.true_updates(stale)
    unchanged = [
        update.local_rate * float((update.vector_d - true_d).abs().sum())
        for update, true_d in zip(stale.updates, true, strict=True)
    ]
    say(what="stale", errors=unchanged)
    for scale in SCALES:
        scaled = [
            update.local_rate * float((scale * update.vector_d - true_d).abs().sum())
            for update, true_d in zip(stale.updates, true, strict=True)
        ]
        say(what="scaled", scale=scale, errors=scaled)
    for repeat in range(options.repeats):
        settings = InversionSettings(batch_clients=len(stale.updates))
        watched = Procedure(cases, settings, repeat).run(stale, true, range(settings.iterations + 1))
        before_bytes = machine.memory_bytes()
        machine.forget_peak_memory()
        for mark in watched:
            say(what="ours", repeat=repeat, **_plain(mark))
        say(what="memory", of="ours", before_bytes=before_bytes, peak_bytes=machine.peak_memory_bytes())
    settings = InversionSettings(**{**PUBLISHED, "iterations": options.iterations})
    for place in range(options.clients):
        alone = replace(stale, updates=[stale.updates[place]])
        before_bytes = machine.memory_bytes()
        machine.forget_peak_memory()
        for mark in Procedure(cases, settings, 0).run(alone, [true[place]], MARKS):
            say(what="published", place=place, **_plain(mark))
        say(what="memory", of="published", before_bytes=before_bytes, peak_bytes=machine.peak_memory_bytes())


def _plain(mark: Mark) -> dict[str, Any]:
    return {"iterations": mark.iterations, "seconds": mark.seconds, "disparity": mark.disparity, "errors": mark.errors}


@dataclass(frozen=True, slots=True)
class Found:
    """The content of one file. published: marks of the completed clients, by iterations, in order.
    ours: marks by repeat, in order.
    """

    lines: list[dict[str, Any]]

    def of(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["what"] == what]

    @property
    def last(self) -> int:
        return max(line["iterations"] for line in self.of("published"))

    @property
    def places(self) -> list[int]:
        """Clients for which the published procedure was completed."""
        return [line["place"] for line in self.of("published") if line["iterations"] == self.last]

    def published(self, iterations: int) -> tuple[float, float]:
        """Mean error, and seconds for ten clients."""
        own = [
            line for line in self.of("published") if line["iterations"] == iterations and line["place"] in self.places
        ]
        return fmean(line["errors"][PLAIN][0] for line in own), 10 * fmean(line["seconds"] for line in own)

    def ours(self, mixture: str) -> list[list[tuple[int, float, float]]]:
        """Iterations, seconds and mean error over the same clients, by repeat."""
        repeats = sorted({line["repeat"] for line in self.of("ours")})
        return [
            sorted(
                (line["iterations"], line["seconds"], fmean(line["errors"][mixture][place] for place in self.places))
                for line in self.of("ours")
                if line["repeat"] == repeat
            )
            for repeat in repeats
        ]


def table(files: Sequence[Path]) -> str:
    """For each data set the clients and models, and a row for each mixture."""
    parts = []
    for file in files:
        found = Found([json.loads(line) for line in file.read_text().splitlines()])
        target, ten_s = found.published(found.last)
        looks = [(n, *found.published(n)) for n in MARKS if n <= found.last]
        first_n, _, first_s = next(look for look in looks if look[1] <= target)
        (stale,) = (line["errors"] for line in found.of("stale"))
        scaled = ", ".join(
            f"{fmean(line['errors'][place] for place in found.places):.2f} for {line['scale']:g} of each"
            for line in found.of("scaled")
            if line["scale"] in SCALES
        )
        rows = []
        for mixture in (_name(*mixture) for mixture in MIXTURES):
            ours = found.ours(mixture)
            there = [next((mark for mark in marks if mark[2] <= target), None) for marks in ours]
            reached = [mark for mark in there if mark is not None]
            all_there = len(reached) == len(ours)
            iterated = all_there and all(mark[0] > 0 for mark in reached)
            rows.append(
                [
                    mixture,
                    _spread([marks[0][2] for marks in ours], ".2f"),
                    _spread([marks[-1][2] for marks in ours], ".2f"),
                    _spread([mark[0] for mark in reached], ".0f") if all_there else "not reached",
                    _spread([mark[1] for mark in reached], ".1f") if all_there else "not reached",
                    _spread([ten_s / mark[1] for mark in reached], ".0f") if iterated else "-",
                    _spread([first_s / mark[1] for mark in reached], ".0f") if iterated else "-",
                ]
            )
        headings = [
            "residual/trust", "error, no iteration", "error, all iterations", "iterations to the published error",
            "seconds, ten clients", "times less", "times less than its first arrival",
        ]  # fmt: skip
        memory = {
            line["of"]: line for line in reversed(found.of("memory"))
        }  # of the first run, since the process keeps freed memory
        parts += [
            f"## {found.lines[0]['data']}",
            found.of("machine")[0]["text"],
            f"Error of the stale updates {fmean(stale[place] for place in found.places):.2f} ({scaled}); of the "
            f"published procedure {target:.2f} after {found.last:,} iterations, {ten_s:,.0f} s for ten clients (from "
            f"{len(found.places)}); it was that small first after {first_n:,}, {first_s:,.0f} s. By iterations: "
            f"{', '.join(f'{n}: {error:.2f}' for n, error, _ in looks)}.",
            report.table(headings, rows),
            f"Most memory of the process, ours: {_mib(memory['ours'])}; published: {_mib(memory['published'])}.",
        ]
    return "\n\n".join(parts)


def _mib(line: dict[str, Any]) -> str:
    return f"{line['peak_bytes'] / 2**20:,.0f} MiB, {line['before_bytes'] / 2**20:,.0f} of them before"


def _spread(values: Sequence[float], spec: str) -> str:
    return report.median_and_spread(list(values), spec)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        print(table(options.table))
    elif options.file is None or options.out is None or options.out.exists():
        parser.error("to measure, --file and --out are needed, and --out must not be there yet")
    else:
        measure(options)


if __name__ == "__main__":
    main()
