"""`unstale verify`: read all contents of a run directory, and list damage."""

from dataclasses import asdict

import typer

from unstale.cli import printing
from unstale.cli.parameters import AsJson, RunDirectory


def verify(run: RunDirectory, as_json: AsJson = False) -> None:
    """Read every row and every file of a run directory without a change, and list each damage with its remedy. The exit
    code is 1 if something is damaged.
    """
    from unstale.journal.verify import verify as verify_run  # imports torch

    result = verify_run(run)
    if as_json:
        printing.json_line("verified", asdict(result))
    else:
        for message in (*result.damages, *result.notes):
            printing.line(message)
        rows = ", ".join(f"{number:,} {table}" for table, number in result.rows.items())
        printing.line(f"rows: {rows or 'none'}")
        files = ", ".join(
            f"{number:,} of {kind} ({result.bytes[kind]:,} bytes)" for kind, number in result.files.items()
        )
        printing.line(f"files: {files}; {result.updates:,} updates in segments")
        damages = f"{len(result.damages):,} damages" if result.damages else "no damage"
        printing.line(damages)
    if result.damages:
        raise typer.Exit(1)
