"""Segments: an appended row is read back bit for bit or reported as damaged, whatever happens to the files."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unstale.errors import UserError
from unstale.journal import segments as module
from unstale.journal.rows import Location
from unstale.journal.segments import HEADER, Segments
from unstale_client.disk import DamagedError, NoRoomError

START = len(HEADER)


def append(segments: Segments, data: bytes) -> Location:
    return segments.append(memoryview(data))


def read(segments: Segments, place: Location) -> bytes:
    into = bytearray(place.size_bytes)
    segments.read(place, memoryview(into))
    return bytes(into)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_rows_lie_behind_the_header_one_after_the_other(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    places = [append(segments, b"abcd"), append(segments, b"efg")]
    assert [(place.segment, place.offset, place.size_bytes) for place in places] == [(1, START, 4), (1, START + 4, 3)]
    segments.close()
    assert (tmp_path / "00000001.rows").read_bytes() == HEADER + b"abcdefg"


def test_rows_of_floats_are_written_as_they_lie(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    place = segments.append(memoryview(bytearray(8)).cast("f"))
    into = memoryview(bytearray(b"x" * 8)).cast("f")
    segments.read(place, into)
    assert into.tolist() == [0.0, 0.0]
    segments.close()


def test_a_segment_ends_before_it_grows_past_its_size_and_a_larger_row_has_its_own(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=START + 10)
    sizes = [6, 4, 1, 50, 2]  # 6 + 4 fill the first; 50 fits nowhere; 2 fits behind nothing of 50
    rows = [bytes([size]) * size for size in sizes]
    places = [append(segments, row) for row in rows]
    assert [place.segment for place in places] == [1, 1, 2, 3, 4]
    assert [read(segments, place) for place in places] == rows
    segments.close()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20),
    segment_bytes=st.integers(1, 90),
    committed=st.integers(0, 20),
)
def test_after_a_cut_committed_rows_are_readable_and_appending_continues(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], segment_bytes: int, committed: int
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    segments = Segments(folder, segment_bytes=segment_bytes)
    places = [append(segments, row) for row in rows]
    segments.close()
    places, rows = places[:committed], rows[:committed]
    end = {place.segment: place.offset + place.size_bytes for place in places}
    segments = Segments(folder, segment_bytes=segment_bytes)
    segments.cut(end)
    assert size_of(folder) == sum(end.values())
    places.append(append(segments, b"new"))
    assert [read(segments, place) for place in places] == [*rows, b"new"]
    segments.close()


def test_without_a_cut_nothing_is_appended_to_what_was_there(tmp_path: Path) -> None:
    first = Segments(tmp_path)
    append(first, b"old")
    first.close()
    second = Segments(tmp_path)
    assert append(second, b"new").segment == 2
    second.close()


@pytest.mark.parametrize("size", range(START + 8))
def test_a_segment_that_was_cut_anywhere_is_found(tmp_path: Path, size: int) -> None:
    segments = Segments(tmp_path)
    place = append(segments, b"12345678")
    segments.close()
    path = tmp_path / "00000001.rows"
    os.truncate(path, size)
    with pytest.raises(DamagedError, match=r"00000001\.rows"):
        read(segments, place)
    with pytest.raises(DamagedError, match=f"ends at byte {size}, expected at least {START + 8} bytes"):
        Segments(tmp_path).cut({1: START + 8})


@pytest.mark.parametrize("place_of_bit", range(8 * (START + 5)))
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, place_of_bit: int) -> None:
    segments = Segments(tmp_path)
    place = append(segments, b"12345")
    segments.close()
    path = tmp_path / "00000001.rows"
    data = bytearray(path.read_bytes())
    data[place_of_bit // 8] ^= 1 << place_of_bit % 8
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"00000001\.rows.*expected.*put the file back"):
        read(segments, place)


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    place = append(segments, b"1")
    segments.close()
    (tmp_path / "00000001.rows").unlink()
    with pytest.raises(DamagedError, match=r"00000001\.rows is missing"):
        read(segments, place)
    with pytest.raises(DamagedError, match=r"00000001\.rows is missing"):
        Segments(tmp_path).cut({1: START + 1})


def test_a_file_that_is_no_segment_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "00000001.rows").write_bytes(b"something else, and longer")
    with pytest.raises(DamagedError, match="begins with"):
        Segments(tmp_path).cut({1: 20})


def inodes(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.iterdir()}


def test_all_but_the_segment_that_is_written_may_be_retired(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=1)
    places = [append(segments, bytes(10)) for _ in range(4)]
    segments.retire(segments.others({2}))
    segments.delete_spares()
    assert names(tmp_path) == ["00000002.rows", "00000004.rows"]
    assert size_of(tmp_path) == 2 * (START + 10)
    assert read(segments, places[3]) == bytes(10)
    assert append(segments, b"x").segment == 5
    segments.close()


def test_a_retired_segment_is_overwritten_and_needs_no_new_space(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=1)
    for _ in range(3):
        append(segments, b"old" * 4)
    before = inodes(tmp_path)
    segments.retire({1, 2})
    places = [append(segments, b"new" * 4), append(segments, b"short")]
    assert [place.segment for place in places] == [4, 5]
    assert names(tmp_path) == ["00000003.rows", "00000004.rows", "00000005.rows"]
    assert inodes(tmp_path) == before
    assert [read(segments, place) for place in places] == [b"new" * 4, b"short"]
    append(segments, b"more")
    assert len(names(tmp_path)) == 4
    segments.close()


def test_what_a_file_held_before_is_no_row_of_its_next_segment(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=1)
    old = append(segments, b"old row")
    append(segments, b"1")
    segments.retire({1})
    new = append(segments, b"2")
    with pytest.raises(DamagedError, match=r"00000003\.rows is damaged between"):
        read(segments, Location(new.segment, old.offset, old.size_bytes, old.checksum))
    segments.close()
    after = Segments(tmp_path)  # a restarted server cuts off bytes that are no row
    after.cut({3: new.offset + new.size_bytes})
    assert (tmp_path / "00000003.rows").read_bytes() == HEADER + b"2"
    after.close()


def test_a_file_that_cannot_be_reused_is_dropped_and_the_next_row_starts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = Segments(tmp_path, segment_bytes=1)
    for _ in range(2):
        append(segments, b"old")
    segments.retire({1})
    with monkeypatch.context() as patched:
        patched.setattr(module.os, "open", failing(errno.EMFILE))
        with pytest.raises(UserError, match="too many open files"):
            append(segments, b"new")
    assert names(tmp_path) == ["00000002.rows"]
    place = append(segments, b"new")
    assert (place.segment, read(segments, place)) == (3, b"new")
    segments.close()


def test_a_segment_that_ends_the_run_leaves_no_spares(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=1)
    for _ in range(3):
        append(segments, b"1")
    segments.retire({1, 2})
    assert len(names(tmp_path)) == 3
    segments.close()
    assert names(tmp_path) == ["00000003.rows"]


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(
        st.one_of(st.binary(min_size=1, max_size=40), st.sampled_from(["retire", "come back", "give back"])),
        max_size=40,
    ),
    segment_bytes=st.integers(1, 90),
    window=st.integers(1, 6),
)
def test_the_newest_rows_are_there_whatever_was_written_over(
    tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | str], segment_bytes: int, window: int
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    segments = Segments(folder, segment_bytes=segment_bytes)
    rows: list[tuple[Location, bytes]] = []
    for step in steps:
        if isinstance(step, bytes):
            rows.append((append(segments, step), step))
        elif step == "retire":
            rows = rows[-window:]
            segments.retire(segments.others({place.segment for place, _ in rows}))
        elif step == "give back":
            segments.delete_spares()
        else:
            ends: dict[int, int] = {}
            for place, _ in rows:
                ends[place.segment] = place.offset + place.size_bytes
            segments = Segments(folder, segment_bytes=segment_bytes)  # the one before died
            segments.cut(ends)
        assert [read(segments, place) for place, _ in rows] == [row for _, row in rows]
    segments.close()


def short_writes(most: int, room: int) -> Callable[..., int]:
    """`os.pwrite` that writes a few bytes at a time, until the disk is full."""
    real, left = os.pwrite, [room]

    def pwrite(file: int, data: memoryview, offset: int) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(file, data[: min(most, left[0])], offset)
        left[0] -= written
        return written

    return pwrite


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", short_writes(3, 1000))
    segments = Segments(tmp_path)
    place = append(segments, b"0123456789")
    assert read(segments, place) == b"0123456789"
    segments.close()


@pytest.mark.parametrize("room", range(START, START + 10))
def test_a_row_that_does_not_fit_on_the_disk_leaves_the_segment_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    segments = Segments(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", short_writes(4, room))
        with pytest.raises(NoRoomError, match=r"cannot write .*00000001\.rows: the disk is full; make room"):
            append(segments, b"0123456789")
    assert (tmp_path / "00000001.rows").read_bytes() == HEADER
    place = append(segments, b"0123456789")
    assert (place.segment, place.offset, read(segments, place)) == (1, START, b"0123456789")
    segments.close()


def filled(segments: Segments, pieces: list[bytes]) -> memoryview:
    return segments.fill([memoryview(piece) for piece in pieces], sum(map(len, pieces)))


def test_a_row_in_pieces_is_the_row_that_append_writes(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    whole, in_pieces = Segments(tmp_path / "a"), Segments(tmp_path / "b")
    for segments in (whole, in_pieces):
        append(segments, b"first")
    expected = append(whole, b"0123456789")
    row = filled(in_pieces, [b"0123", b"", b"456789"])
    assert bytes(row) == b"0123456789"
    assert in_pieces.append(row) == expected
    whole.close()
    in_pieces.close()
    contents = {(tmp_path / name / "00000001.rows").read_bytes() for name in "ab"}
    assert contents == {HEADER + b"first0123456789"}


def test_a_row_in_pieces_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments(tmp_path)
    row = filled(segments, [b"0123456789"])
    monkeypatch.setattr(os, "pwrite", short_writes(4, 0))
    assert segments.append(row).offset == START
    monkeypatch.undo()
    segments.close()


def test_a_row_in_pieces_that_is_not_appended_is_overwritten(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    filled(segments, [b"0123456789"])
    second = filled(segments, [b"abc"])
    place = segments.append(second)
    assert (place.segment, place.offset, read(segments, place)) == (1, START, b"abc")
    filled(segments, [b"unused"])
    after = append(segments, b"defg")
    assert (after.segment, after.offset, read(segments, after)) == (1, START + 3, b"defg")
    segments.close()
    again = Segments(tmp_path)
    again.cut({1: START + 7})
    assert (tmp_path / "00000001.rows").read_bytes() == HEADER + b"abcdefg"
    again.close()


@pytest.mark.parametrize("room", range(START, START + 10))
def test_a_row_in_pieces_that_does_not_fit_on_the_disk_leaves_the_segment_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    segments = Segments(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", short_writes(4, room))
        with pytest.raises(NoRoomError, match=r"cannot write .*00000001\.rows: the disk is full; make room"):
            filled(segments, [b"01234", b"56789"])
    assert (tmp_path / "00000001.rows").read_bytes() == HEADER
    place = append(segments, b"0123456789")
    assert (place.segment, place.offset, read(segments, place)) == (1, START, b"0123456789")
    segments.close()


@pytest.mark.parametrize("room", range(START))
def test_a_segment_whose_header_does_not_fit_on_the_disk_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    segments = Segments(tmp_path)
    monkeypatch.setattr(os, "pwrite", short_writes(4, room))
    with pytest.raises(NoRoomError):
        append(segments, b"1")
    assert names(tmp_path) == []
    monkeypatch.undo()
    assert append(segments, b"1").segment == 1
    segments.close()


def watched_sync(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the files that are synced, in order."""
    synced: list[int] = []
    monkeypatch.setattr(module.os, "fdatasync", lambda file: synced.append(os.fstat(file).st_size))
    return synced


def test_every_file_that_was_written_since_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = watched_sync(monkeypatch)
    segments = Segments(tmp_path, segment_bytes=START + 4)
    for row in (b"1234", b"12", b"123"):
        append(segments, row)
    segments.sync()
    assert synced == [START + 4, START + 2, START + 3]
    segments.sync()
    assert len(synced) == 3
    segments.close()


def test_a_sync_in_the_background_is_waited_for_by_the_next_in_the_foreground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = watched_sync(monkeypatch)
    log = tmp_path / "log"
    log.write_bytes(b"12")
    segments = Segments(tmp_path)
    append(segments, b"1234")
    segments.sync_soon(log)
    segments.sync()
    assert synced == [START + 4, 2]
    append(segments, b"5")
    segments.close()
    assert synced == [START + 4, 2, START + 5]


def test_while_a_sync_is_under_way_another_is_left_to_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = Event(), Event()

    def fdatasync(file: int) -> None:
        begun.set()
        assert may_end.wait(60)

    monkeypatch.setattr(module.os, "fdatasync", fdatasync)
    log = tmp_path / "log"
    log.touch()
    segments = Segments(tmp_path)
    append(segments, b"1")
    segments.sync_soon(log)
    assert begun.wait(60)
    append(segments, b"2")
    segments.sync_soon(log)  # does not wait
    may_end.set()
    synced = watched_sync(monkeypatch)
    segments.close()
    assert synced[-1] == START + 2


def test_a_log_that_is_missing_is_an_error_of_the_sync(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    append(segments, b"1")
    segments.sync_soon(tmp_path / "log")
    with pytest.raises(UserError, match=r"cannot sync .*log: no such file"):
        segments.sync()
    segments.close()


def failing(error: int) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise OSError(error, os.strerror(error))

    return fail


def test_an_error_in_the_background_is_raised_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments(tmp_path)
    append(segments, b"1")
    with monkeypatch.context() as patched:
        patched.setattr(module.os, "fdatasync", failing(errno.EIO))
        segments.sync_soon(tmp_path)
        with pytest.raises(UserError, match=r"cannot sync .*00000001\.rows: the disk reports an error"):
            segments.sync()
    append(segments, b"2")
    segments.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not list open files")
def test_files_are_not_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    segments = Segments(tmp_path, segment_bytes=1)
    for _ in range(20):
        append(segments, b"1")
    segments.sync_soon(tmp_path / "00000001.rows")
    append(segments, b"2")
    segments.sync()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    segments.close()
    assert len(os.listdir("/proc/self/fd")) == before
