"""`unstale restore`: prepare a run directory that comes from a backup."""

from dataclasses import asdict

from unstale.cli import printing
from unstale.cli.parameters import AsJson, RunDirectory


def restore(run: RunDirectory, as_json: AsJson = False) -> None:
    """Check a run directory that comes from a backup, and give the run another id, so that clients discard updates of
    its lost end.
    """
    from unstale.journal.restore import restore as restore_run  # imports torch

    result = restore_run(run)
    if as_json:
        paths = [str(path) for path in result.set_aside]
        printing.json_line("restored", {**asdict(result), "set_aside": paths})
        return
    for message in result.damaged_checkpoints:
        printing.line(f"{message}; an older checkpoint is intact")
    updates = result.updates
    printing.line(
        f"version {result.version}: {updates.received} updates, {updates.aggregated} aggregated, {updates.pending} "
        f"waiting, {updates.rejected} rejected"
    )
    if result.lost_events:
        printing.line(f"{result.lost_events} later events are lost")
    for path in result.set_aside:
        printing.line(f"{path}: set aside, run.db does not name it")
    printing.line(f"run id {result.run_id}, before {result.former_run_id or 'none'}; start `unstale server` on {run}")
