"""Run directories, client directories, configuration files and metrics of version 0.1 still work."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from support.archives import open_archive
from support.processes import Process
from support.running import RunningServer
from support.scrape import families, get
from unstale.cli import main
from unstale.config import Settings
from unstale.config.load import Given, load
from unstale.journal.database import BOOT, Database
from unstale.journal.disk import boot

HERE = Path(__file__).parent
OUTBOX_TASKS = {1: 11, 2: 15}  # by client: 1-3.update and 2-4.update
DIGEST_6 = "36775d95d45f50ea0e795038042805c7bcd59e4537167a601808abf33133d1a5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_archive(HERE / "run-and-clients.tar.xz") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def rows(run: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(run / "run.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def settings_of(run: Path) -> Settings:
    options = {"run.directory": str(run), "server.address": "tcp://127.0.0.1:0", "server.http_address": "127.0.0.1:0"}
    return load(HERE / "own.yaml", options={key: Given(value=value, origin="test") for key, value in options.items()})


@pytest.mark.network
@pytest.mark.slow
def test_a_killed_run_resumes_with_its_clients_and_their_outboxes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    assert rows(run, "SELECT version, digest FROM rounds ORDER BY version DESC LIMIT 1") == [(6, DIGEST_6)]
    with sqlite3.connect(run / "run.db") as connection:
        connection.execute("DELETE FROM meta WHERE key = 'marks'")  # inodes, which an archive does not store
    connection.close()
    database = Database(run / "run.db")
    database.set_meta({BOOT: boot()})  # the machine has not rebooted since
    database.close()
    with RunningServer(settings_of(run)) as server:
        clients = [
            Process(
                *("client", "--config", str(HERE / "own.yaml"), "--client.server", server.address),
                *("--client.first", str(client_id), "--client.directory", str(folder / f"client-{client_id}")),
            )
            for client_id in range(3)
        ]
        for client in clients:
            with client:
                assert client.end() == 0, client.errors()
    assert rows(run, "SELECT digest FROM rounds WHERE version = 6") == [(DIGEST_6,)]
    assert rows(run, "SELECT max(version) FROM rounds") == [(12,)]
    accepted = set(rows(run, "SELECT client_id, task_id FROM updates WHERE reason IS NULL"))
    assert set(OUTBOX_TASKS.items()) <= accepted
    assert main.run(["verify", str(run)]) == 0
    assert main.run(["replay", str(run)]) == 0
    assert "12 rounds, 24 updates, all digests equal" in capsys.readouterr().out


def test_a_killed_run_is_explained_and_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", str(folder / "run"), "6"]) == 0
    assert DIGEST_6[:12] in capsys.readouterr().out
    assert main.run(["report", str(folder / "run"), "--out", str(folder / "report.html")]) == 0


@pytest.mark.network
def test_every_metric_is_exported(folder: Path) -> None:
    with RunningServer(settings_of(folder / "run")) as server:
        text = get(f"{server.http}/metrics").text
        labels = {
            sample.name: set(sample.labels) for family in families(server.http).values() for sample in family.samples
        }
    for line in (HERE / "metrics.txt").read_text().splitlines():
        name, kind, *expected = line.split()
        assert f"# TYPE {name} {kind}\n" in text
        for series in {name, f"{name}_bucket"} & labels.keys():
            assert labels[series] == set(expected), series


def with_later_defaults(settings: Settings) -> Settings:
    """Settings whose values that were defaults are the later ones: `auto` is `host` without CUDA."""
    assert settings.policy.memory == "host"
    return settings.model_copy(update={"policy": settings.policy.model_copy(update={"memory": "auto"})})


def test_the_configuration_file_gives_the_stored_settings(folder: Path) -> None:
    stored = load(folder / "run" / "config.yaml")
    assert load(HERE / "own.yaml") == with_later_defaults(stored)


def test_the_written_file_gives_the_defaults() -> None:
    assert with_later_defaults(load(HERE / "default.yaml")) == Settings()
