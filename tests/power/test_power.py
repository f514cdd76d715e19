"""No acknowledged update is lost in a power failure, as far as the durability of the run promises it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from power.attempt import Report, attempt
from power.disk import VolatileDisk
from unstale.config.settings import RunSettings
from unstale.journal.segments import Segments
from unstale.seeds import Stream, stream
from unstale_client.disk import DamagedError

FAILURES = 50  # in each of four tests, so that processes share them


def many(first: int, durability: str, failures: int = FAILURES) -> Report:
    """The sum over seeds from `first` on, until the power has failed so often."""
    total, seed = Report(), first
    while total.failures < failures:
        total += attempt(seed, durability)  # type: ignore[arg-type]
        seed += 1
    return total


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1000, 2000, 3000])
def test_full_durability_loses_nothing(first: int) -> None:
    total = many(first, "full")
    assert (total.lost, total.unreported, total.unfinished, total.false_alarms) == (0, 0, 0, 0), total
    assert total.seen["acknowledged"] > 1000
    assert total.seen["failures within an operation"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1000, 2000, 3000])
def test_normal_durability_loses_at_most_its_bound_and_reports_every_loss(first: int) -> None:
    total = many(first, "normal")
    assert total.oldest_s <= RunSettings().sync_every_s, total
    assert (total.unreported, total.unfinished, total.false_alarms) == (0, 0, 0), total
    assert total.seen["failures with a loss"] > 5


@pytest.mark.slow
def test_rows_that_are_acknowledged_before_they_are_synced_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segments, "sync", Segments.settle)
    with pytest.raises(DamagedError):
        many(0, "full")


def test_synced_bytes_survive_and_others_may_not(tmp_path: Path) -> None:
    """Byte by byte: 3 pages of 1s are synced, then all is overwritten by 2s and grows by a page."""
    disk_folder = tmp_path / "disk"
    disk_folder.mkdir()
    path = disk_folder / "file"
    path.write_bytes(b"\1" * 3 * 4096)
    disk = VolatileDisk(disk_folder)
    path.write_bytes(b"\2" * 4 * 4096)
    rng = stream(0, Stream.TOXICS, 1, 2)
    seen = set()
    for number in range(50):
        disk.fail(rng, tmp_path / str(number))
        image = (tmp_path / str(number) / "file").read_bytes()
        assert 3 * 4096 <= len(image) <= 4 * 4096
        assert set(image[: 3 * 4096]) <= {1, 2}
        assert set(image[3 * 4096 :]) <= {0, 2}
        seen.add(image)
    assert b"\1" * 3 * 4096 in seen
    assert b"\2" * 4 * 4096 in seen
    assert len(seen) > 10


def _nothing(disk: VolatileDisk, folder: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("sync", "names"),
    [
        (_nothing, {frozenset(), frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"})}),
        (VolatileDisk.sync_folder, {frozenset({"a", "b"})}),
    ],
)
def test_a_new_file_is_there_after_its_folder_is_synced(
    tmp_path: Path, sync: Callable[[VolatileDisk, Path], None], names: set[frozenset[str]]
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = VolatileDisk(folder)
    for name in "ab":
        (folder / name).write_bytes(b"1")
        disk.sync_file(folder / name)
    sync(disk, folder)
    rng = stream(0, Stream.TOXICS, 3, 2)
    seen = set()
    for number in range(60):
        disk.fail(rng, tmp_path / str(number))
        seen.add(frozenset(path.name for path in (tmp_path / str(number)).iterdir()))
    assert seen == names
