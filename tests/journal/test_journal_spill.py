"""Rows that wait on disk make the same rounds as rows in memory, and one row is in memory at a time."""

import weakref
from pathlib import Path

import pytest
import torch

from unstale.journal import rounds
from unstale.journal.rounds import Spill
from unstale.journal.rows import Location
from unstale.journal.segments import Segments
from unstale.learner.updates import Rows, StagedUpdate
from unstale_client.disk import DamagedError

D = 5


def about(client_id: int) -> StagedUpdate:
    return StagedUpdate(
        client_id=client_id, task_id=1, base_version=0, num_examples=1, batch_examples=1, loss=0.0, local_rate=1.0
    )


class Stored:
    """A spill over segments, used as the journal and the server protocol use it."""

    def __init__(self, folder: Path) -> None:
        self.segments = Segments(folder, segment_bytes=64)  # two rows each
        self.places: dict[int, Location] = {}
        self.spill = Spill(D, locations=self.places, segments=self.segments)

    def add(self, client_id: int, value: float) -> int:
        handle, (row_D, *_) = self.spill.row()
        row_D.copy_(torch.arange(D) + value)
        self.places[handle] = self.segments.append(memoryview(row_D.numpy()).cast("B"))
        self.spill.keep(handle, about(client_id))
        return handle


def read(rows: object) -> Rows:
    assert not isinstance(rows, torch.Tensor)
    return rows  # type: ignore[return-value]


def test_a_round_reads_its_rows_in_order_in_any_parts(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    handles = [stored.add(client_id, 10.0 * client_id) for client_id in range(5)]
    taken = stored.spill.take([handles[3], handles[0], handles[4]])
    rows = read(taken.rows)
    assert rows.shape == (3, D)
    assert [update.client_id for update in taken.updates] == [3, 0, 4]
    assert rows.columns(0, 2).tolist() == [[30.0, 31.0], [0.0, 1.0], [40.0, 41.0]]
    assert rows.columns(4, 5).tolist() == [[34.0], [4.0], [44.0]]
    taken.release()
    left = stored.spill.take([handles[1], handles[2]])
    assert read(left.rows).columns(0, 1).tolist() == [[10.0], [20.0]]
    left.release()
    assert stored.places == {}


def test_a_row_that_is_discarded_is_written_again(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    handle, (first_D, *_) = stored.spill.row()
    stored.spill.discard(handle)
    after, (row_D, *_) = stored.spill.row()
    assert after > handle
    assert row_D.data_ptr() == first_D.data_ptr()


def test_a_stored_row_occupies_no_memory(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    handle, (row_D, *_) = stored.spill.row()
    gone = weakref.ref(row_D)
    stored.places[handle] = stored.segments.append(memoryview(row_D.zero_().numpy()).cast("B"))
    del row_D
    assert gone() is not None
    stored.spill.keep(handle, about(0))
    assert gone() is None


def test_a_large_row_goes_to_its_segment_and_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAPPED_BYTES", 4 * D)
    stored = Stored(tmp_path)
    frames = [memoryview(torch.arange(D).float().numpy()).cast("B")]
    handle, row = stored.spill.fill(frames, "delta", 0.5, D - 1)
    stored.spill.discard(handle)
    assert stored.places == {}
    handle, row = stored.spill.fill(frames, "delta", 0.5, D - 1)
    assert row.vector_D.tolist() == [0.0, 2.0, 4.0, 6.0, 4.0], "the first four are divided by the learning rate"
    stored.places[handle] = stored.segments.append(row.data)
    stored.spill.keep(handle, about(0))
    del row
    other = stored.add(1, 10.0)
    taken = stored.spill.take([handle, other])
    assert read(taken.rows).columns(0, D).tolist() == [[0.0, 2.0, 4.0, 6.0, 4.0], [10.0, 11.0, 12.0, 13.0, 14.0]]
    taken.release()


def test_restored_it_holds_what_the_other_one_held(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    handles = [stored.add(client_id, 10.0 * client_id) for client_id in range(2)]
    again = Spill(D, locations=stored.places, segments=stored.segments)
    looked_at = []
    again.restore([(handle, about(0), lambda row_D: looked_at.append(row_D)) for handle in handles], 9)
    assert len(looked_at) == 2, "each row is read once, which finds damage"
    assert again.row()[0] == 9


def test_a_segment_that_was_cut_is_found(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    handle = stored.add(0, 1.0)
    path = stored.segments.path(stored.places[handle].segment)
    taken = stored.spill.take([handle])
    with path.open("r+b") as opened:
        opened.truncate(path.stat().st_size - 4)
    with pytest.raises(DamagedError, match=r"00000001\.rows is too short"):
        read(taken.rows).columns(0, D)
    taken.release()
