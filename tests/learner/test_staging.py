"""Staged rows, and payloads written into them."""

import struct
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from unstale.learner import row_checks
from unstale.learner.updates import Round, RoundUpdate, StagedUpdate, Staging, pieces, write
from unstale.training.local import Kind


def update(client_id: int) -> StagedUpdate:
    return StagedUpdate(
        client_id=client_id, task_id=5, base_version=2, num_examples=3, batch_examples=2, loss=0.5, local_rate=0.1
    )


def stage(staging: Staging, value: float) -> int:
    """Stage a row full of `value` from the client of that number."""
    handle, (row_D, *_) = staging.row()
    row_D.fill_(value)
    staging.keep(handle, update(int(value)))
    return handle


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_a_round_is_the_staged_rows_in_order_of_arrival() -> None:
    staging = Staging(2, 3, blocks_max=2)
    taken = staging.take([stage(staging, value) for value in (5, 4, 6)])
    assert taken.rows.tolist() == [[5.0, 5.0], [4.0, 4.0], [6.0, 6.0]]
    assert [staged.client_id for staged in taken.updates] == [5, 4, 6]


def test_a_round_does_not_copy_its_rows() -> None:
    staging = Staging(2, 2, blocks_max=2)
    handle, (row_D, *_) = staging.row()
    staging.keep(handle, update(0))
    assert staging.take([handle]).rows.data_ptr() == row_D.data_ptr()


def test_a_discarded_row_is_reused_under_another_handle() -> None:
    staging = Staging(2, 2, blocks_max=2)
    discarded, (first_d, *_) = staging.row()
    staging.discard(discarded)
    kept, (second_d, *_) = staging.row()
    assert kept != discarded
    assert second_d.data_ptr() == first_d.data_ptr()


def test_an_update_after_a_taken_round_starts_the_next_block() -> None:
    staging = Staging(1, 3, blocks_max=2)
    early = staging.take([stage(staging, 1), stage(staging, 2)])
    late = stage(staging, 9)
    assert early.rows.tolist() == [[1.0], [2.0]]
    assert staging.take([late]).rows.tolist() == [[9.0]]


def test_rows_beyond_a_full_block_wait_for_the_round_after() -> None:
    staging = Staging(1, 2, blocks_max=2)
    handles = [stage(staging, value) for value in (1, 2, 3)]
    assert staging.take(handles[:2]).rows.tolist() == [[1.0], [2.0]]
    assert staging.take(handles[2:]).rows.tolist() == [[3.0]]


def test_a_released_block_is_used_again() -> None:
    staging = Staging(1, 1, blocks_max=2)
    first = staging.take([stage(staging, 1)])
    address = first.rows.data_ptr()
    first.release()
    _, (row_D, *_) = staging.row()
    assert row_D.data_ptr() == address


def test_a_block_released_twice_is_reused_once() -> None:
    staging = Staging(1, 1, blocks_max=3)
    taken = staging.take([stage(staging, 1)])
    taken.release()
    taken.release()
    handles = [stage(staging, 2), stage(staging, 3)]
    assert [staging.take([handle]).rows.item() for handle in handles] == [2.0, 3.0]


def test_a_round_of_no_rows_takes_nothing() -> None:
    staging = Staging(4, 2, blocks_max=2)
    waiting = stage(staging, 1)
    empty = staging.take([])
    assert empty.rows.shape == (0, 4)
    assert empty.updates == ()
    empty.release()
    assert staging.take([waiting]).rows.shape == (1, 4)


def test_full_blocks_refuse_rows_until_a_round_is_released() -> None:
    staging = Staging(1, 1, blocks_max=2)
    taken = staging.take([stage(staging, 1)])
    stage(staging, 2)
    with pytest.raises(AssertionError, match="all 2 blocks are in use"):
        staging.row()
    taken.release()
    assert stage(staging, 3) == 2


@pytest.mark.parametrize("chosen", [[0, 1, 2], [2, 0], [1]])
def test_single_rows_are_taken_in_any_order(chosen: list[int]) -> None:
    staging = Staging(2, 1, blocks_max=4)
    handles = [stage(staging, value) for value in (5, 6, 7)]
    taken = staging.take([handles[place] for place in chosen])
    assert taken.rows.tolist() == [[5.0 + place] * 2 for place in chosen]
    assert [staged.client_id for staged in taken.updates] == [5 + place for place in chosen]
    left = [handle for place, handle in enumerate(handles) if place not in chosen]
    assert [staging.take([handle]).rows[0, 0].item() for handle in left] == [
        5.0 + place for place in range(3) if place not in chosen
    ]


def test_a_discarded_row_does_not_block_a_round_of_single_rows() -> None:
    staging = Staging(1, 1, blocks_max=3)
    handles = [stage(staging, 1), stage(staging, 2)]
    discarded, _ = staging.row()
    staging.discard(discarded)
    assert staging.take(handles).rows.tolist() == [[1.0], [2.0]]


def test_single_rows_read_ahead_stay_until_their_round_is_released() -> None:
    staging = Staging(1, 1, blocks_max=4)
    handles, ahead = [], []
    for value in (1, 2):
        handles.append(stage(staging, value))
        ahead.append(staging.newest_D)
    taken = staging.take(handles)
    stage(staging, 3)
    stage(staging, 4)
    assert [row_D.item() for row_D in ahead] == [1.0, 2.0]
    assert taken.rows.tolist() == [[1.0], [2.0]]
    taken.release()
    later = [stage(staging, 5), stage(staging, 6)]  # in the released rows
    with pytest.raises(AssertionError, match="all 4 blocks are in use"):
        staging.row()
    assert staging.take(later).rows.tolist() == [[5.0], [6.0]]


def test_a_single_row_is_taken_once() -> None:
    staging = Staging(1, 1, blocks_max=2)
    handle = stage(staging, 1)
    staging.take([handle])
    with pytest.raises(AssertionError, match=r"asked for rows \[0\], kept are \[\] of them"):
        staging.take([handle])


@pytest.mark.parametrize("others", [[7.0, 8.0], [7.0, 8.0, 9.0]])
def test_only_the_first_d_numbers_of_a_delta_are_divided(others: list[float]) -> None:
    # Buffers and a second vector follow.
    row_D = torch.empty(2 + len(others))
    write(row_D.numpy(), [floats(1.0, 2.0, *others)], "delta", 0.5, 2)
    assert row_D.tolist() == [2.0, 4.0, *others]


@pytest.mark.parametrize("cut", range(1, 5))
def test_division_ends_at_d_for_any_split_into_frames(cut: int) -> None:
    row_D, whole = torch.empty(5), floats(1.0, 2.0, 3.0, 4.0, 5.0)
    write(row_D.numpy(), [whole[: 4 * cut], whole[4 * cut :]], "delta", 0.5, 3)
    assert row_D.tolist() == [2.0, 4.0, 6.0, 4.0, 5.0]


@pytest.mark.parametrize("wrong", [[1, 0], [0], [0, 1, 2], [5]])
def test_a_round_takes_exactly_the_oldest_rows_in_order(wrong: list[int]) -> None:
    staging = Staging(1, 2, blocks_max=3)
    for value in (1, 2, 3):
        stage(staging, value)
    with pytest.raises(AssertionError, match=r"the oldest are \[0, 1\]"):
        staging.take(wrong)


def test_one_row_is_written_at_a_time() -> None:
    staging = Staging(1, 2, blocks_max=2)
    staging.row()
    with pytest.raises(AssertionError, match="row 0 is neither kept nor discarded"):
        staging.row()
    with pytest.raises(AssertionError, match="row 0 is being written, not 1"):
        staging.keep(1, update(0))


def test_a_round_has_the_metadata_of_the_update_and_of_the_coordinator() -> None:
    assert update(4).in_round(staleness=7) == RoundUpdate(
        client_id=4, task_id=5, base_version=2, staleness=7, num_examples=3, batch_examples=2, loss=0.5, local_rate=0.1
    )


def test_a_gradient_is_written_as_it_is() -> None:
    row_D = torch.empty(3)
    write(row_D.numpy(), [floats(1.5, -2.0, 0.0)], "gradient", 0.5, 3)
    assert row_D.tolist() == [1.5, -2.0, 0.0]


def test_a_delta_is_written_divided_by_the_learning_rate() -> None:
    row_D = torch.empty(3)
    write(row_D.numpy(), [floats(1.5, -2.0, 0.0)], "delta", 0.5, 3)
    assert row_D.tolist() == [1.5 / 0.5, -2.0 / 0.5, 0.0]


def test_frames_are_parts_of_one_vector_in_order() -> None:
    row_D = torch.empty(3)
    write(row_D.numpy(), [memoryview(floats(1.0)), b"", memoryview(floats(2.0, 3.0))], "gradient", 1.0, 3)
    assert row_D.tolist() == [1.0, 2.0, 3.0]


def test_an_unaligned_frame_is_read_correctly() -> None:
    row_D = torch.empty(2)
    write(row_D.numpy(), [memoryview(b"x" + floats(4.0, 8.0))[1:]], "delta", 2.0, 2)
    assert row_D.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("kind", ["gradient", "delta"])
@pytest.mark.parametrize("dimension", [1, 3, 6])
@pytest.mark.parametrize("cuts", [(), (2,), (1, 3), (0, 2, 4, 6)])
def test_pieces_are_the_bytes_of_the_row_that_is_written(kind: Kind, dimension: int, cuts: tuple[int, ...]) -> None:
    numbers = [1.0, -3.0, 1e-45, 3e38, 0.7, -0.0]
    bounds = [0, *cuts, len(numbers)]
    frames = [memoryview(floats(*numbers[start:end])) for start, end in pairwise(bounds)]
    row_D = torch.empty(len(numbers))
    write(row_D.numpy(), frames, kind, 0.3, dimension)
    assert b"".join(map(bytes, pieces(frames, kind, 0.3, dimension))) == row_D.numpy().tobytes()


def test_a_payload_that_cannot_be_decoded_leaves_no_row() -> None:
    def decoded() -> Iterator[memoryview]:
        yield memoryview(floats(1.0))
        raise ValueError("malformed")

    staging = Staging(2, 2, blocks_max=2)
    with pytest.raises(ValueError, match="malformed"):
        staging.fill(decoded(), "gradient", 1.0, 2)
    handle, row = staging.fill([memoryview(floats(1.0, 2.0))], "delta", 0.5, 2)
    staging.keep(handle, update(0))
    taken = staging.take([handle])
    assert taken.rows.tolist() == [[2.0, 4.0]]  # type: ignore[union-attr]
    assert row.vector_D.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("frames", [[floats(1.0)], [floats(1.0), floats(2.0, 3.0)]])
def test_a_payload_of_another_size_is_a_programming_error(frames: list[bytes]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        write(torch.empty(2).numpy(), frames, "gradient", 1.0, 2)


@pytest.mark.parametrize(("value", "learning_rate"), [(1e38, 1e-3), (1.0, 1e-300)])
def test_the_screen_detects_an_overflowing_quotient(value: float, learning_rate: float) -> None:
    row_D = torch.empty(1)
    write(row_D.numpy(), [floats(value)], "delta", learning_rate, 1)
    norms = row_checks.norms(row_D.numpy(), row_checks.Layout(len(row_D)))
    assert row_checks.defect(norms, "delta") == "non-finite"


class StagingMachine(RuleBasedStateMachine):
    """Any order of arrivals, verdicts, rounds and releases, one round at a time, against two plain lists.

    Up to the coordinator's limit of unaggregated updates arrive, and one more that is refused: the documented
    number of blocks suffices.
    """

    ROWS = 3
    UNAGGREGATED_MAX = 10

    def __init__(self) -> None:
        super().__init__()
        self.staging = Staging(1, self.ROWS, blocks_max=self.UNAGGREGATED_MAX // self.ROWS + 2)
        self.waiting: list[tuple[int, float]] = []
        self.taken: list[tuple[Round, list[float]]] = []
        self.next_value = 0.0

    @rule(accepted=st.booleans())
    def arrive(self, accepted: bool) -> None:
        handle, (row_D, *_) = self.staging.row()
        row_D.fill_(self.next_value)
        unaggregated = len(self.waiting) + sum(len(values) for _, values in self.taken)
        if accepted and unaggregated < self.UNAGGREGATED_MAX:
            self.staging.keep(handle, update(0))
            self.waiting.append((handle, self.next_value))
        else:
            self.staging.discard(handle)
        self.next_value += 1

    @precondition(lambda self: self.waiting and not self.taken)
    @rule()
    def close_a_round(self) -> None:
        part, self.waiting = self.waiting[: self.ROWS], self.waiting[self.ROWS :]
        self.taken.append((self.staging.take([handle for handle, _ in part]), [value for _, value in part]))

    @precondition(lambda self: self.taken)
    @rule()
    def release_the_round(self) -> None:
        self.taken.pop(0)[0].release()

    @invariant()
    def rounds_keep_their_rows_until_they_are_released(self) -> None:
        for taken, values in self.taken:
            assert taken.rows.flatten().tolist() == values


TestStagingMachine = StagingMachine.TestCase


class SingleRowsMachine(RuleBasedStateMachine):
    """Rows one by one, and rounds of any of them, in any order, one at a time, against a dictionary."""

    UNAGGREGATED_MAX = 5

    def __init__(self) -> None:
        super().__init__()
        self.staging = Staging(1, 1, blocks_max=self.UNAGGREGATED_MAX + 2)
        self.waiting: dict[int, float] = {}
        self.taken: list[tuple[Round, list[float]]] = []
        self.next_value = 0.0

    @rule(accepted=st.booleans())
    def arrive(self, accepted: bool) -> None:
        handle, (row_D, *_) = self.staging.row()
        row_D.fill_(self.next_value)
        unaggregated = len(self.waiting) + sum(len(values) for _, values in self.taken)
        if accepted and unaggregated < self.UNAGGREGATED_MAX:
            self.staging.keep(handle, update(0))
            self.waiting[handle] = self.next_value
        else:
            self.staging.discard(handle)
        self.next_value += 1

    @precondition(lambda self: self.waiting and not self.taken)
    @rule(data=st.data())
    def close_a_round(self, data: st.DataObject) -> None:
        handles = data.draw(st.lists(st.sampled_from(sorted(self.waiting)), min_size=1, unique=True))
        taken = self.staging.take(handles)
        self.taken.append((taken, [self.waiting.pop(handle) for handle in handles]))

    @precondition(lambda self: self.taken)
    @rule()
    def release_the_round(self) -> None:
        self.taken.pop(0)[0].release()

    @invariant()
    def rounds_keep_their_rows(self) -> None:
        for taken, values in self.taken:
            assert taken.rows.flatten().tolist() == values


TestSingleRowsMachine = SingleRowsMachine.TestCase
