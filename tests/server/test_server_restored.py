"""A run directory that was put back from an older copy: the run gets another id, and nothing newer is deleted."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.running import RunningServer, small
from support.wire import RawClient
from unstale.cli import main
from unstale.config import Settings
from unstale.errors import UserError
from unstale.journal.database import Database
from unstale.journal.restore import restore
from unstale.journal.verify import verify

pytestmark = pytest.mark.network

D = 650
ONES = np.ones(D, dtype="<f4")


def settings_in(folder: Path, **run: Any) -> Settings:
    """A run of one client whose every update makes a version and every second version a checkpoint."""
    section = {"directory": str(folder), "free_bytes_min": 0, "checkpoint_every": 2, **run}
    return small(clients=1, rounds=1000, trigger={"name": "async"}, run=section)


def versions_more(settings: Settings, count: int) -> str:
    """Serve until `count` more versions are made; the run's id."""
    with RunningServer(settings) as server, RawClient(server.address, 0) as client:
        run_id = client.join().run_id
        for _ in range(count):
            task, _ = client.task()
            assert client.answer(task, ONES).outcome == "accepted"
        client.task()
    return run_id


def killed_after(settings: Settings, count: int, copy: Path) -> str:
    """A copy of the files of a server that is alive, as a kill leaves them; the run's id."""
    with RunningServer(settings) as server, RawClient(server.address, 0) as client:
        run_id = client.join().run_id
        for _ in range(count):
            task, _ = client.task()
            assert client.answer(task, ONES).outcome == "accepted"
        client.task()
        shutil.copytree(settings.run.directory, copy)
    return run_id


def version_in(folder: Path) -> int:
    database = Database(folder / "run.db", read_only=True)
    try:
        return database.last_version()
    finally:
        database.close()


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_is_stopped_moved_and_started_keeps_its_id(tmp_path: Path) -> None:
    run_id = versions_more(settings_in(tmp_path / "a"), 3)
    again = versions_more(settings_in(tmp_path / "a"), 1)
    (tmp_path / "a").rename(tmp_path / "b")
    moved = versions_more(settings_in(tmp_path / "b"), 1)
    assert again == moved == run_id


def test_a_copy_gets_another_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_id = versions_more(settings_in(tmp_path / "run"), 3)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    versions_more(settings_in(tmp_path / "run"), 3)
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(tmp_path / "copy", tmp_path / "run")
    restored = versions_more(settings_in(tmp_path / "run"), 1)
    assert restored != run_id
    assert "is not as its last server left it (its files are copies)" in caplog.text
    again = versions_more(settings_in(tmp_path / "run"), 1)
    assert again == restored


def test_an_older_copy_over_the_newer_files_is_refused_and_deletes_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_id = versions_more(settings_in(run), 3)
    shutil.copytree(run, tmp_path / "copy")
    versions_more(settings_in(run), 4)
    shutil.copytree(tmp_path / "copy", run, dirs_exist_ok=True)  # into the same files, whose inodes stay
    before = names_in(run)
    for _ in range(2):
        with pytest.raises(UserError, match=r"run\.db is older than the files beside it.*unstale restore"):
            RunningServer(settings_in(run))
    assert names_in(run) == before
    found = restore(run)
    assert found.former_run_id == run_id != found.run_id
    assert found.version == 3
    assert {path.name for path in found.set_aside} >= {"00000006.safetensors"}
    assert all(path.exists() for path in found.set_aside)
    restored = versions_more(settings_in(run), 2)
    assert restored == found.run_id
    assert version_in(run) == 5


def test_a_lock_whose_time_was_set_costs_the_run_its_id_and_no_update(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_id = versions_more(settings_in(run), 3)
    for path in run.rglob("*"):
        if path.name != "lock":
            os.utime(path, (0, 0))
    unchanged = versions_more(settings_in(run), 1)
    os.utime(run / "lock", (0, 0))
    touched = versions_more(settings_in(run), 1)
    assert unchanged == run_id != touched
    assert version_in(run) == 5


def test_an_older_checkpoint_under_the_name_of_the_newest_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    run_id = versions_more(settings_in(run), 5)
    older, newest = sorted((run / "checkpoints").iterdir())
    shutil.copyfile(older, newest)
    (damage,) = verify(run).damages
    assert f"checkpoint {newest} covers event" in damage
    again = versions_more(settings_in(run), 1)
    assert again == run_id
    assert "resuming from an older checkpoint" in caplog.text
    assert version_in(run) == 6


def test_a_database_alone_from_an_older_copy_gets_another_id(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = settings_in(run, checkpoint_every=1000)
    run_id = versions_more(settings, 3)
    shutil.copytree(run, tmp_path / "copy")
    versions_more(settings, 1)
    for name in ("run.db", "run.db-newest"):
        shutil.copyfile(tmp_path / "copy" / name, run / name)
    for path in (run / "checkpoints").iterdir():
        if not (tmp_path / "copy" / "checkpoints" / path.name).exists():
            path.unlink()
    restored = versions_more(settings, 1)
    assert restored != run_id


def test_without_the_number_of_the_newest_event_the_run_gets_another_id(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_id = versions_more(settings_in(run), 3)
    (run / "run.db-newest").unlink()
    restored = versions_more(settings_in(run), 1)
    assert restored != run_id
    assert version_in(run) == 4


def test_a_run_without_its_log_is_refused_and_keeps_its_updates(tmp_path: Path) -> None:
    run = tmp_path / "killed"
    killed_after(settings_in(tmp_path / "run"), 5, run)
    for name in ("run.db-wal", "run.db-shm", "run.db-newest"):
        (run / name).unlink(missing_ok=True)
    before = names_in(run)
    for _ in range(2):
        with pytest.raises(UserError, match=r"run\.db is older than the files beside it.*ends with nothing"):
            RunningServer(settings_in(run))
    assert names_in(run) == before
    found = restore(run)
    assert found.version == 0
    assert {path.suffix for path in found.set_aside} == {".rows", ".safetensors"}
    restored = versions_more(settings_in(run), 2)
    assert restored == found.run_id
    assert version_in(run) == 2


def test_a_restore_says_how_much_of_a_damaged_log_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "killed"
    killed_after(settings_in(tmp_path / "run", checkpoint_every=1000), 5, run)
    log = run / "run.db-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size * 2 // 3])
    with pytest.raises(UserError, match=r"run\.db-wal is damaged or missing.*unstale restore"):
        RunningServer(settings_in(run))
    assert main.run(["restore", str(run)]) == 0
    out = capsys.readouterr().out
    assert "later events are lost" in out
    assert "run id" in out
    versions_more(settings_in(run, checkpoint_every=1000), 1)


def test_a_restore_of_a_damaged_copy_is_refused_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run_id = versions_more(settings_in(run), 3)
    (segment,) = (run / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    assert main.run(["restore", str(run)]) == 2
    assert "00000001.rows is damaged" in capsys.readouterr().err
    data[-1] ^= 1
    segment.write_bytes(data)
    again = versions_more(settings_in(run), 1)
    assert again == run_id


def test_a_restore_while_a_server_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningServer(settings_in(tmp_path / "run")):
        assert main.run(["restore", str(tmp_path / "run")]) == 2
    assert "is in use by another process" in capsys.readouterr().err
