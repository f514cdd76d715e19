"""An interrupted server resumes its run, and a full disk refuses updates of clients.

Real kills are in tests/crash. Here a server is stopped, and another one resumes its directory.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.disks import fill, small_disk
from support.running import RunningServer, small
from support.scrape import sample
from support.wire import RawClient, update_of
from unstale.config import Settings
from unstale.errors import UserError
from unstale.journal import checkpoints, database, rounds
from unstale.journal.database import Database
from unstale.journal.journal import Journal
from unstale.journal.rounds import RecordedRounds
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Error, OwnEvaluation, Stop

pytestmark = pytest.mark.network

D = 650
ONES = np.ones(D, dtype="<f4")


def kept_in(folder: Path, **changes: Any) -> Settings:
    """A run of one client that makes a version of every two updates; free space is not checked unless a test does."""
    run = {"directory": str(folder / "run"), "free_bytes_min": 0, **changes.pop("run", {})}
    values = {"clients": 2, "rounds": 3, "trigger": {"name": "k-async", "k": 2}, **changes}
    return small(**values, run=run)


def checkpoints_of(folder: Path) -> list[int]:
    """Versions of the checkpoints that are stored."""
    found = Database(folder / "run" / "run.db", read_only=True)
    try:
        return [row.version for row in found.checkpoints()]
    finally:
        found.close()


def conserved(folder: Path) -> tuple[int, int, int, int]:
    found = Database(folder / "run" / "run.db", read_only=True)
    try:
        now = found.conservation()
        return now.received, now.aggregated, now.pending, now.rejected
    finally:
        found.close()


@contextmanager
def client(server: RunningServer, client_id: int, holding: tuple[int, ...] = ()) -> Iterator[RawClient]:
    with RawClient(server.address, client_id) as made:
        made.join(holding)
        yield made


@pytest.mark.parametrize("durability", ["normal", "full"])
def test_half_a_round_waits_for_the_next_server(tmp_path: Path, durability: str) -> None:
    settings = kept_in(tmp_path, run={"durability": durability})
    with RunningServer(settings) as first, client(first, 0) as a, client(first, 1) as b:
        task, begun_d = a.task()
        other, _ = b.task()
        assert a.answer(task, ONES).outcome == "accepted"
        before = first.state()
    assert conserved(tmp_path) == (1, 0, 1, 0)

    with RunningServer(settings) as second, client(second, 0) as a, client(second, 1, (other.task_id,)) as b:
        assert second.state() == {**before, "clients": second.state()["clients"]}
        assert a.answer(task, ONES).outcome == "duplicate"  # its ack may have been lost: the verdict is known
        assert b.answer(other, ONES).outcome == "accepted"
        following, model_d = a.task()
        assert following.version == 1
        assert np.array_equal(model_d, begun_d - np.float32(0.5))  # one step of 0.5 along the mean of ones
        following, _ = b.task()
        assert following.version == 1
    assert conserved(tmp_path) == (2, 2, 0, 0)


def test_a_resumed_server_restores_measurements_of_clients(tmp_path: Path) -> None:
    settings = kept_in(tmp_path, evaluate_clients_every=1)
    with RunningServer(settings) as first, client(first, 0) as a, client(first, 1) as b:
        for one in (a, b):
            task, _ = one.task()
            assert one.answer(task, ONES).outcome == "accepted"
        task, _ = a.task()
        assert (task.version, task.evaluate) == (1, True)
        own = OwnEvaluation(accuracy=0.25, loss=1.5, examples=8)
        assert a.answer(task, ONES, evaluation=own).outcome == "accepted"
    with RunningServer(settings) as second, client(second, 0), client(second, 1) as b:
        assert sample(second.http, "unstale_client_test_accuracy_ratio", statistic="mean") == 0.25
        task, _ = b.task()
        own = OwnEvaluation(accuracy=0.75, loss=0.5, examples=8)
        assert b.answer(task, ONES, evaluation=own).outcome == "accepted"
        assert sample(second.http, "unstale_client_test_accuracy_ratio", statistic="mean") == 0.5
    found = Database(tmp_path / "run" / "run.db", read_only=True)
    assert [(row.client_id, row.version, *row.metrics.values()) for row in found.own_evaluations()] == [
        (0, 1, 0.25, 1.5),
        (1, 1, 0.75, 0.5),
    ]
    found.close()


def test_a_task_of_a_dead_client_is_reissued_under_another_id(tmp_path: Path) -> None:
    settings = kept_in(tmp_path)
    with RunningServer(settings) as first, client(first, 0) as a, client(first, 1):
        lost, _ = a.task()
    with RunningServer(settings) as second, client(second, 0) as a:
        again, _ = a.task()
        assert again.task_id > lost.task_id
        assert a.answer(lost, ONES).reason is Reason.EXPIRED_TASK


def test_a_finished_run_is_reported_again_and_does_not_resume(tmp_path: Path) -> None:
    settings = kept_in(tmp_path, rounds=1, trigger={"name": "async"})
    with RunningServer(settings) as first, client(first, 0) as a, client(first, 1):
        task, _ = a.task()
        assert a.answer(task, ONES).outcome == "accepted"
        assert a.hear(Stop).reason == "finished"
        outcome = first.end()
    with RunningServer(settings) as second:
        again = second.end()
    assert (again.versions, again.model_digest) == (outcome.versions, outcome.model_digest)
    assert again.metrics == outcome.metrics
    assert again.updates["accepted"] == 1


def test_a_metric_of_the_clients_ends_a_resumed_run_which_stays_over(tmp_path: Path) -> None:
    settings = kept_in(tmp_path, rounds=9, trigger={"name": "async"}, run={"until": "mae < 0.5"})
    with RunningServer(settings) as first, client(first, 0) as a, client(first, 1):
        for mae in (0.75, 0.5):
            assert a.answer(a.task()[0], ONES, metrics={"mae": mae}).outcome == "accepted"
        assert a.task()[0].version == 2  # the run continues
    with RunningServer(settings) as second, client(second, 0) as a, client(second, 1):
        assert a.answer(a.task()[0], ONES, metrics={"mae": 0.25}).outcome == "accepted"
        outcome = second.end()
    assert (outcome.reason, outcome.versions) == ("reached", 3)
    with RunningServer(settings) as third:
        again = third.end()
    assert (again.reason, again.versions, again.model_digest) == ("reached", 3, outcome.model_digest)


def test_a_directory_is_one_servers_and_one_configurations(tmp_path: Path) -> None:
    settings = kept_in(tmp_path)
    with RunningServer(settings), pytest.raises(UserError, match=r"run is in use by another process"):
        RunningServer(settings)
    with pytest.raises(UserError, match=r"training\.batch_size"):
        RunningServer(kept_in(tmp_path, training={"name": "gradient", "learning_rate": 0.5, "batch_size": 9}))


def test_a_full_disk_refuses_an_update_and_its_client_keeps_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        settings = kept_in(disk, run={"free_bytes_min": 128 * 1024})
        with RunningServer(settings) as server, client(server, 0) as a, client(server, 1) as b:
            task, _ = a.task()
            b.task()
            beats = count()
            while not server.progress:  # version 0 is evaluated and stored before the disk is full
                a.hears_nothing_before(next(beats))
            a.hears_nothing_before(next(beats))
            other = fill(disk)
            before = server.state()
            a.say(update_of(task), [ONES.tobytes()])
            refused = a.hear(Error)
            assert (refused.reason, refused.task_id) == (Reason.NOT_STORED, task.task_id)
            assert server.state() == before
            other.unlink()
            assert a.answer(task, ONES).outcome == "accepted"


def test_a_disk_that_fills_up_while_it_is_written_ends_the_server_and_nothing_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journal, "has_room", lambda *_: True)  # as where a quota is not seen
    with small_disk(tmp_path / "disk") as disk:
        settings = kept_in(disk, rounds=10**6, trigger={"name": "async"})
        acknowledged = 0
        running = RunningServer(settings)
        with running, client(running, 0) as a, client(running, 1):
            task, _ = a.task()
            other = fill(disk)
            while running.is_alive:
                a.say(update_of(task), [ONES.tobytes()])
                if not a.socket.poll(1000):
                    continue  # it has died, or is about to
                assert a.hear(Ack).outcome == "accepted"
                acknowledged += 1
                task, _ = a.task()
            with pytest.raises(UserError, match=r"cannot write .*: the disk is full; make room"):
                running.end()
            running.forgive()
        other.unlink()
        assert conserved(disk)[0] == acknowledged
        with RunningServer(settings) as second, client(second, 0, (task.task_id,)) as a:
            assert a.answer(task, ONES).outcome == "accepted"


def test_rows_that_wait_on_disk_make_the_same_model_as_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, segments = [], []
    for name, most, mapped_bytes in (("memory", 2**30, 1), ("disk", 0, 2**30), ("large", 0, 1)):
        monkeypatch.setattr(rounds, "MAPPED_BYTES", mapped_bytes)
        settings = kept_in(tmp_path / name, rounds=2, run={"rows_memory_bytes_max": most})
        with RunningServer(settings) as first, client(first, 0) as a, client(first, 1) as b:
            task, _ = a.task()
            assert a.answer(task, ONES).outcome == "accepted"
            other, _ = b.task()
        with RunningServer(settings) as second, client(second, 0) as a, client(second, 1, (other.task_id,)) as b:
            assert b.answer(other, 3 * ONES).outcome == "accepted"
            task, model_d = a.task()
        assert task.version == 1
        models.append(model_d)
        (path,) = (tmp_path / name / "run" / "segments").iterdir()
        segments.append(path.read_bytes())
    for model_d, segment in zip(models[1:], segments[1:], strict=True):
        assert np.array_equal(model_d, models[0])
        assert segment == segments[0]


def as_it_is(folder: Path, copy: Path) -> None:
    """A copy of the run of a server that is alive."""
    shutil.copytree(folder / "run", copy / "run", ignore=shutil.ignore_patterns("lock", "*.part"))


def test_a_round_is_computed_again_from_rows_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = kept_in(tmp_path, run={"rows_memory_bytes_max": 0})
    with RunningServer(settings) as first, client(first, 0) as a, client(first, 1) as b:
        for one in (a, b):
            task, _ = one.task()
            assert one.answer(task, ONES).outcome == "accepted"
        _, model_d = a.task()
        as_it_is(tmp_path, tmp_path / "copy")
    monkeypatch.delattr(RecordedRounds, "matrix")  # all rows in memory
    again = kept_in(tmp_path / "copy", run={"rows_memory_bytes_max": 0})
    with RunningServer(again) as second, client(second, 0) as a:
        task, again_d = a.task()
    assert task.version == 1
    assert np.array_equal(model_d, again_d)


def cut_last_row(copy: Path) -> None:
    """The rows that were not on the disk yet."""
    (path,) = (copy / "run" / "segments").iterdir()
    with path.open("r+b") as opened:
        opened.truncate(path.stat().st_size - 10)


def after_three_versions(folder: Path, copy: Path, *, durability: str = "normal") -> tuple[Settings, str]:
    """Settings of a run without a checkpoint that stopped behind its third version, and its id."""
    run = {"checkpoint_every": 1000, "durability": durability}
    values = {"rounds": 100, "trigger": {"name": "async"}}
    with (
        RunningServer(kept_in(folder, run=run, **values)) as server,
        client(server, 1),
        RawClient(server.address, 0) as a,
    ):
        run_id = a.join().run_id
        for _ in range(3):
            task, _ = a.task()
            assert a.answer(task, ONES).outcome == "accepted"
        a.task()
        as_it_is(folder, copy)
    return kept_in(copy, run=run, **values), run_id


def test_rows_lost_in_a_power_failure_are_dropped_and_the_run_resumes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, run_id = after_three_versions(tmp_path / "life", tmp_path / "after")
    cut_last_row(tmp_path / "after")
    monkeypatch.setattr(database, "boot", lambda: "the next start of the machine")
    with RunningServer(settings) as server, RawClient(server.address, 0) as a:
        assert a.join().run_id != run_id
        task, _ = a.task()
        assert task.version == 2
        assert a.answer(task, ONES).outcome == "accepted"
    assert "the machine stopped while the server was running" in caplog.text
    assert "2 later ones are known to be lost" in caplog.text
    assert conserved(tmp_path / "after") == (3, 3, 0, 0)


def test_a_missing_row_that_had_reached_the_disk_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, _ = after_three_versions(tmp_path / "life", tmp_path / "after", durability="full")
    cut_last_row(tmp_path / "after")
    monkeypatch.setattr(database, "boot", lambda: "the next start of the machine")
    with pytest.raises(UserError, match=r"00000001\.rows ends at byte .*, expected at least"):
        RunningServer(settings)


def test_on_a_machine_that_did_not_stop_a_missing_row_is_damage(tmp_path: Path) -> None:
    settings, _ = after_three_versions(tmp_path / "life", tmp_path / "after")
    cut_last_row(tmp_path / "after")
    with pytest.raises(UserError, match=r"00000001\.rows ends at byte"):
        RunningServer(settings)


def test_a_damaged_checkpoint_does_not_count_as_a_stored_one(tmp_path: Path) -> None:
    settings = kept_in(tmp_path, run={"checkpoint_every": 1}, rounds=100, trigger={"name": "async"})

    def versions_more(wanted: int) -> None:
        with RunningServer(settings) as server, client(server, 1), client(server, 0) as a:
            for _ in range(wanted):
                task, _ = a.task()
                assert a.answer(task, ONES).outcome == "accepted"
            a.task()

    versions_more(3)
    newest, older = checkpoints_of(tmp_path)[:2]
    (damaged,) = (tmp_path / "run" / "checkpoints").glob(f"*{newest}.safetensors")
    damaged.write_bytes(b"nothing")
    versions_more(1)
    kept = checkpoints_of(tmp_path)
    assert kept[:2] == [newest + 1, older]
    for version in kept:
        (path,) = (tmp_path / "run" / "checkpoints").glob(f"*{version}.safetensors")
        checkpoints.read(path)
