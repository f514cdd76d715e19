"""Reports of runs with metrics other than accuracy: computed by hand."""

from math import isnan
from pathlib import Path
from typing import Any

import pytest

from report.made import rows, run, small_run
from support.journal import task
from unstale.journal.rows import Batch, EvaluationRow, OwnEvaluationRow
from unstale.report.make import report

REGRESSION = {"objective": {"name": "regression"}}


def curve(*errors: float) -> Batch:
    """Versions 0, 1, ... with these mean absolute errors, a loss of twice that, and a constant r2."""
    evaluations = [
        EvaluationRow(version, 10.0 * version, {"loss": 2 * mae, "mae": mae, "r2": -1.0}, (), 0.25)
        for version, mae in enumerate(errors)
    ]
    return Batch(tasks=[task(1)], evaluations=evaluations)


def regression(path: Path, *errors: float, **changes: Any) -> Path:
    return run(path, curve(*errors), **REGRESSION, **changes)


def test_the_main_metric_is_first_and_its_best_value_is_the_lowest_where_lower_is_better(tmp_path: Path) -> None:
    of = report([regression(tmp_path / "run", 4.0, 1.5, 2.0)])
    (row,) = rows(of, "runs")
    assert (row["mae"], row["best_mae"], row["loss"], row["r2"]) == (2.0, 1.5, 4.0, -1.0)
    names = [column.name for table in of.tables if table.name == "evaluations" for column in table.columns]
    assert names == ["run", "version", "elapsed_s", "mae", "loss", "r2", "evaluate_s"]
    assert [row["mae"] for row in rows(of, "evaluations")] == [4.0, 1.5, 2.0]
    pictures = [picture for picture in of.pictures if picture.name == "mae_over_versions"]
    assert [picture.caption for picture in pictures] == [
        "Test mae against the number of rounds applied; lower is better."
    ]


def test_a_target_is_reached_from_above_where_lower_is_better(tmp_path: Path) -> None:
    (row,) = rows(report([regression(tmp_path / "run", 4.0, 1.5, 2.0)], targets=[3.0]), "targets")
    assert (row["target_mae"], row["reached"], row["rounds_mean"]) == (3.0, 1, 1.0)


def test_a_group_is_better_in_the_pairs_in_which_its_error_is_lower(tmp_path: Path) -> None:
    paths = [
        regression(tmp_path / f"{policy}{seed}", 4.0, error, seed=seed, policy={"name": policy})
        for policy, errors in (("fedavg", (2.0, 2.0, 2.0)), ("fedbuff", (1.0, 1.5, 2.5)))
        for seed, error in enumerate(errors)
    ]
    (row,) = rows(report(paths), "pairs")
    assert (row["seeds"], row["better"]) == (3, 2)
    assert row["mae_difference_mean"] == pytest.approx((-1.0 - 0.5 + 0.5) / 3)


def test_without_a_test_set_the_means_over_the_clients_are_reported(tmp_path: Path) -> None:
    batch = small_run()
    batch.own_evaluations = [
        OwnEvaluationRow(seq, client_id, 1, {"mae": mae}, examples)
        for seq, client_id, mae, examples in ((1, 0, 8.0, 30), (2, 1, 4.0, 10))
    ]
    batch.evaluations = [EvaluationRow(2, 20.5, {}, (), 0.0)]
    of = report([run(tmp_path / "run", batch, evaluate_clients_every=1, **REGRESSION)])
    (row,) = rows(of, "runs")
    assert (row["last_measured_version"], row["mae"]) == (2, 7.0)  # (30 * 8 + 10 * 4) / 40
    (over,) = rows(of, "own_metrics")
    assert (over["metric"], over["clients"], over["mean"], over["p10"], over["p50"]) == ("mae", 2, 7.0, 4.0, 8.0)
    assert (over["worst"], over["worst_client_id"]) == (8.0, 0)
    clients = {row["client_id"]: row["own_mae"] for row in rows(of, "clients")}
    assert (clients[0], clients[1], isnan(clients[3] or float("nan"))) == (8.0, 4.0, True)
    assert {"mae_over_versions", "own_mae"} <= {picture.name for picture in of.pictures}
    assert not rows(of, "own_accuracy")
