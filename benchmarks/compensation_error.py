"""Errors of estimates of a fresh update against its staleness (the paper's figures 2 and 7).

Clients with the most examples of class 5 of MNIST compute updates from a model s rounds older than the current one, for
s from 5 to 60; each method estimates their updates from the current model, and the true ones are computed. The model is
that of a run without staleness (`dirichlet-client`, alpha 0.1).

Gradient inversion is shown before its first iteration (noise as images, labels read from the update; residual and
trust 0.5), initially (the same after 5 iterations), after it has learned its iterations, residual and trust from later
updates (here: from the errors at all other stalenesses, of the other seeds), and in its plain form, all iterations
without residual. For comparison: the stale update shortened by a tenth, which L1 rewards.
Errors as in docs/methods/measures.md#compensation-errors.

    python -m benchmarks.compensation_error --file mnist.npz --out folder [--seeds 0 1 2] [--clients 5]
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import machine, report
from benchmarks.compensation_plots import draw_errors_by_staleness
from benchmarks.stale_updates import StaleUpdates
from unstale.compensators import CompensatorContext, StaleRound, create
from unstale.compensators.errors import measured
from unstale.compensators.gradient_inversion import GradientInversion
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.stopping import TRUSTS, Choice

NOW = 110
STALENESS = tuple(range(5, 61, 5))
NONE, FIRST_ORDER, SHORTER = "none", "first-order", "none, 0.9 of it"
SCALE = 0.9  # of the last one
NOT_INVERTED, AS_IT_BEGINS = "not inverted", "inversion, first"
LEARNED, PLAIN = "inversion, learned", "inversion, plain"
SHOWN = (NONE, FIRST_ORDER, SHORTER, NOT_INVERTED, AS_IT_BEGINS, LEARNED, PLAIN)
DRAWN = (NONE, FIRST_ORDER, SHORTER, AS_IT_BEGINS, LEARNED, PLAIN)


@dataclass(frozen=True, slots=True)
class Error:
    """The error of one estimate. method: `none`, `first-order`, or `iterations/residual/trust` of an inversion."""

    seed: int
    staleness: int
    client: int
    method: str
    l1: float
    cosine: float


def errors_of(cases: StaleUpdates, clients: int) -> Iterator[Error]:
    """Every method at every staleness, in one run."""
    versions = cases.models(NOW)
    chosen = cases.holders[:clients]
    for staleness in STALENESS:
        stale = cases.stale_round(versions, NOW, staleness, chosen)
        true = cases.true_updates(stale)
        for method, place, estimate_d in estimates_of(cases, stale):
            update = replace(stale.updates[place], vector_d=true[place])
            error = measured(update, method, estimate_d, staleness)
            yield Error(cases.seed, staleness, update.client_id, method, error.l1, error.cosine)


def estimates_of(cases: StaleUpdates, stale: StaleRound, *, inverts: bool = True) -> Iterator[tuple[str, int, Tensor]]:
    """Method, index in the round, pseudo-gradient [d]. inverts: whether to iterate beyond the first."""
    context = CompensatorContext(network=cases.network, steps=cases.steps, seed=cases.seed, device=torch.device("cpu"))
    for place, update in enumerate(stale.updates):
        yield NONE, place, update.vector_d
        yield SHORTER, place, SCALE * update.vector_d
    first_order = create(FIRST_ORDER, {}, context)
    assert first_order is not None
    for place, vector_d in first_order.take(stale, first_order.make(stale)).vectors.items():
        yield FIRST_ORDER, place, vector_d
    inversion = create("gradient-inversion", {"switch": "never", "start": "close"}, context)
    assert isinstance(inversion, GradientInversion)
    for place, update in enumerate(stale.updates):
        one = inversion.inversions.begin(update)
        yield from mixtures_of(inversion, stale, place, {0: one.now})
    if not inverts:
        return
    for place, one in inversion.inversions.finish(dict(enumerate(stale.updates))).found.items():
        yield from mixtures_of(inversion, stale, place, one.kept)


def mixtures_of(
    inversion: GradientInversion, stale: StaleRound, place: int, kept: Mapping[int, Reconstruction]
) -> Iterator[tuple[str, int, Tensor]]:
    """Every choice of residual and trust. kept: reconstructions by iterations."""
    update = stale.updates[place]
    for mark, reconstruction in kept.items():
        estimates = inversion.estimates(update, stale.model_d, reconstruction)
        for residual, vector_d in estimates.items():
            for trust in TRUSTS:
                mixed_d = torch.lerp(update.vector_d, vector_d, trust)
                yield name_of(Choice(mark, residual, trust)), place, mixed_d


def name_of(choice: Choice) -> str:
    return f"{choice.iterations}/{choice.residual:g}/{choice.trust:g}"


def shown(errors: Sequence[Error]) -> dict[str, list[Error]]:
    """The errors of each displayed method."""
    inverted = sorted({error.method for error in errors if re.match("[1-9].*/", error.method)})
    longest = max(int(method.partition("/")[0]) for method in inverted)
    by_method: dict[str, list[Error]] = {
        NONE: [error for error in errors if error.method == NONE],
        FIRST_ORDER: [error for error in errors if error.method == FIRST_ORDER],
        SHORTER: [error for error in errors if error.method == SHORTER],
        NOT_INVERTED: [error for error in errors if error.method == "0/0.5/0.5"],
        AS_IT_BEGINS: [error for error in errors if error.method == "5/0.5/0.5"],
        LEARNED: [],
        PLAIN: [error for error in errors if error.method == f"{longest}/0/1"],
    }
    for seed in sorted({error.seed for error in errors}):
        for staleness in STALENESS:
            others = [error for error in errors if error.seed != seed and error.staleness != staleness]
            best = min(inverted, key=lambda method: fmean(e.l1 for e in others if e.method == method))
            by_method[LEARNED] += [
                error for error in errors if (error.seed, error.staleness, error.method) == (seed, staleness, best)
            ]
    return by_method


def table(by_method: Mapping[str, Sequence[Error]], measure: str) -> str:
    """A row a staleness: mean over clients and seeds, ± standard deviation."""
    rows = []
    for staleness in STALENESS:
        cells = []
        for method in SHOWN:
            values = [getattr(error, measure) for error in by_method[method] if error.staleness == staleness]
            cells.append(f"{fmean(values):.3f} ± {stdev(values):.3f}")
        rows.append([str(staleness), *cells])
    return report.table(["staleness", *SHOWN], rows)


def crossing(by_method: Mapping[str, Sequence[Error]], method: str, measure: str) -> str:
    """The staleness from which on a method has a smaller mean error than first order."""
    better = []
    for staleness in STALENESS:
        means = {
            name: fmean(getattr(e, measure) for e in by_method[name] if e.staleness == staleness)
            for name in (method, FIRST_ORDER)
        }
        better.append(means[method] < means[FIRST_ORDER])
    worse = [staleness for staleness, is_better in zip(STALENESS, better, strict=True) if not is_better]
    if not worse:
        return f"at every staleness from {STALENESS[0]} on"
    later = [staleness for staleness in STALENESS if staleness > max(worse)]
    return f"from staleness {later[0]} on" if later else "not up to 60"


def draw(by_method: Mapping[str, Sequence[Error]], file: Path) -> None:
    """Draw both measures against staleness, over clients and seeds."""
    names = {LEARNED: "gradient-inversion"}
    l1, cosine = (
        {
            names.get(method, method): np.array(
                [
                    [getattr(error, measure) for error in by_method[method] if error.staleness == staleness]
                    for staleness in STALENESS
                ]
            )
            for method in DRAWN
        }
        for measure in ("l1", "cosine")
    )
    title = "Error of estimates of the fresh update, MNIST, clients of class 5; gradient inversion as learned"
    draw_errors_by_staleness(STALENESS, l1, cosine, title, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True, help="MNIST in a .npz of four arrays")
    parser.add_argument("--out", type=Path, required=True, help="folder for errors.jsonl, table and plot")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="two at least")
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--examples", type=int, default=450)
    options = parser.parse_args()
    head = machine.description(f"python -m benchmarks.compensation_error {' '.join(sys.argv[1:])}")
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / f"errors_{options.clients}_{options.examples}.jsonl"
    lines: list[dict[str, Any]] = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    errors = [Error(**line) for line in lines]
    done = {error.seed for error in errors}
    for seed in options.seeds:
        if seed not in done:
            cases = StaleUpdates(data="mnist", file=options.file, seed=seed, examples=options.examples)
            found = list(errors_of(cases, options.clients))
            errors += found
            with kept.open("a") as file:
                file.writelines(json.dumps(asdict(error)) + "\n" for error in found)
            print(f"seed {seed} done", flush=True)
    by_method = shown(errors)
    text = "\n\n".join(
        [
            head,
            "L1:",
            table(by_method, "l1"),
            "1 - cosine:",
            table(by_method, "cosine"),
            *(
                f"{method} is better than first-order {crossing(by_method, method, 'l1')} by L1, "
                f"{crossing(by_method, method, 'cosine')} by cosine."
                for method in (NOT_INVERTED, AS_IT_BEGINS, LEARNED, PLAIN)
            ),
        ]
    )
    (options.out / "table.md").write_text(text + "\n")
    draw(by_method, options.out / "errors.png")
    print(text)


if __name__ == "__main__":
    main()
