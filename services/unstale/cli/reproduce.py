"""`unstale reproduce`: the published tables and figures, computed again."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import report
from unstale.cli.reproduce_progress import Printer, spoken
from unstale.cli.tables import print_table
from unstale.errors import UserError, nearest
from unstale.experiments.choose import chosen, data_sets

if TYPE_CHECKING:
    from unstale.experiments.durations import Durations
    from unstale.experiments.jobs import File, Job, Place
    from unstale.experiments.preset import Cell, Preset
    from unstale.experiments.scale import Scale

app = typer.Typer(help="Compute the tables and figures of the papers again.")

STORE = Path("unstale-reproduction")
CACHE = "~/.cache/unstale"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Name = Annotated[str, typer.Argument(metavar="PRESET", help="A name that `unstale reproduce list` prints.")]
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="PRESET...", help="Names that `unstale reproduce list` prints.", show_default=False
    ),
]
Cells = Annotated[
    str | None,
    typer.Option(
        "--cells",
        metavar="TEXT",
        help="Only these cells, such as 'method=FedHist,FedAvg beta=0.3'; `unstale reproduce show` has the labels.",
        show_default=False,
    ),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=1000, metavar="NUMBER", help="Seeds of each cell.")]
ScaleOption = Annotated[
    float,
    typer.Option(
        "--scale", metavar="NUMBER", help="Make it smaller: rounds by this, clients and data by its root."
    ),
]
ScaleRounds = Annotated[
    float | None,
    typer.Option("--scale-rounds", metavar="NUMBER", help="Make rounds fewer by this.", show_default=False),
]
ScaleClients = Annotated[
    float | None,
    typer.Option("--scale-clients", metavar="NUMBER", help="Make clients fewer by this.", show_default=False),
]
ScaleData = Annotated[
    float | None,
    typer.Option("--scale-data", metavar="NUMBER", help="Make examples fewer by this.", show_default=False),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="NAME=FILE",
        help="Take this .npz file in place of a data set, such as cifar10=mine.npz; every output says so. May be "
        "repeated.",
        show_default=False,
    ),
]
Cache = Annotated[str, typer.Option("--cache", metavar="FOLDER", help="The folder of downloaded data.")]
Device = Annotated[
    str, typer.Option("--device", help="Where to compute: auto, cpu, cuda, cuda:0, ... or mps.")
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        max=1024,
        metavar="NUMBER",
        help="Jobs at a time, each in a process of its own. Default: one a core, and one with a GPU.",
        show_default=False,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Have the machines of a Ray cluster do the jobs: auto, local or HOST:PORT.",
        show_default=False,
    ),
]
StoreFolder = Annotated[
    Path, typer.Option("--store", metavar="FOLDER", help="Where results are kept, and found again.")
]


@app.callback()
def _options_of_the_group() -> None:
    pass


@app.command(name="list")
def list_all(store: StoreFolder = STORE, as_json: AsJson = False) -> None:
    """List the published tables and figures that can be computed again."""
    from unstale.experiments.durations import Durations
    from unstale.experiments.presets.registry import PRESETS
    from unstale.experiments.store import Store

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
                *(preset.name, f"{preset.paper}, {preset.item}", ", ".join(data_sets(preset.cells))),
                *(f"{len(preset.cells):,}", *(["-" if seconds is None else spoken(seconds)] * is_known)),
            )
            for preset, seconds in every
        ],
        lines=False,
    )
    if is_known:
        print(
            f"A seed takes so long at full size on one core, by what jobs like its own took that {store} keeps."
        )
    print("One with its settings and published numbers: unstale reproduce show fh-t2")
    print("A quick look at it: unstale reproduce run fh-t2 --seeds 1 --scale 0.01")


def _seconds_of(preset: "Preset", known: "Durations") -> float | None:
    """Of one seed of all cells on one core, where anything is known; other cells count as those that are."""
    from unstale.experiments.durations import left_s
    from unstale.experiments.jobs import Place, jobs
    from unstale.experiments.scale import Scale

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
    from unstale.cli import reproduce_show
    from unstale.experiments.presets.registry import make

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
    data: Data = None,
    cache: Cache = CACHE,
    device: Device = "auto",
    processes: Processes = None,
    ray: Ray = None,
    store: StoreFolder = STORE,
    as_json: AsJson = False,
) -> None:
    """Compute presets, cell by cell. It can be ended at any time: the same command goes on, and computes nothing twice.

    The exit code is 1 when a cell has failed.
    """
    from unstale.experiments.engine import Engine
    from unstale.experiments.jobs import Place, jobs
    from unstale.experiments.presets.registry import make
    from unstale.experiments.store import Store

    wanted = chosen([make(name) for name in dict.fromkeys(names)], cells)
    size = _scale(scale, scale_rounds, scale_clients, scale_data)
    place = Place(cache=cache, device=_device(device, ray), files=_files(data or (), wanted))
    if ray is None:
        _check_data(wanted, place)
    planned = [
        job
        for preset, some in wanted
        for job in jobs(preset, some, seeds=range(seeds), scale=size, place=place)
    ]
    at_a_time = processes or (_cores() if place.device == "cpu" else 1)
    printer = Printer(as_json=as_json)
    stopped_by: list[int] = []
    with Store.open(store) as kept:
        engine = Engine(
            kept, printer, processes=at_a_time, ray=ray, gpus=float(place.device.startswith("cuda"))
        )

        def stop(number: int) -> None:
            stopped_by.append(number)
            engine.stop()

        report.stop_on_signals(stop)
        _announce(planned, seeds, size, place, ray or at_a_time, as_json=as_json)
        counts = engine.run(planned)
    printer.ended(counts, store=store, was_stopped=bool(stopped_by))
    if stopped_by or counts.failed:
        raise typer.Exit(128 + stopped_by[0] if stopped_by else 1)


def _scale(every: float, rounds: float | None, clients: float | None, data: float | None) -> "Scale":
    from unstale.experiments.scale import Scale

    own = {"rounds": rounds, "clients": clients, "data": data}
    return replace(Scale.of(every), **{name: value for name, value in own.items() if value is not None})


def _device(name: str, ray: str | None) -> str:
    """Never auto: it decides bits. Raises UserError for one that there is not."""
    if ray is None:
        from unstale.learner.device import choose  # imports torch

        return str(choose(name))
    from unstale.config import Given, load

    load(options={"compensator.ray": Given(value=ray, origin="--ray")})
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"--device is {name!r} with --ray, expected cpu or cuda: Ray says which GPU a job has"
        )
    return "cpu" if name == "auto" else name


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _files(texts: Sequence[str], wanted: "Sequence[tuple[Preset, tuple[Cell, ...]]]") -> "Mapping[str, File]":
    """What --data says, by the name of the data set."""
    from unstale.experiments.jobs import File
    from unstale.experiments.worker import sha256_of

    used = data_sets(cell for _, cells in wanted for cell in cells)
    files = {}
    for text in texts:
        name, sign, file = text.partition("=")
        if not sign or not file:
            raise UserError(f"--data is {text!r}, expected NAME=FILE.npz, such as {used[0]}=mine.npz")
        if name not in used:
            raise UserError(
                f"--data has {name!r}, which none of these cells is measured on{nearest(name, used)}"
            )
        path = str(Path(file).expanduser().absolute())
        files[name] = File(path=path, sha256=sha256_of(path))
    return files


def _check_data(wanted: "Sequence[tuple[Preset, tuple[Cell, ...]]]", place: "Place") -> None:
    """Raise UserError for a data set that is not there: every job would."""
    from unstale.training.datasets import DATASETS, Source, is_there  # imports torch

    for preset, cells in wanted:
        for name in data_sets(cells):
            if name in DATASETS and name not in place.files and is_there(name, place.cache) is False:
                command = Source(name=name, cache=place.cache).command
                raise UserError(
                    f"{preset.name} is measured on {name!r}, which is not in {place.cache}; get it with: {command}, or "
                    f"put a file in its place with --data {name}=FILE.npz"
                )


def _announce(
    planned: "Sequence[Job]",
    seeds: int,
    size: "Scale",
    place: "Place",
    by: int | str,
    *,
    as_json: bool,
) -> None:
    """What will be computed, and how it differs from what was published."""
    files = {name: {"path": file.path, "sha256": file.sha256} for name, file in place.files.items()}
    presets = list(dict.fromkeys(job.preset for job in planned))
    count = len({job.digest for job in planned})
    if as_json:
        facts = {"presets": presets, "jobs": count, "seeds": seeds, "scale": str(size), "data": files}
        report.json_line("planned", {**facts, "device": place.device, "by": by})
        return
    cells = len(planned) // seeds
    who = f"the Ray cluster {by}" if isinstance(by, str) else f"{by} process{'es' * (by > 1)}"
    report.line(
        f"{', '.join(presets)}: {cells} cell{'s' * (cells > 1)} with {seeds} seed{'s' * (seeds > 1)} are {count} "
        f"job{'s' * (count > 1)}, {size}, on {place.device} by {who}"
    )
    for name, file in files.items():
        report.line(f"in place of {name}: {file['path']} (SHA-256 {file['sha256'][:12]}...)")
