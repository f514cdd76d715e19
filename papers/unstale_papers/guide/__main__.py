"""Makes the data of the policy guide: `python -m unstale_papers.guide tune` and `write`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from unstale.cli.app import App
from unstale.cli.printing import line
from unstale.errors import UserError
from unstale_papers.cli import job_options
from unstale_papers.cli.job_options import CACHE, STORE, Cache, Data, Device, Processes, StoreFolder
from unstale_papers.guide import document, evidence, experiment, tuning
from unstale_papers.presets.guide import RATES_FILE, found_rates, preset

GUIDE = Path("docs/policy-guide.md")

Tasks = Annotated[list[str], typer.Argument(metavar="TASK...", help="digits, mnist, cifar10, regression or text.")]

app = App(help="Make the data of the policy guide.")


@app.command()
def tune(
    tasks: Tasks,
    store: StoreFolder = STORE,
    data: Data = None,
    cache: Cache = CACHE,
    device: Device = "auto",
    processes: Processes = None,
) -> None:
    """Search the rates of these tasks, and write them into the package."""
    experiment.check_tasks(tasks)
    options = ["--store", str(store), "--cache", cache, "--device", device]
    options += [] if processes is None else ["--processes", str(processes)]
    found = {}
    for task in tasks:
        own = [word for one in data or () if one.startswith(f"{task}=") for word in ("--data", one)]
        found[task] = tuning.tune(task, tuning.searches([*options, *own]))
        experiment.write_rates(found, RATES_FILE)
        line(f"written: {RATES_FILE}, rates of {task}")


@app.command()
def write(
    tasks: Tasks,
    store: StoreFolder = STORE,
    data: Data = None,
    cache: Cache = CACHE,
    device: Device = "auto",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of each cell.")] = 3,
    guide: Annotated[Path, typer.Option("--guide", metavar="FILE.md", help="The page to write.")] = GUIDE,
) -> None:
    """Write the results of a store into the package, and the guide. Other tasks keep the results that they have."""
    experiment.check_tasks(tasks)
    wanted = [(own, own.cells) for own in map(preset, tasks)]
    place = job_options.place(wanted, cache=cache, device=device, data=data or (), ray=None)
    found = experiment.collected(tasks, store, place, seeds)
    if not guide.parent.is_dir():
        raise UserError(f"--guide is {guide}, expected a file in a folder that exists; name another")
    if evidence.FILE.exists():
        found = experiment.merged(evidence.load(), found)
    experiment.write_evidence(found, evidence.FILE)
    guide.write_text(document.text(found, found_rates()), encoding="utf-8")
    line(f"written: {evidence.FILE} and {guide}, of {len(found.results):,} cells with {seeds} seeds")


if __name__ == "__main__":
    try:
        app()
    except UserError as error:
        sys.exit(f"unstale_papers.guide: {error}")
