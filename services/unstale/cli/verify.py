"""`unstale verify`: read all that a run directory holds, and list what is damaged."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unstale.cli import printing

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON line, for programs.")]


def verify(run: Run, as_json: AsJson = False) -> None:
    """Read every row and every file of a run directory, change nothing, and list each damage with the way out. The exit
    code is 1 where something is damaged."""
    from unstale.journal.verify import verify as verified  # imports torch

    found = verified(run)
    if as_json:
        printing.json_line("verified", asdict(found))
    else:
        for message in (*found.damages, *found.notes):
            printing.line(message)
        rows = ", ".join(f"{count:,} {table}" for table, count in found.rows.items())
        printing.line(f"rows: {rows or 'none'}")
        files = ", ".join(
            f"{count:,} of {kind} ({found.bytes[kind]:,} bytes)" for kind, count in found.files.items()
        )
        printing.line(f"files: {files}; {found.updates:,} updates in segments")
        printing.line("all is as it was stored" if not found.damages else f"{len(found.damages):,} damages")
    if found.damages:
        raise typer.Exit(1)
