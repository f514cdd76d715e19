"""`unstale verify`, `unstale restore` and `unstale rollback`: check and change a run directory."""

from dataclasses import asdict
from typing import Annotated

import typer

from unstale.cli.parameters import AsJson, RunDirectory
from unstale.cli.printing import json_line, line
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


def verify(run: RunDirectory, as_json: AsJson = False) -> None:
    """Read every row and every file of a run directory without a change, and list each damage with its remedy. The exit
    code is 1 if something is damaged.
    """
    from unstale.journal.verify import verify as verify_run  # imports torch

    result = verify_run(run)
    if as_json:
        json_line("verified", asdict(result))
    else:
        for message in (*result.damages, *result.notes):
            line(message)
        rows = ", ".join(f"{number:,} {table}" for table, number in result.rows.items())
        line(f"rows: {rows or 'none'}")
        files = ", ".join(
            f"{number:,} of {kind} ({result.bytes[kind]:,} bytes)" for kind, number in result.files.items()
        )
        line(f"files: {files}; {result.updates:,} updates in segments")
        line(f"{len(result.damages):,} damages" if result.damages else "no damage")
    if result.damages:
        raise typer.Exit(1)


def restore(run: RunDirectory, as_json: AsJson = False) -> None:
    """Check a run directory that comes from a backup, and give the run another id, so that clients discard updates of
    its lost end.
    """
    from unstale.journal.restore import restore as restore_run  # imports torch

    result = restore_run(run)
    if as_json:
        json_line("restored", asdict(result))
        return
    for message in result.damaged_checkpoints:
        line(f"{message}; an older checkpoint is intact")
    updates = result.updates
    line(
        f"version {result.version}: {updates.received} updates, {updates.aggregated} aggregated, {updates.pending} "
        f"waiting, {updates.rejected} rejected"
    )
    if result.lost_events:
        line(f"{result.lost_events} later events are lost")
    for path in result.set_aside:
        line(f"{path}: set aside, run.db does not name it")
    line(f"run id {result.run_id}, before {result.former_run_id or 'none'}; start `unstale server` on {run}")


def rollback(
    run: RunDirectory, to: To = None, without: Without = None, readmit: Readmit = None, as_json: AsJson = False
) -> None:
    """Reset a run to an earlier version, so that the next server resumes from there, with or without a client."""
    if to is None and not without and not readmit:
        raise UserError("nothing to do, expected --to VERSION, --without CLIENT or --readmit CLIENT")
    from unstale.journal.rollback import roll_back  # imports torch

    result = roll_back(run, to, without=without or (), readmit=readmit or ())
    if as_json:
        json_line("rolled-back", asdict(result))
        return
    line(
        f"version {result.version}, before {result.former_version}: {result.updates} accepted updates are not used any "
        "more"
    )
    if result.excluded:
        line(f"excluded clients: {', '.join(map(str, result.excluded))}")
    line(f"{result.copy}: a copy of the former run; to undo, start `unstale server` on a copy of that directory")
    line(f"run id {result.run_id}, before {result.former_run_id or 'none'}; start `unstale server` on {run}")
