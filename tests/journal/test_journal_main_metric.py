"""The metric that a recorded run shows first."""

from pathlib import Path

import pytest

from support import apps
from support.recorded import over_sockets, simulated
from unstale.journal.database import Database
from unstale.journal.main_metric import MAIN_METRIC, main_metric, record
from unstale.journal.replay import RecordedRun
from unstale.training.measured import MainMetric

APP = {"app": "support.apps:measured", "model": {}, "partition": {}, "training": {}, "rounds": 2, "clients": 2}
MAE = MainMetric("mae", higher_is_better=False)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apps.write_tables(tmp_path, 2)
    monkeypatch.setenv(apps.FOLDER, str(tmp_path))


def test_a_simulated_run_of_an_app_records_the_main_metric_of_the_app(tmp_path: Path) -> None:
    simulated(tmp_path / "run", **APP)
    with RecordedRun(tmp_path / "run") as run:
        assert run.main_metric == MAE


def test_a_run_with_an_objective_of_the_user_records_the_main_metric_of_the_objective(tmp_path: Path) -> None:
    simulated(tmp_path / "run", objective={"name": "support.plugged:MyObjective"}, rounds=1, clients=2)
    with RecordedRun(tmp_path / "run") as run:
        assert run.main_metric == MainMetric("accuracy", higher_is_better=True)


@pytest.mark.network
def test_a_run_of_an_app_over_sockets_records_the_main_metric_of_the_app(tmp_path: Path) -> None:
    over_sockets(tmp_path / "run", **APP)
    with RecordedRun(tmp_path / "run") as run:
        assert run.main_metric == MAE


def test_a_run_whose_settings_give_the_main_metric_records_none(tmp_path: Path) -> None:
    simulated(tmp_path / "run", rounds=1, clients=2)
    with RecordedRun(tmp_path / "run") as run:
        assert run.main_metric == MainMetric("accuracy", higher_is_better=True)
        assert run.database.meta(MAIN_METRIC) is None


def test_the_main_metric_of_the_last_server_replaces_an_earlier_one(tmp_path: Path) -> None:
    simulated(tmp_path / "run", **APP)
    with RecordedRun(tmp_path / "run") as run:
        settings = run.settings
    database = Database(tmp_path / "run" / "run.db")
    record(database, settings, MainMetric("loss", higher_is_better=False))
    assert main_metric(database, settings) == MainMetric("loss", higher_is_better=False)
    database.close()
