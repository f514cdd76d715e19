"""`unstale inversion`: measure how much gradient inversion reveals of the clients' data."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.app import App
from unstale.cli.options import COMMON_IN_RUNS, RUN, takes_settings
from unstale.cli.parameters import AsJson
from unstale.cli.printing import figure
from unstale.cli.tables import print_table
from unstale.config import Settings
from unstale.errors import UserError
from unstale.report.content import count

if TYPE_CHECKING:
    from unstale.cli.inversion_plot import Tile
    from unstale.privacy.audit import Audit, Reconstructed
    from unstale.privacy.findings import Findings
    from unstale.privacy.image_similarity import Measure

app = App(help="Measure how much gradient inversion reveals of the clients' data.")

WARNING = (
    "compensator {name} reconstructs representative data of clients from their single updates, in the server's memory "
    "and, with durability, in the run's directory; it is incompatible with secure aggregation. `unstale inversion "
    "audit` measures in simulation how much it reveals (docs/threat-model.md)."
)
RAY_WARNING = (
    " Updates and reconstructed data also go to the machines of the Ray cluster {ray}, which may write them to disk "
    "(docs/inversions-on-ray.md)."
)

POOL_NAMES = {  # of pools of real examples, in tables
    "own": "own",
    "others": "others",
    "own_same_classes": "own, same classes",
    "same_classes": "others, same classes",
}
POOL_TEXTS = {  # of the same pools, as the object of a sentence
    "own": "examples of the client",
    "others": "of other clients",
    "own_same_classes": "of the client in classes that others have, too",
    "same_classes": "of others with the same number of each class",
}
SAME_CLASSES = ("own_same_classes", "same_classes")
CLASSES_SHOWN_MAX = 20
EXAMPLES_SHOWN = 6  # of an update, in the sheet

At = Annotated[
    list[int] | None,
    typer.Option(
        "--at",
        metavar="ROUND",
        help="Invert the stale updates of this round, from 1. May be repeated. Default: the last round.",
    ),
]
Updates = Annotated[
    int, typer.Option("--updates", min=1, metavar="NUMBER", help="Largest number of updates to invert.")
]
Plots = Annotated[
    Path | None,
    typer.Option(
        "--plots", metavar="FOLDER", help="Draw similarity, reconstructed examples and disparity into this folder."
    ),
]


def announce(settings: Settings) -> None:
    """Print a warning on stderr if the compensator reconstructs data."""
    from unstale.compensators import describe  # imports torch
    from unstale.config.compensation import ray_cluster

    name, (_, ray) = settings.compensator.name, ray_cluster(settings)
    if describe(name).inverts:
        on_ray = "" if ray is None else RAY_WARNING.format(ray=ray)
        print(f"unstale: {WARNING.format(name=name)}{on_ray}", file=sys.stderr, flush=True)


@app.command()
@takes_settings(*RUN, "simulation", common=(*COMMON_IN_RUNS, "compensator.settings"))
def audit(
    settings: Settings, at: At = None, updates: Updates = 20, plots: Plots = None, as_json: AsJson = False
) -> None:
    """Simulate a run, invert its stale updates, and measure how similar the results are to the clients' own data.

    The run itself is not compensated; compensator.settings configure the inversion.
    """
    from unstale.privacy.audit import audit as run_audit  # imports torch

    if plots is not None:
        try:
            plots.mkdir(parents=True, exist_ok=True)  # before the simulation, which may take long
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"--plots is {plots}, which cannot be created: {reason}; choose another folder") from None
    result = run_audit(
        settings,
        at or [settings.rounds],
        updates_max=updates,
        on_progress=lambda status: printing.progress(status, as_json=as_json),
        on_reconstructed=lambda update: _print_update(update, as_json=as_json),
    )
    if as_json:
        printing.json_line("audited", {**asdict(result.findings), "notes": result.notes})
    else:
        _print_findings(result)
    for file in [] if plots is None else _draw(result, settings, plots):
        if not as_json:
            printing.line(f"{file}: written")


def _print_update(update: "Reconstructed", *, as_json: bool) -> None:
    matches = update.matches
    if as_json:
        best = {
            measure: {pool: values_r.tolist() for pool, values_r in pools.items()}
            for measure, pools in matches.best.items()
        }
        facts = {
            "client": update.client_id,
            "round": update.round,
            "staleness": update.staleness,
            "disparity": update.disparity,
            "labels": matches.labels,
            "best": best,
            "pool_examples": matches.pool_examples,
            "label_distance": matches.label_distance,
        }
        printing.json_line("reconstructed", facts)
        return
    printing.line(
        f"round {update.round}: client {update.client_id}, {update.staleness} rounds stale: {len(matches.labels)} "
        f"examples, disparity {update.disparity[0]:.3g} to {update.disparity[-1]:.3g} in {len(update.disparity)} "
        "iterations"
    )


# --- text output ---


def _print_findings(result: "Audit") -> None:
    findings = result.findings
    pools = ", ".join(
        f"{number:,.0f} {POOL_TEXTS[pool]} ({POOL_NAMES[pool]})" for pool, number in findings.pool_examples.items()
    )
    printing.line(
        f"{count(findings.updates, 'update')} of {count(findings.clients, 'client')} inverted, "
        f"{count(findings.examples, 'example')} reconstructed; each is compared with the most similar among {pools}, "
        "on average"
    )
    names = {measure.key: measure.name for measure in result.measures}
    _print_similarity(findings, names)
    if 1 < len(findings.classes) <= CLASSES_SHOWN_MAX:
        measure = findings.measures[0].measure
        print_table(
            ("class", "examples", *(f"{names[measure]}, {POOL_NAMES[pool]}" for pool in findings.pool_examples)),
            [
                (
                    *(str(by_class.label), f"{by_class.examples:,}"),
                    *(f"{by_class.means[measure][pool]:.3f}" for pool in findings.pool_examples),
                )
                for by_class in findings.classes
            ],
            lines=False,
        )
    distances = ", ".join(
        f"{distance:.2f} from those of {POOL_NAMES[pool]}"
        for pool, distance in findings.label_distance.items()
        if pool not in SAME_CLASSES  # these pools have the classes of the update
    )
    printing.line(
        f"shares of classes read from updates: {distances} (total variation distance: 0 for equal, 1 for disjoint)"
    )
    for note in result.notes:
        printing.line(note)


def _print_similarity(findings: "Findings", names: Mapping[str, str]) -> None:
    similarities = [
        (
            f"{names[measured.measure]}{f', {measured.unit}' if measured.unit else ''}",
            POOL_NAMES[pool],
            *(f"{number:.3f}" for number in asdict(distribution).values()),
        )
        for measured in findings.measures
        for pool, distribution in measured.pools.items()
    ]
    headings = ("most similar", "among", "mean", "5 %", "25 %", "median", "75 %", "95 %")
    print_table(headings, similarities, lines=False)
    differences = [
        (
            names[measured.measure],
            POOL_NAMES[pool],
            f"{difference.mean:+.3f}",
            f"{figure(difference.low, '+.3f')} to {figure(difference.high, '+.3f')}",
            f"{difference.closer_share:.0%}",
        )
        for measured in findings.measures
        for pool, difference in measured.closer.items()
    ]
    print_table(
        ("measure", "closer to own than to", "by", "95 % interval", "share of examples"), differences, lines=False
    )


# --- plots ---


def _draw(result: "Audit", settings: Settings, folder: Path) -> list[Path]:
    """Draw the plots and return their files. Raises UserError."""
    import numpy as np

    from unstale.cli import inversion_plot as plot  # imports matplotlib

    run = f"{settings.model.name}, {settings.data.name}, {count(result.findings.updates, 'stale update')}"
    pools = list(result.findings.pool_examples)
    sheet_pools = [pool for pool in pools if pool != "own_same_classes"]
    columns = ("reconstructed", *(f"closest of {POOL_NAMES[pool]}" for pool in sheet_pools))
    similarity = {}
    for measure in result.measures:
        best = [update.matches.best[measure.key] for update in result.reconstructed]
        by_pool = {POOL_NAMES[pool]: np.concatenate([numbers[pool] for numbers in best]) for pool in pools}
        similarity[_axis_label(measure)] = by_pool
    tiles = [tile for update in result.reconstructed for tile in _tiles(update, sheet_pools)]
    files = [folder / "closeness.png", folder / "disparity.png", folder / "examples.png"]
    plot.draw_closeness(similarity, f"Reconstructed examples and the most similar real ones\n{run}", files[0])
    plot.draw_disparity([np.array(update.disparity) for update in result.reconstructed], files[1])
    if not tiles:
        return files[:2]
    plot.draw_sheet(tiles, columns, f"Reconstructed examples: {run}", files[2])
    return files


def _axis_label(measure: "Measure") -> str:
    unit = f", {measure.unit}" if measure.unit else ""
    return f"{measure.name}{unit} ({'larger' if measure.larger_is_closer else 'smaller'} is closer)"


def _tiles(update: "Reconstructed", pools: list[str]) -> "Iterator[Tile]":
    """Yield the examples with the most certain labels, each with the most similar example of each pool.

    Yields nothing if the examples are not images.
    """
    from unstale.cli.inversion_plot import Tile

    if update.pixels_rX.ndim != 4:
        return
    most_certain = sorted(range(len(update.certainty)), key=lambda index: -update.certainty[index])
    for index in most_certain[:EXAMPLES_SHOWN]:
        images = [update.pixels_rX[index], *(update.closest[pool][index] for pool in pools)]
        label = f"client {update.client_id}: class {update.matches.labels[index]}, {update.certainty[index]:.0%}"
        yield Tile(images=[image.numpy() for image in images], label=label)
