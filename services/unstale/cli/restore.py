"""`unstale restore`: prepare a run directory that was put back from a copy."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unstale.cli import printing

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON line, for programs.")]


def restore(run: Run, as_json: AsJson = False) -> None:
    """Check a run directory that was put back from a copy, and give the run another id, so that clients drop what they
    hold of its lost end."""
    from unstale.journal.restore import restore as restored  # imports torch

    found = restored(run)
    if as_json:
        facts = asdict(found)
        printing.json_line("restored", {**facts, "set_aside": [str(path) for path in found.set_aside]})
        return
    for message in found.damaged_checkpoints:
        printing.line(f"{message}; an older checkpoint is whole")
    updates = found.updates
    printing.line(
        f"version {found.version}: {updates.received} updates, {updates.aggregated} aggregated, {updates.pending} "
        f"waiting, {updates.rejected} rejected"
    )
    if found.lost_events:
        printing.line(f"{found.lost_events} later events are lost")
    for path in found.set_aside:
        printing.line(f"{path}: set aside, run.db does not name it")
    printing.line(
        f"run id {found.run_id}, before {found.former_run_id or 'none'}; start `unstale server` on {run}"
    )
