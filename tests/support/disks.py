"""A small disk."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size_bytes: int = 1024 * 1024) -> Iterator[Path]:
    """A separate file system of this size; skips the test where mounting is not permitted."""
    path.mkdir()
    if shutil.which("mount") is None or not _system(
        "mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "disk", str(path)
    ):
        pytest.skip("this user may not mount a small disk")
    try:
        yield path
    finally:
        assert _system("umount", "--lazy", str(path))


def fill(disk: Path) -> Path:
    """Use all the free space."""
    path = disk / "other"
    with path.open("wb", buffering=0) as opened, suppress(OSError):
        while True:
            opened.write(bytes(4096))
    return path


def make_read_only(disk: Path) -> None:
    """Make the file system read-only."""
    assert _system("mount", "-o", "remount,ro", str(disk))


def _system(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
