"""Rows that a thread of its own writes: there when they are waited for, and no memory is given back before."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.journal import accepted
from unstale.config.settings import RunSettings, Settings
from unstale.coordinator import actions, events
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.errors import UserError
from unstale.journal.journal import Journal
from unstale.journal.recorder import IncomingUpdate, Recorder
from unstale.journal.rundir import RunDirectory
from unstale.journal.segments import Segments
from unstale.learner.updates import StagedUpdate
from unstale.server import background_writer as module
from unstale.server.background_writer import LARGE_BYTES, BackgroundWriter
from unstale.server.run import open_journal
from unstale.settings.learning import SelectorSettings, TriggerSettings
from unstale_client.disk import NoRoomError


@pytest.fixture
def aside() -> Iterator[BackgroundWriter]:
    made = BackgroundWriter()
    yield made
    made.close()


def row(byte: int, size_bytes: int = LARGE_BYTES) -> memoryview:
    return memoryview(bytes([byte]) * size_bytes)


def test_rows_of_every_size_are_read_back_once_they_are_settled(tmp_path: Path, aside: BackgroundWriter) -> None:
    segments = Segments(tmp_path, segment_bytes=3 * LARGE_BYTES, writer=aside)
    sizes = [LARGE_BYTES, 10, 2 * LARGE_BYTES, LARGE_BYTES - 1, 5 * LARGE_BYTES, 1]
    rows = [row(number, size) for number, size in enumerate(sizes)]
    places = [segments.append(each) for each in rows]
    segments.settle()
    for place, each in zip(places, rows, strict=True):
        into = bytearray(place.size_bytes)
        segments.read(place, memoryview(into))
        assert into == each
    segments.close()


def test_rows_are_written_before_a_sync(
    tmp_path: Path, aside: BackgroundWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: sizes.append(os.fstat(file).st_size))
    segments = Segments(tmp_path, writer=aside)
    segments.append(row(1))
    segments.sync()
    assert sizes == [16 + LARGE_BYTES]
    segments.close()


def test_small_rows_take_no_thread(tmp_path: Path, aside: BackgroundWriter) -> None:
    before = threading.active_count()
    segments = Segments(tmp_path, writer=aside)
    segments.append(row(1, LARGE_BYTES - 1))
    assert threading.active_count() == before
    segments.append(row(1))
    assert threading.active_count() == before + 1
    segments.close()
    assert threading.active_count() == before


def test_a_failed_write_is_reported_once_to_the_waiting_caller(
    tmp_path: Path, aside: BackgroundWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    segments = Segments(tmp_path, writer=aside)
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_all", full)
        segments.append(row(1))
        segments.append(row(2))
        with pytest.raises(NoRoomError, match=r"cannot write .*: the disk is full; make room"):
            segments.settle()
    segments.settle()
    place = segments.append(row(3))
    segments.settle()
    into = bytearray(place.size_bytes)
    segments.read(place, memoryview(into))
    assert into == row(3)
    segments.close()


def test_a_turn_whose_rows_could_not_be_written_is_not_stored(
    tmp_path: Path, aside: BackgroundWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    run = RunSettings(directory=str(tmp_path / "run"))
    directory = RunDirectory.open(tmp_path / "run", Settings(run=run))
    journal = Journal(directory, run, clock=lambda: 0.0, writer=aside)
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_all", broken)
        journal.batch.updates.append(accepted(journal.next_seq(), 0, journal.append(row(1), 0)))
        with pytest.raises(UserError, match="the disk reports an error"):
            journal.commit()
    assert journal.database.last_seq() == 0
    journal.close()


def test_a_round_is_not_made_before_its_rows_are_written(
    tmp_path: Path, aside: BackgroundWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker releases the memory of its rows, which the next updates are written to."""
    written: list[int] = []
    may_write = threading.Event()

    def slow(_file: int, data: memoryview, _offset: int) -> None:
        assert may_write.wait(60)
        written.append(data[0])

    monkeypatch.setattr(module, "write_all", slow)
    run = RunSettings(directory=str(tmp_path / "run"))
    directory = RunDirectory.open(tmp_path / "run", Settings(run=run))
    journal = Journal(directory, run, clock=lambda: 0.0, writer=aside)
    coordinator = Coordinator(
        CoordinatorSettings(
            clients=2,
            rounds=5,
            trigger=TriggerSettings(name="buffered", k=2),
            selector=SelectorSettings(name="all"),
            seed=0,
            lease_s=10.0,
            evaluate_every=5,
            retry_s=1.0,
            min_clients=None,
        )
    )
    recorder = Recorder(coordinator, journal)
    tasks = [
        action
        for client_id in (0, 1)
        for action in recorder.handle(events.ClientJoined(client_id=client_id, at_s=0.0))
        if isinstance(action, actions.SendTask)
    ]
    assert len(tasks) == 2

    def arrives(handle: int) -> list[actions.Action]:
        task = tasks[handle]
        staged = StagedUpdate(
            client_id=task.client_id,
            task_id=task.task_id,
            base_version=task.version,
            num_examples=1,
            batch_examples=1,
            loss=1.0,
            local_rate=0.1,
        )
        event = events.UpdateArrived(
            client_id=task.client_id, task_id=task.task_id, base_version=0, handle=handle, at_s=1.0
        )
        return recorder.update(IncomingUpdate(event, staged, row(handle)))

    arrives(0)
    assert written == []  # and nothing waits for it
    threading.Timer(0.05, may_write.set).start()
    following = arrives(1)
    assert any(isinstance(action, actions.ApplyRound) for action in following)
    assert written == [0, 1]
    journal.close()


@pytest.mark.parametrize(("cores", "threads"), [(2, 0), (3, 1)])
def test_a_server_with_few_cores_writes_rows_in_the_thread_that_receives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    monkeypatch.setattr("unstale.server.run.cores", lambda: cores)
    journal = open_journal(Settings(run=RunSettings(directory=str(tmp_path / "run"))))
    assert journal is not None
    before = threading.active_count()
    journal.append(row(1), handle=0)
    assert threading.active_count() == before + threads
    journal.close()
