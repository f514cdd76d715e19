"""`unstale reproduce`: the published tables and figures, computed again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.app import App
from unstale.cli.tables import print_table
from unstale.errors import UserError
from unstale_papers.choose import chosen, data_sets
from unstale_papers.cli import job_options
from unstale_papers.cli.job_options import (
    CACHE,
    STORE,
    AsJson,
    Backend,
    Cache,
    Cells,
    Data,
    Device,
    Name,
    Processes,
    Ray,
    ScaleClients,
    ScaleData,
    ScaleIterations,
    ScaleOption,
    ScaleRounds,
    Seeds,
    StoreFolder,
)
from unstale_papers.cli.reproduce_progress import duration_text

if TYPE_CHECKING:
    from unstale_papers.durations import Durations
    from unstale_papers.jobs import Job, Place
    from unstale_papers.preset import Preset
    from unstale_papers.scale import Scale
    from unstale_papers.store import Store

app = App(help="Compute the tables and figures of the papers again.")

PagesOnly = Annotated[
    bool, typer.Option("--pages-only", help="Compute nothing; write the pages of what the store has.")
]
Names = Annotated[
    list[str],
    typer.Argument(metavar="PRESET...", help="Names that `unstale reproduce list` prints.", show_default=False),
]


@app.callback()
def _options_of_the_group() -> None:
    pass


@app.command(name="list")
def list_all(store: StoreFolder = STORE, as_json: AsJson = False) -> None:
    """List the published tables and figures that can be computed again."""
    from unstale_papers.durations import Durations
    from unstale_papers.presets.registry import PRESETS
    from unstale_papers.store import Store

    known = Durations()
    kept = Store.look(store)
    if kept is not None:
        with kept:
            known = Durations(kept.seconds())
    every = [(preset, _seconds_of(preset, known)) for preset in (make() for make in PRESETS.values())]
    if as_json:
        print(json.dumps([_facts(preset, seconds) for preset, seconds in every], indent=2))
        return
    is_known = any(seconds is not None for _, seconds in every)
    print_table(
        ("preset", "published as", "data", "cells", *(["a seed takes"] * is_known)),
        [
            (
                *(preset.name, f"{preset.paper}, {preset.item}", _data_of(preset)),
                *(f"{len(preset.cells):,}", *(["-" if seconds is None else duration_text(seconds)] * is_known)),
            )
            for preset, seconds in every
        ],
        lines=False,
    )
    if is_known:
        print(f"A seed takes so long at full size on one core, by what jobs like its own took that {store} keeps.")
    print("One with its settings and published numbers: unstale reproduce show fh-t2")
    print("A quick look at it: unstale reproduce run fh-t2 --seeds 1 --scale 0.01")


def _data_of(preset: "Preset") -> str:
    """The names of its data sets, of one that a function makes without its module."""
    return ", ".join(name.rpartition(":")[2] for name in data_sets(preset.cells)) or "-"


def _seconds_of(preset: "Preset", known: "Durations") -> float | None:
    """Duration of one seed of all cells on one core; cells without a known duration count as the mean."""
    from unstale_papers.durations import left_s
    from unstale_papers.jobs import Place, jobs
    from unstale_papers.scale import Scale

    planned = jobs(preset, preset.cells, seeds=[0], scale=Scale(), place=Place(cache=CACHE))
    return left_s([], [known.of(job.configuration) for job in planned], at_a_time=1)


def _facts(preset: "Preset", seconds: float | None) -> dict[str, object]:
    return {
        "name": preset.name,
        "paper": preset.paper,
        "item": preset.item,
        "title": preset.title,
        "data": data_sets(preset.cells),
        "cells": len(preset.cells),
        "seconds_of_a_seed": seconds,
    }


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show one: its cells' settings and where each is from, the published numbers, and what is claimed of them."""
    from unstale_papers.cli import reproduce_show
    from unstale_papers.presets.registry import make

    (reproduce_show.show_json if as_json else reproduce_show.show)(make(name))


@app.command()
def run(
    names: Names,
    cells: Cells = None,
    seeds: Seeds = 3,
    scale: ScaleOption = 1.0,
    scale_rounds: ScaleRounds = None,
    scale_clients: ScaleClients = None,
    scale_data: ScaleData = None,
    scale_iterations: ScaleIterations = None,
    data: Data = None,
    cache: Cache = CACHE,
    device: Device = "auto",
    backend: Backend = "auto",
    processes: Processes = None,
    ray: Ray = None,
    store: StoreFolder = STORE,
    pages_only: PagesOnly = False,
    as_json: AsJson = False,
) -> None:
    """Compute presets, cell by cell. It can be ended at any time: the same command goes on, and computes nothing twice.

    The exit code is 1 when a cell has failed.
    """
    from unstale_papers.jobs import jobs
    from unstale_papers.presets.registry import make
    from unstale_papers.scale import lost

    wanted = chosen([make(name) for name in dict.fromkeys(names)], cells)
    first = None if pages_only else job_options.begin(wanted, ray)
    size = job_options.scale(
        scale, rounds=scale_rounds, clients=scale_clients, data=scale_data, iterations=scale_iterations
    ).at(cell for preset, _ in wanted for cell in preset.cells)
    place = job_options.place(wanted, cache=cache, device=device, data=data or (), ray=ray, backend=backend)
    whole = [(preset, jobs(preset, preset.cells, seeds=range(seeds), scale=size, place=place)) for preset, _ in wanted]
    if pages_only:
        _write(whole, seeds, size, place, store, as_json=as_json)
        return
    here = {(preset.name, cell.name) for preset, some in wanted for cell in some}
    code = job_options.compute(
        [job for _, own in whole for job in own if (job.preset, job.cell) in here],
        seeds=seeds,
        size=size,
        lost=lost([cell for _, some in wanted for cell in some], size),
        place=place,
        processes=processes,
        first=first,
        ray=ray,
        store=store,
        as_json=as_json,
    )
    _write(whole, seeds, size, place, store, as_json=as_json)
    if code:
        raise typer.Exit(code)


@app.command(name="export")
def export_results(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="It is written anew.", show_default=False)],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET...]", help="Only what was computed first for these presets.", show_default=False
        ),
    ] = None,
    store: StoreFolder = STORE,
    as_json: AsJson = False,
) -> None:
    """Write the store's results as text, to publish them or to take them to another machine."""
    from unstale_papers import published
    from unstale_papers.presets.registry import make

    presets = [make(name).name for name in names or ()]
    with _existing(store) as kept:
        count = published.write(kept, file, presets)
    if as_json:
        printing.json_line("exported", {"results": count, "file": str(file)})
    else:
        printing.line(f"written: {file}, {count:,} results")


@app.command()
def claims(
    exported: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Read the .jsonl files of this folder, which `unstale reproduce export` wrote, and not the store.",
            show_default=False,
        ),
    ] = None,
    store: StoreFolder = STORE,
    as_json: AsJson = False,
) -> None:
    """Write one page of the claims of all papers with their verdicts, and a CSV file, beside the results."""
    from unstale_papers.cli import reproduce_claims

    files = [str(file) for file in reproduce_claims.write(store, exported)]
    if as_json:
        printing.json_line("written", {"files": files})
    else:
        printing.line(f"written: {', '.join(files)}")


@app.command(name="import")
def import_results(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE.jsonl...", help="That `unstale reproduce export` wrote.", show_default=False),
    ],
    store: StoreFolder = STORE,
    as_json: AsJson = False,
) -> None:
    """Take results of another store into this one: what they hold is not computed again."""
    from unstale_papers import published
    from unstale_papers.store import Store

    with Store.open(store) as kept:
        new, had = published.read(kept, files)
    if as_json:
        printing.json_line("imported", {"new": new, "had": had})
    else:
        printing.line(f"taken into {store}: {new:,} results; it had {had:,} more of these")


def _existing(folder: Path) -> "Store":
    """The store of a folder, to read. Raises UserError."""
    from unstale_papers.store import Store

    kept = Store.look(folder)
    if kept is None:
        raise UserError(
            f"there is no store in {folder}, expected one that `unstale reproduce run` made; name it with --store"
        )
    return kept


def _write(
    whole: "Sequence[tuple[Preset, Sequence[Job]]]",
    seeds: int,
    size: "Scale",
    place: "Place",
    store: Path,
    *,
    as_json: bool,
) -> None:
    """Write the store's results of the presets as pages, Markdown, CSV and pictures. whole: with all jobs.

    Results of other devices are there where this one has none; the pages name each machine.
    """
    from unstale.report.content import count
    from unstale_papers import output
    from unstale_papers.comparison import Comparison
    from unstale_papers.jobs import reported

    folder = store / size.slug
    comparisons = []
    with _existing(store) as kept:
        for preset, planned in whole:
            own = reported(preset, planned, scale=size, place=place, is_done=kept.has)
            comparison = Comparison(preset=preset, records=kept.records(own))
            comparisons.append(comparison)
            output.write(
                comparison,
                folder,
                scale=size,
                about=[f"{origin}: {count(runs, 'run')}" for origin, runs in kept.origins(own).items()],
                data={name: Path(file.path).name for name, file in place.files.items()},
                seeds=range(seeds),
                failures={key: one.traceback for key, one in kept.failures(own).items()},
            )
    scales = {one.preset.name: size for one in comparisons}
    output.index(comparisons, folder, scales=scales, seeds=range(seeds))
    pages = [str(folder / f"{one.preset.name}.html") for one in comparisons]
    if as_json:
        printing.json_line("written", {"pages": pages})
    else:
        printing.line(f"written: {', '.join(pages)}, and beside them Markdown, CSV and pictures")
