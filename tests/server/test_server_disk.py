"""A disk short of space: omitted writes, reports, and a run that resumes by itself."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from support.disks import fill, small_disk
from support.running import RunningServer, small, until
from support.scrape import get, sample
from support.wire import RawClient, update_of
from unstale.config import Settings
from unstale_proto.errors import Reason
from unstale_proto.messages import Error, Task

pytestmark = pytest.mark.network

D = 650
ONES = np.ones(D, dtype="<f4")


def alarm_of(server: RunningServer) -> str | None:
    state = json.loads(get(f"{server.http}/status.json").text)["state"]
    alarm: str | None = state["alarm"]
    return alarm


def lines_with(text: str, caplog: pytest.LogCaptureFixture) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


# --- updates ---


def refused(client: RawClient, task: Task) -> None:
    client.say(update_of(task), [ONES.tobytes()])
    answer = client.hear(Error)
    assert (answer.reason, answer.task_id) == (Reason.NOT_STORED, task.task_id)


def test_log_health_and_page_report_a_full_disk_and_the_run_resumes_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with small_disk(tmp_path / "disk") as disk:
        settings = small(clients=1, rounds=1000, run={"directory": str(disk / "run"), "free_bytes_min": 128 * 1024})
        with RunningServer(settings) as server, RawClient(server.address, 0) as client:
            client.join()
            task, _ = client.task()
            until(lambda: server.progress, "version 0 is measured")
            assert alarm_of(server) is None
            other = fill(disk)
            for _ in range(3):
                refused(client, task)
            assert lines_with("updates are refused", caplog) == 1
            until(lambda: alarm_of(server), "the page says so")
            said = alarm_of(server)
            assert said is not None
            assert said.startswith(f"updates are refused: {disk / 'run'} has less than")
            assert get(f"{server.http}/healthz") == (200, f"{said}\n")
            assert get(f"{server.http}/readyz") == (503, f"{said}\n")
            other.unlink()
            until(lambda: alarm_of(server) is None, "the page says no more")
            assert get(f"{server.http}/readyz") == (200, "ok\n")
            assert client.answer(task, ONES).outcome == "accepted"
            assert lines_with("there is room again", caplog) == 1
            task, _ = client.task()
            assert client.answer(task, ONES).outcome == "accepted"


# --- checkpoints ---


def with_large_checkpoints(folder: Path) -> Settings:
    """A run whose checkpoint holds the last update of each of 180 clients, 0.5 MB, and whose updates take 2.6 kB."""
    return small(
        clients=180,
        min_clients=1,
        rounds=1000,
        policy={"name": "mifa"},
        run={"directory": str(folder), "free_bytes_min": 0, "checkpoint_every": 2},
    )


def leave(other: Path, room_bytes: int) -> None:
    os.truncate(other, other.stat().st_size - room_bytes)


def make_version(client: RawClient) -> None:
    task, _ = client.task()
    assert client.answer(task, ONES).outcome == "accepted"


def test_a_checkpoint_that_does_not_fit_is_left_out_and_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with small_disk(tmp_path / "disk", 8 * 1024 * 1024) as disk:
        folder = disk / "run"
        settings = with_large_checkpoints(folder)
        with RunningServer(settings) as server, RawClient(server.address, 0) as client:
            client.join()
            make_version(client)
            until(lambda: server.progress, "version 0 is measured")
            until(lambda: server.state()["version"] == 1, "the round is stored")  # for a moment there is no room
            other = fill(disk)
            leave(other, 400 * 1024)
            for _ in range(4):  # versions 2 and 4 are to be written
                make_version(client)
            until(
                lambda: sample(server.http, "unstale_checkpoints_left_out_total") == 2, "two checkpoints are left out"
            )
            assert lines_with("is left out", caplog) == 1
            assert list((folder / "checkpoints").iterdir()) == []
            until(lambda: alarm_of(server), "the page says so")
            said = alarm_of(server)
            assert said is not None
            assert said.startswith("no checkpoint is written: cannot write")
            assert get(f"{server.http}/readyz").status == 200  # updates are accepted
            other.unlink()
            make_version(client)  # the next one, which was not due
            until(lambda: alarm_of(server) is None, "a checkpoint is written")
            assert lines_with("there is room again: the checkpoint of version", caplog) == 1
        with RunningServer(settings) as second:
            assert second.state()["version"] == 6
