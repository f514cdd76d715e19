"""`unstale rollback`: reset a run to an earlier version."""

from dataclasses import asdict
from typing import Annotated

import typer

from unstale.cli import printing
from unstale.cli.parameters import AsJson, RunDirectory
from unstale.errors import UserError

To = Annotated[
    int | None, typer.Option("--to", metavar="VERSION", help="Version to resume from; by default the newest.")
]
Without = Annotated[
    list[int] | None,
    typer.Option("--without", metavar="CLIENT", help="Exclude a client from the run from now on. May be repeated."),
]
Readmit = Annotated[
    list[int] | None,
    typer.Option("--readmit", metavar="CLIENT", help="Admit an excluded client again. May be repeated."),
]


def rollback(
    run: RunDirectory, to: To = None, without: Without = None, readmit: Readmit = None, as_json: AsJson = False
) -> None:
    """Reset a run to an earlier version, so that the next server resumes from there, with or without a client."""
    if to is None and not without and not readmit:
        raise UserError("nothing to do, expected --to VERSION, --without CLIENT or --readmit CLIENT")
    from unstale.journal.rollback import roll_back  # imports torch

    result = roll_back(run, to, without=without or (), readmit=readmit or ())
    if as_json:
        printing.json_line("rolled-back", {**asdict(result), "copy": str(result.copy)})
        return
    printing.line(
        f"version {result.version}, before {result.former_version}: {result.updates} accepted updates are not used any "
        "more"
    )
    if result.excluded:
        printing.line(f"excluded clients: {', '.join(map(str, result.excluded))}")
    printing.line(
        f"{result.copy}: a copy of the former run; to undo, start `unstale server` on a copy of that directory"
    )
    printing.line(f"run id {result.run_id}, before {result.former_run_id or 'none'}; start `unstale server` on {run}")
