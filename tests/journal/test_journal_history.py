"""The metrics that were shown of recorded versions, counted by hand."""

from pathlib import Path

import pytest

from support.journal import accepted, round_of
from unstale.journal.database import Database
from unstale.journal.history import Shown, history
from unstale.journal.rows import Batch, EvaluationRow, OwnEvaluationRow, UpdateRow
from unstale.training.measured import MainMetric

MAE = MainMetric("mae", higher_is_better=False)


def evaluation(version: int, at_s: float, **metrics: float) -> EvaluationRow:
    return EvaluationRow(version, at_s, metrics, (), 0.0)


def arrived(seq: int, at_s: float, client_id: int) -> UpdateRow:
    return accepted(seq, seq, client_id=client_id)._replace(at_s=at_s)


def shown(path: Path, batch: Batch, every: int | None = 1) -> list[tuple[int, Shown]]:
    database = Database(path / "run.db")
    database.store(batch, sync=False)
    found = [(row.version, shown) for row, shown in history(database, MAE, every=every)]
    database.close()
    return found


def test_the_metrics_on_the_test_set_are_shown_with_the_main_one_first(tmp_path: Path) -> None:
    batch = Batch(evaluations=[evaluation(1, 1.0, loss=2.0, mae=0.5)])
    ((version, (split, metrics)),) = shown(tmp_path, batch)
    assert (version, split, [*metrics.items()]) == (1, "central", [("mae", 0.5), ("loss", 2.0)])


def test_without_a_test_set_the_means_of_the_clients_last_answers_until_then_are_shown(tmp_path: Path) -> None:
    batch = Batch(
        updates=[arrived(1, 1.0, 0), arrived(2, 2.0, 1), arrived(3, 4.0, 0)],
        own_evaluations=[
            OwnEvaluationRow(1, 0, 1, {"mae": 8.0}, 30),
            OwnEvaluationRow(2, 1, 1, {"mae": 4.0}, 10),
            OwnEvaluationRow(3, 0, 2, {"mae": 2.0}, 30),
        ],
        evaluations=[evaluation(1, 1.5), evaluation(2, 3.0), evaluation(3, 4.0)],
    )
    assert shown(tmp_path, batch) == [
        (1, Shown("clients", {"mae": 8.0})),
        (2, Shown("clients", {"mae": 7.0})),  # (30 * 8 + 10 * 4) / 40
        (3, Shown("clients", {"mae": 2.5})),  # (30 * 2 + 10 * 4) / 40
    ]


def test_before_the_first_answer_the_metrics_of_the_training_are_shown(tmp_path: Path) -> None:
    update = arrived(1, 1.0, 0)
    batch = Batch(updates=[update], rounds=[round_of(1, 1)], evaluations=[evaluation(0, 0.0), evaluation(1, 1.0)])
    assert shown(tmp_path, batch) == [
        (0, Shown("central", {})),
        (1, Shown("training", {"loss": pytest.approx(update.staged.loss)})),
    ]
