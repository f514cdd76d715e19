"""Run directories with known numbers, and rows of their reports."""

from pathlib import Path
from typing import Any

from support.journal import accepted, rejected, task
from support.running import small
from unstale.compensators import Compensated, MeasuredError
from unstale.journal.database import BOOT, Database
from unstale.journal.disk import boot
from unstale.journal.resumption import ENDED, RUN_ID
from unstale.journal.rows import Batch, CompensationRow, EvaluationRow, MemberRow, RoundRow, UpdateRow
from unstale.journal.rundir import RunDirectory
from unstale.report.content import Report

Rows = list[dict[str, Any]]


def rows(of: Report, name: str) -> Rows:
    """Return the rows of a table as dictionaries by column."""
    (table,) = (table for table in of.tables if table.name == name)
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def run(path: Path, batch: Batch, *, run_id: str | None = None, ended: bool = True, **changes: Any) -> Path:
    """Make a run directory. run_id: None for a simulated run. changes: top-level keys."""
    settings = small(**{"clients": 4, "rounds": 2, "run": {"directory": str(path)}, **changes})
    directory = RunDirectory.open(path, settings)
    database = Database(directory.database)
    database.store(batch, sync=False)
    facts = {BOOT: boot(), ENDED: str(database.last_seq()) if ended else ""}
    database.set_meta(facts if run_id is None else facts | {RUN_ID: run_id})
    database.close()
    directory.close()
    return path


def measured(version: int, accuracy: float, *, at_s: float | None = None, loss: float = 1.0) -> EvaluationRow:
    """By default 10 s per version. Classes 0 and 2 have the same accuracy; the test set has no class 1."""
    return EvaluationRow(
        version=version,
        at_s=0.5 + 10.0 * version if at_s is None else at_s,
        metrics={"accuracy": accuracy, "loss": loss},
        class_accuracy=(accuracy, None, accuracy),
        evaluate_s=0.25,
    )


def curve(*accuracies: float, every: int = 1, **others: Any) -> Batch:
    """Return a run with evaluations of versions 0, `every`, ..."""
    rows = [measured(place * every, accuracy, **others) for place, accuracy in enumerate(accuracies)]
    return Batch(tasks=[task(1)], evaluations=rows)


def round_of(version: int, *members: tuple[int, int, float], digest: str = "ab") -> RoundRow:
    """Return a round. members: handle, staleness and weight of each."""
    return RoundRow(
        version=version,
        closed_s=10.0 * version,
        applied_s=10.0 * version + 0.5,
        wait_s=2.0,
        compensate_s=0.25,
        aggregate_s=0.75,
        learning_rate=0.1,
        rate_factor=1.0,
        overflowed=False,
        digest=digest * 32,
        members=tuple(
            MemberRow(handle=handle, staleness=staleness, weight=weight) for handle, staleness, weight in members
        ),
    )


def small_run() -> Batch:
    """Return two rounds of two updates, one waiting update and two rejected ones; clients 0, 1 and 2 of four."""
    updates: list[UpdateRow] = [
        accepted(1, 1, client_id=0),
        accepted(2, 2, client_id=1),
        rejected(3, "non-finite", client_id=1),
        accepted(4, 4, client_id=0),
        accepted(5, 5, client_id=2),
        accepted(6, 6, client_id=0),
        rejected(7, "expired-task", client_id=2),
    ]
    return Batch(
        tasks=[task(number, client_id=client_id) for number, client_id in enumerate((0, 1, 1, 0, 2, 0, 2, 3))],
        updates=updates,
        rounds=[round_of(1, (1, 0, 0.75), (2, 0, -0.25)), round_of(2, (4, 1, 0.5), (5, 3, 0.5), digest="cd")],
        evaluations=[measured(0, 0.25, at_s=0.5), measured(2, 0.75, at_s=20.5)],
    )


def compensated() -> Batch:
    """Return `small_run` with first-order compensation: three errors, and a fallback in each round."""
    errors = (
        MeasuredError(client_id=0, method="none", l1=4.0, cosine=0.5, staleness=2),
        MeasuredError(client_id=0, method="first-order", l1=1.0, cosine=0.125, staleness=2),
    )
    row = CompensationRow(
        updates=(Compensated(), Compensated(method="first-order", share=1.0)),
        errors=errors,
        fallbacks={"no-base": 1},
        is_kept=False,
    )
    batch = small_run()
    batch.rounds[0] = batch.rounds[0]._replace(compensation=row)
    batch.rounds[1] = batch.rounds[1]._replace(
        compensation=row._replace(errors=(MeasuredError(client_id=1, method="none", l1=2.0, cosine=0.25, staleness=4),))
    )
    return batch
