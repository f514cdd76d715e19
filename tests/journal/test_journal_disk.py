"""A disk that is full, read-only or failing: one sentence each, and nothing that was stored is harmed."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.disks import fill, make_read_only, small_disk
from support.journal import accepted, event, turn
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.journal import checkpoints
from unstale.journal.database import Database
from unstale.journal.disk import free_bytes
from unstale.journal.rows import Batch
from unstale.journal.rundir import RunDirectory
from unstale.journal.segments import Segments
from unstale_client.disk import NoRoomError, trouble

SIZE = 1024**2


@pytest.mark.parametrize(
    ("number", "kind", "sentence"),
    [
        (errno.ENOSPC, NoRoomError, "cannot write FILE: the disk is full; make room"),
        (errno.EDQUOT, NoRoomError, "cannot write FILE: the disk quota is used up; make room"),
        (errno.EFBIG, NoRoomError, "cannot write FILE: the file may not grow any further; raise the limit of .*"),
        (errno.EROFS, UserError, "cannot write FILE: the file system is read-only; name a folder where you may write"),
        (errno.EACCES, UserError, "cannot write FILE: permission denied; name a folder where you may write"),
        (errno.EIO, UserError, "cannot write FILE: the disk reports an error; its file system needs a check"),
        (errno.ENAMETOOLONG, UserError, "cannot write FILE: file name too long"),
    ],
)  # fmt: skip
def test_errors_of_the_system_are_reported_in_one_sentence(number: int, kind: type[UserError], sentence: str) -> None:
    error = trouble("write", Path("FILE"), OSError(number, os.strerror(number)))
    assert type(error) is kind
    with pytest.raises(kind, match=f"^{sentence}$"):
        raise error


def test_free_space_is_that_of_the_file_system(tmp_path: Path) -> None:
    assert 0 < free_bytes(tmp_path) <= shutil.disk_usage(tmp_path).total
    with pytest.raises(UserError, match=r"cannot measure .*absent: no such file"):
        free_bytes(tmp_path / "absent")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def test_a_full_disk_refuses_a_row_and_stores_it_when_there_is_space(disk: Path) -> None:
    segments = Segments(disk)
    first = segments.append(memoryview(b"1" * 5000))
    other = fill(disk)
    assert free_bytes(disk) == 0
    with pytest.raises(NoRoomError, match=r"00000001\.rows: the disk is full; make room"):
        segments.append(memoryview(bytes(9000)))
    assert (disk / "00000001.rows").stat().st_size == first.offset + first.size_bytes
    other.unlink()
    second = segments.append(memoryview(b"2" * 9000))
    segments.sync()
    into = bytearray(9000)
    segments.read(second, memoryview(into))
    assert into == b"2" * 9000
    segments.close()


def test_a_full_disk_stores_whole_turns_or_nothing_and_resumes_when_there_is_space(disk: Path) -> None:
    database = Database(disk / "run.db")
    database.store(turn(1, 1), sync=True)
    other = fill(disk)
    large = Batch(events=[event(2, text="x" * 100_000)], updates=[accepted(3, 2)])
    with pytest.raises(NoRoomError, match=r"cannot write .*run\.db: the disk is full; make room"):
        database.store(large, sync=False)
    assert database.last_seq() == 1
    other.unlink()
    database.store(large, sync=True)
    database.close()
    database = Database(disk / "run.db")
    assert [row.seq for row in database.events_after(0)] == [1, 2, 3]
    database.close()


def test_a_full_disk_keeps_the_older_checkpoint(disk: Path) -> None:
    old = checkpoints.write(disk, 1, {"a": torch.ones(10)}, {}).path
    fill(disk)
    with pytest.raises(NoRoomError, match=r"00000002\.safetensors: the disk is full"):
        checkpoints.write(disk, 2, {"a": torch.ones(10_000)}, {})
    assert sorted(path.name for path in disk.iterdir()) == [old.name, "other"]
    state, _ = checkpoints.read(old)
    assert state["a"].tolist() == [1.0] * 10


def test_a_full_disk_begins_no_run(disk: Path) -> None:
    fill(disk)
    with pytest.raises(NoRoomError, match="the disk is full"):
        RunDirectory.open(disk / "run", Settings())
    with pytest.raises(NoRoomError, match="the disk is full"):
        Database(disk / "run.db")


def test_a_disk_that_is_read_only_is_looked_at_and_not_written(disk: Path) -> None:
    directory = RunDirectory.open(disk / "run", Settings())
    database = Database(directory.database)
    database.store(turn(1, 1), sync=True)
    database.close()
    checkpoint = checkpoints.write(directory.checkpoints, 1, {}, {})
    directory.close()
    make_read_only(disk)

    looked = RunDirectory.look(disk / "run")
    database = Database(looked.database, read_only=True)
    assert [row.seq for row in database.events_after(0)] == [1]
    database.close()
    assert checkpoints.read(checkpoint.path) == ({}, {})
    with pytest.raises(UserError, match="the file system is read-only; name a folder where you may write"):
        RunDirectory.open(disk / "run", Settings())
    with pytest.raises(UserError, match="the file system is read-only"):
        Segments(looked.segments).append(memoryview(b"1"))
    with pytest.raises(UserError, match=r"cannot (open|write) .*run\.db"):
        Database(looked.database).store(turn(2, 2), sync=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_where_one_may_not_write_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="permission denied; name a folder where you may write"):
        RunDirectory.open(tmp_path / "run", Settings())
    tmp_path.chmod(0o700)
