"""Accuracies of clients on their own test examples, computed by hand."""

from math import isnan, sqrt
from pathlib import Path

import pytest

from report.made import rows, run, small_run
from unstale.journal.rows import Batch, OwnEvaluationRow
from unstale.report.make import report

T_1 = 12.706204736  # Student's t, 1 degree of freedom, 97.5 %


def asked(*answers: tuple[int, int, float]) -> Batch:
    """`small_run` with own evaluations. answers: client, version and accuracy of each, in order."""
    batch = small_run()
    batch.own_evaluations = [
        OwnEvaluationRow(seq, client_id, version, accuracy, loss=0.5, examples=4)
        for seq, (client_id, version, accuracy) in enumerate(answers, start=1)
    ]
    return batch


def test_fairness_is_over_the_last_version_that_each_client_measured(tmp_path: Path) -> None:
    answers = asked((0, 1, 0.25), (1, 1, 0.5), (0, 2, 0.75), (2, 2, 1.0))
    of = report([run(tmp_path / "run", answers, evaluate_clients_every=1)])
    (row,) = rows(of, "own_accuracy")
    # 0.75, 0.5 and 1: mean 3/4; squares of the differences 0, 1/16, 1/16, so 1/8 over n - 1 = 2, and over n = 3.
    assert (row["clients_mean"], row["measured_versions"], row["accuracy_mean_ratio"]) == (3, "1 to 2", 0.75)
    assert row["over_clients_std_ratio"] == pytest.approx(sqrt(1 / 16))
    assert row["over_clients_variance_points2"] == pytest.approx(1e4 / 24)
    assert (row["worst_tenth_ratio"], row["best_tenth_ratio"]) == (0.5, 1.0)
    assert isnan(row["accuracy_std_ratio"])  # of a single run
    assert [(one["client_id"], one["version"]) for one in rows(of, "own_evaluations")] == [
        (0, 1),
        (1, 1),
        (0, 2),
        (2, 2),
    ]
    by_client = {one["client_id"]: one["own_accuracy_ratio"] for one in rows(of, "clients")}
    assert by_client == {0: 0.75, 1: 0.5, 2: 1.0, 3: None}


def test_a_group_has_the_mean_of_its_runs_with_the_interval_over_runs(tmp_path: Path) -> None:
    paths = [
        run(tmp_path / str(seed), asked((0, 1, worst), (1, 1, worst + 0.5)), seed=seed, evaluate_clients_every=1)
        for seed, worst in enumerate((0.0, 0.25))
    ]
    (row,) = rows(report(paths), "own_accuracy")
    # Means over clients 1/4 and 1/2: 3/8, and half an interval t * |1/4 - 1/2| / 2.
    assert row["accuracy_mean_ratio"] == pytest.approx(0.375)
    assert row["accuracy_high_ratio"] == pytest.approx(0.375 + T_1 / 8)
    assert (row["worst_tenth_ratio"], row["best_tenth_ratio"]) == (0.125, 0.625)


def test_measurements_without_a_request_do_not_count(tmp_path: Path) -> None:
    answers = asked((0, 2, 0.25), (0, 3, 0.75))
    of = report([run(tmp_path / "run", answers, evaluate_clients_every=2)])
    assert [one["accuracy_ratio"] for one in rows(of, "own_evaluations")] == [0.25]


def test_without_measurements_there_is_no_picture_and_no_row(tmp_path: Path) -> None:
    of = report([run(tmp_path / "run", small_run())])
    assert rows(of, "own_accuracy") == rows(of, "own_evaluations") == []
    assert "own_accuracy" not in [picture.name for picture in of.pictures]
