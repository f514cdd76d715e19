"""`unstale rollback`: take a run back to an earlier version."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unstale.cli import printing
from unstale.errors import UserError

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.", show_default=False)]
To = Annotated[
    int | None,
    typer.Option(
        "--to", metavar="VERSION", help="Version to resume from; the newest, if left out.", show_default=False
    ),
]
Without = Annotated[
    list[int] | None,
    typer.Option(
        "--without",
        metavar="CLIENT",
        help="Exclude a client from the run from now on. May be repeated.",
        show_default=False,
    ),
]
Readmit = Annotated[
    list[int] | None,
    typer.Option(
        "--readmit",
        metavar="CLIENT",
        help="Admit a client again that was excluded. May be repeated.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON line, for programs.")]


def rollback(
    run: Run, to: To = None, without: Without = None, readmit: Readmit = None, as_json: AsJson = False
) -> None:
    """Take a run back to an earlier version, so that the next server resumes from there, with or without a client."""
    if to is None and not without and not readmit:
        raise UserError("nothing to do, expected --to VERSION, --without CLIENT or --readmit CLIENT")
    from unstale.journal.rollback import roll_back  # imports torch

    done = roll_back(run, to, without=without or (), readmit=readmit or ())
    if as_json:
        printing.json_line("rolled-back", {**asdict(done), "copy": str(done.copy)})
        return
    printing.line(
        f"version {done.version}, before {done.former_version}: {done.updates} accepted updates are not used any more"
    )
    if done.excluded:
        printing.line(f"excluded clients: {', '.join(map(str, done.excluded))}")
    printing.line(
        f"{done.copy}: the run as it was; to undo, start `unstale server` on a copy of that directory"
    )
    printing.line(
        f"run id {done.run_id}, before {done.former_run_id or 'none'}; start `unstale server` on {run}"
    )
