"""`unstale inversion`: what gradient inversion gives away of the clients' data."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.app import App
from unstale.cli.options import COMMON_IN_RUNS, RUN, takes_settings
from unstale.cli.tables import print_table
from unstale.config import Settings
from unstale.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unstale.privacy.audit import Audit, Reconstructed
    from unstale.privacy.findings import Findings
    from unstale.privacy.image_similarity import Measure

app = App(help="Look at what gradient inversion gives away of the clients' data.")

WHAT_IT_DOES = (
    "compensator {name} reconstructs representative data of clients from their single updates, in the server's memory "
    "and, with durability, in the run's directory; it does not go together with secure aggregation. What it reveals, "
    "`unstale inversion audit` measures in simulation (docs/threat-model.md)."
)
WHERE_IT_GOES = (
    " Updates, and what is reconstructed from them, also go to the machines of the Ray cluster {ray}, which may write "
    "them to disk (docs/inversions-on-ray.md)."
)

POOL_NAMES = {
    "own": "own",
    "others": "others",
    "own_same_classes": "own, same classes",
    "same_classes": "others, same classes",
}
WHOSE = {
    "own": "examples of its client",
    "others": "of other clients",
    "own_same_classes": "of its client as far as others hold the class",
    "same_classes": "of others with as many of each class",
}
SAME_CLASSES = ("own_same_classes", "same_classes")
CLASSES_SHOWN_MAX = 20
SHOWN_OF_AN_UPDATE = 6  # examples in the sheet

At = Annotated[
    list[int] | None,
    typer.Option(
        "--at",
        metavar="ROUND",
        help="Invert the stale updates of this round, from 1. May be repeated. Default: the last round.",
        show_default=False,
    ),
]
Updates = Annotated[
    int, typer.Option("--updates", min=1, metavar="NUMBER", help="How many updates are inverted at most.")
]
Plots = Annotated[
    Path | None,
    typer.Option(
        "--plots",
        metavar="FOLDER",
        help="Draw closeness, reconstructed examples and disparity into this folder.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")]


@app.callback()
def _options_of_the_group() -> None:
    pass


def announce(settings: Settings) -> None:
    """Say on stderr what the compensator does, if it reconstructs data."""
    from unstale.compensators import describe  # imports torch

    name, ray = settings.compensator.name, settings.compensator.ray
    if describe(name).inverts:
        where = "" if ray is None else WHERE_IT_GOES.format(ray=ray)
        print(f"unstale: {WHAT_IT_DOES.format(name=name)}{where}", file=sys.stderr, flush=True)


@app.command()
@takes_settings(*RUN, "simulation", common=(*COMMON_IN_RUNS, "compensator.settings"))
def audit(
    settings: Settings,
    at: At = None,
    updates: Updates = 20,
    plots: Plots = None,
    as_json: AsJson = False,
) -> None:
    """Play a run, invert stale updates of it, and measure how close what comes out is to the clients' own data.

    The run itself is not compensated; compensator.settings say how updates are inverted.
    """
    from unstale.privacy.audit import audit as play  # imports torch

    if plots is not None:
        _make_folder(plots)
    done = play(
        settings,
        at or [settings.rounds],
        updates_max=updates,
        on_progress=lambda now: printing.progress(now, as_json=as_json),
        on_reconstructed=lambda one: _tell_one(one, as_json=as_json),
    )
    if as_json:
        printing.json_line("audited", {**asdict(done.findings), "notes": list(done.notes)})
    else:
        _tell_findings(done)
    if plots is not None:
        for file in _draw(done, settings, plots):
            if not as_json:
                printing.line(f"{file}: written")


def _make_folder(folder: Path) -> None:
    """Before the run is played, which may take long."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--plots is {folder}, which cannot be made: {(error.strerror or str(error)).lower()}; name another folder"
        ) from None


def _tell_one(one: "Reconstructed", *, as_json: bool) -> None:
    if as_json:
        best = {
            measure: {pool: values_r.tolist() for pool, values_r in pools.items()}
            for measure, pools in one.matches.best.items()
        }
        printing.json_line(
            "reconstructed",
            {
                "client": one.client_id,
                "round": one.round,
                "staleness": one.staleness,
                "disparity": list(one.disparity),
                "labels": list(one.matches.labels),
                "best": best,
                "pool_examples": one.matches.pool_examples,
                "label_distance": one.matches.label_distance,
            },
        )
        return
    printing.line(
        f"round {one.round}: client {one.client_id}, {one.staleness} rounds stale: {len(one.matches.labels)} examples, "
        f"disparity {one.disparity[0]:.3g} to {one.disparity[-1]:.3g} in {len(one.disparity)} iterations"
    )


# --- for people ---


def _tell_findings(done: "Audit") -> None:
    found = done.findings
    names = {measure.key: measure.name for measure in done.measures}
    pools = ", ".join(
        f"{number:,.0f} {WHOSE[pool]} ({POOL_NAMES[pool]})" for pool, number in found.pool_examples.items()
    )
    printing.line(
        f"{_count(found.updates, 'update')} of {_count(found.clients, 'client')} inverted, "
        f"{_count(found.examples, 'example')} reconstructed; of each the closest was looked for among {pools}, on "
        "average"
    )
    print_table(
        ("closest", "among", "mean", "5 %", "25 %", "median", "75 %", "95 %"),
        [
            (
                f"{names[one.measure]}{', ' * bool(one.unit)}{one.unit}",
                POOL_NAMES[pool],
                *_figures(asdict(of)),
            )
            for one in found.measures
            for pool, of in one.pools.items()
        ],
        lines=False,
    )
    print_table(
        ("measure", "closer to own than to", "by", "95 % interval", "share of examples"),
        [
            (
                names[one.measure],
                POOL_NAMES[pool],
                f"{by.mean:+.3f}",
                f"{printing.figure(by.low, '+.3f')} to {printing.figure(by.high, '+.3f')}",
                f"{by.closer_share:.0%}",
            )
            for one in found.measures
            for pool, by in one.closer.items()
        ],
        lines=False,
    )
    if 1 < len(found.classes) <= CLASSES_SHOWN_MAX:
        _tell_classes(found, names)
    distances = [
        f"{distance:.2f} from those of {POOL_NAMES[pool]}"
        for pool, distance in found.label_distance.items()
        if pool not in SAME_CLASSES  # whose classes were chosen
    ]
    printing.line(
        f"shares of classes read from updates: {', '.join(distances)} "
        "(total variation distance: 0 for equal, 1 for none in common)"
    )
    for note in done.notes:
        printing.line(note)


def _tell_classes(found: "Findings", names: Mapping[str, str]) -> None:
    measure = found.measures[0].measure
    pools = list(found.pool_examples)
    print_table(
        ("class", "examples", *(f"{names[measure]}, {POOL_NAMES[pool]}" for pool in pools)),
        [
            (
                str(one.label),
                f"{one.examples:,}",
                *(f"{one.means[measure][pool]:.3f}" for pool in pools),
            )
            for one in found.classes
        ],
        lines=False,
    )


def _figures(values: Mapping[str, float]) -> Sequence[str]:
    return [f"{value:.3f}" for value in values.values()]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


# --- as pictures ---


def _draw(done: "Audit", settings: Settings, folder: Path) -> list[Path]:
    """The files that were written."""
    import numpy as np

    from unstale.cli import inversion_plot as plot  # imports matplotlib

    run = f"{settings.model.name}, {settings.data.name}, {_count(done.findings.updates, 'stale update')}"
    pools = list(done.findings.pool_examples)
    closeness = {
        _axis(measure): {
            POOL_NAMES[pool]: np.concatenate(
                [one.matches.best[measure.key][pool] for one in done.reconstructed]
            )
            for pool in pools
        }
        for measure in done.measures
    }
    shown = [pool for pool in pools if pool != "own_same_classes"]  # of its client, too
    columns = ("reconstructed", *(f"closest of {POOL_NAMES[pool]}" for pool in shown))
    tiles = [
        plot.Tile(images=images, label=label)
        for one in done.reconstructed
        for images, label in _shown(one, shown)
    ]
    files = [folder / "closeness.png", folder / "disparity.png", folder / "examples.png"]
    try:
        plot.draw_closeness(closeness, f"Reconstructed examples and the closest real ones\n{run}", files[0])
        plot.draw_disparity([np.array(one.disparity) for one in done.reconstructed], files[1])
        if tiles:
            plot.draw_sheet(tiles, columns, f"Reconstructed examples: {run}", files[2])
    except OSError as error:
        raise UserError(
            f"--plots is {folder}, which cannot be written in: {(error.strerror or str(error)).lower()}; name another "
            "folder"
        ) from None
    return files if tiles else files[:2]


def _axis(measure: "Measure") -> str:
    unit = f", {measure.unit}" if measure.unit else ""
    return f"{measure.name}{unit} ({'larger' if measure.larger_is_closer else 'smaller'} is closer)"


def _shown(one: "Reconstructed", pools: Sequence[str]) -> "Iterator[tuple[list[NDArray[np.float32]], str]]":
    """The examples whose labels say most, each with the closest of each pool, and what is written above; none where
    examples are no images."""
    if one.pixels_rX.ndim != 4:
        return
    surest = sorted(range(len(one.certainty)), key=lambda place: -one.certainty[place])
    for place in surest[:SHOWN_OF_AN_UPDATE]:
        images = [one.pixels_rX[place], *(one.closest[pool][place] for pool in pools)]
        label = f"client {one.client_id}: class {one.matches.labels[place]}, {one.certainty[place]:.0%}"
        yield [image.numpy() for image in images], label
