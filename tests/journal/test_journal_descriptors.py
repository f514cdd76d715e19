"""A file of the journal is opened once connections leave a descriptor for it."""

import errno
import os
from pathlib import Path

import pytest

from unstale_client import disk


def failing(times: int, code: int) -> "tuple[list[int], object]":
    calls: list[int] = []

    def take() -> int:
        calls.append(len(calls))
        if len(calls) <= times:
            raise OSError(code, os.strerror(code))
        return 7

    return calls, take


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_it_is_tried_again_while_there_is_no_descriptor(code: int) -> None:
    calls, take = failing(3, code)
    assert disk.when_free(take) == 7  # type: ignore[arg-type]
    assert len(calls) == 4


def test_the_error_is_reported_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "OPEN_S", 3 * disk.RETRY_S)
    calls, take = failing(100, errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        disk.when_free(take)  # type: ignore[arg-type]
    assert len(calls) == 4


def test_any_other_error_is_reported_at_once(tmp_path: Path) -> None:
    calls, take = failing(1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        disk.when_free(take)  # type: ignore[arg-type]
    assert len(calls) == 1
    with pytest.raises(FileNotFoundError):
        disk.open_file(tmp_path / "none", os.O_RDONLY)


def test_a_file_is_opened_and_its_descriptor_doubled(tmp_path: Path) -> None:
    file = disk.open_file(tmp_path / "new", os.O_RDWR | os.O_CREAT, 0o600)
    other = disk.duplicate(file)
    os.write(other, b"x")
    assert os.pread(file, 1, 0) == b"x"
    os.close(file)
    os.close(other)
