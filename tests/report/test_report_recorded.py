"""Data frames of a run directory, computed by hand, and the state of a run."""

import fcntl
import sqlite3
from math import isnan
from pathlib import Path

import pytest

from report.made import curve, measured, run, small_run
from support.journal import accepted
from unstale.errors import UserError
from unstale.journal.database import Database
from unstale.journal.rows import Batch
from unstale.report.recorded import State, names_of, read


def test_updates_have_their_round_and_weight(tmp_path: Path) -> None:
    found = read(run(tmp_path / "run", small_run()), "run").updates
    assert found.version.fillna(0).tolist() == [1, 1, 0, 2, 2, 0, 0]
    assert found.staleness_rounds.fillna(-1).tolist() == [0, 0, -1, 1, 3, -1, -1]
    # Weights 0.75 and -0.25: shares 3/4 and 1/4. 0.5 and 0.5: halves.
    assert [share for share in found.weight_share_ratio if not isnan(share)] == [0.75, 0.25, 0.5, 0.5]
    assert found.weight[1] == -0.25
    assert found.reason.fillna("").tolist() == ["", "", "non-finite", "", "", "", "expired-task"]
    assert found.elapsed_s[0] == 1 / 8 - 0.5  # the first task was assigned at 0.5 s


def test_a_run_has_its_update_balance_and_tasks(tmp_path: Path) -> None:
    found = read(run(tmp_path / "run", small_run()), "run")
    of = found.conservation
    assert (of.received, of.aggregated, of.pending, of.rejected) == (7, 4, 1, 2)
    assert (found.version, found.elapsed_s, found.tasks[0]) == (2, 20.0, 3)
    assert found.is_simulated


def test_classes_without_examples_are_nan(tmp_path: Path) -> None:
    found = read(run(tmp_path / "run", small_run()), "run").class_accuracy
    assert found[0].tolist() == [0.25, 0.75]
    assert found[1].isna().all()


@pytest.mark.parametrize(
    ("rounds", "ended", "state"), [(2, False, State.FINISHED), (3, True, State.STOPPED), (3, False, State.BROKEN)]
)
def test_the_progress_of_a_run_is_read(rounds: int, ended: bool, state: State, tmp_path: Path) -> None:
    path = run(tmp_path / "run", small_run(), run_id="r", rounds=rounds, ended=ended)
    assert read(path, "run").state is state


def test_a_run_that_a_server_has_open_is_running(tmp_path: Path) -> None:
    path = run(tmp_path / "run", small_run(), rounds=3, ended=False)
    with (path / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read(path, "run").state is State.RUNNING


def test_a_run_without_rounds_is_read(tmp_path: Path) -> None:
    found = read(run(tmp_path / "run", Batch()), "run")
    assert (found.version, found.elapsed_s, len(found.evaluations), found.is_compensated) == (0, 0.0, 0, False)


def test_a_snapshot_is_consistent(tmp_path: Path) -> None:
    path = run(tmp_path / "run", small_run())
    writing = Database(path / "run.db")
    reading = Database(path / "run.db", read_only=True)
    with reading.snapshot():
        before = reading.conservation()
        writing.store(Batch(updates=[accepted(8, 8)]), sync=False)
        assert reading.conservation() == before
    assert reading.conservation().received == before.received + 1
    reading.close()
    writing.close()


def test_a_directory_without_a_run_or_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the directory of a run"):
        read(tmp_path, "run")
    path = run(tmp_path / "run", curve(0.5))
    with sqlite3.connect(path / "run.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(UserError, match="has format 99, expected"):
        read(path, "run")


def test_runs_are_named_by_the_shortest_unique_path(tmp_path: Path) -> None:
    assert names_of([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert names_of([tmp_path / "x/run", tmp_path / "y/run"]) == ["x/run", "y/run"]
    assert names_of([tmp_path / "a\nb"]) == ["a\N{REPLACEMENT CHARACTER}b"]
    assert names_of([tmp_path / "\x01", tmp_path / "\x02"]) == [
        "\N{REPLACEMENT CHARACTER} (1)",
        "\N{REPLACEMENT CHARACTER} (2)",
    ]
    with pytest.raises(UserError, match="is named twice"):
        names_of([tmp_path / "a", tmp_path / "x/../a"])


def test_the_last_evaluation_also_ends_a_run(tmp_path: Path) -> None:
    found = read(run(tmp_path / "run", Batch(evaluations=[measured(0, 0.5, at_s=3.0)])), "run")
    assert found.elapsed_s == 3.0  # no task was assigned: times are those of the run
