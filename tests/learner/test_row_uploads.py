"""Rows that are copied to a simulated CUDA device while others arrive.

Copies in the stream of `RowUploads` are computed no earlier than an event says, so that a missing wait shows as a wrong
number.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from support.simulated_device import CUDA, DeviceTensor, SimulatedDevice, simulated_device
from unstale.config import build
from unstale.learner.row_uploads import MATRICES, RowUploads
from unstale.learner.updates import Round, StagedUpdate, Staging

D = 3


class Stream:
    """A stream whose copies wait in a list until an event of the stream is waited for."""

    def __init__(self, log: list[tuple[str, str]], name: str) -> None:
        self.log, self.name = log, name
        self.pending: list[Callable[[], object]] = []

    def wait_event(self, event: "Event") -> None:
        assert event.stream is not None
        self.log.append((self.name, f"waits for {event.stream.name}"))
        for copy in event.before:
            copy()
        event.before.clear()


class Event:
    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.before: list[Callable[[], object]] = []

    def record(self, stream: Stream) -> None:
        self.stream = stream
        self.before, stream.pending = stream.pending, []


class _Deferred(TorchDispatchMode):
    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        self._stream.log.append((self._stream.name, "copies"))
        self._stream.pending.append(lambda: func(*args, **(kwargs or {})))
        return args[0]


Log = list[tuple[str, str]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, copies: SimulatedDevice) -> Log:
    """Operations of the streams, in order."""
    operations: Log = []
    main = Stream(operations, "main")
    monkeypatch.setattr("torch.cuda.Stream", lambda _: Stream(operations, "side"))
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.current_stream", lambda _: main)
    monkeypatch.setattr("torch.cuda.stream", _Deferred)
    return operations


@pytest.fixture
def copies() -> Iterator[SimulatedDevice]:
    with simulated_device() as counted:
        yield counted


def staging(rows: int = 2) -> Staging:
    return Staging(D, rows, blocks_max=5, uploads=RowUploads(CUDA))


def update() -> StagedUpdate:
    return StagedUpdate(
        client_id=0, task_id=0, base_version=0, num_examples=1, batch_examples=1, loss=0.0, local_rate=0.1
    )


def stage(subject: Staging, value: float) -> int:
    handle, (row_D, *_) = subject.row()
    row_D.fill_(value)
    subject.keep(handle, update())
    return handle


def taken(subject: Staging, *values: float) -> Round:
    return subject.take([stage(subject, value) for value in values])


def values_of(rows: Any) -> list[float]:
    """The first number of each row on the device."""
    assert isinstance(rows, DeviceTensor)
    return rows.host[:, 0].tolist()


def test_rows_are_copied_as_they_arrive_and_waited_for_by_the_stream_that_reads_them(
    copies: SimulatedDevice, log: Log
) -> None:
    subject = staging()
    first = stage(subject, 1)
    assert log == [("side", "copies")]
    taken = subject.take([first, stage(subject, 2)])
    assert values_of(taken.ready()) == [1.0, 2.0]
    assert log == [("side", "copies"), ("side", "copies"), ("main", "waits for side")]
    assert copies.waits == 0


def test_memory_is_filled_again_after_the_work_of_the_round_that_used_it(copies: SimulatedDevice, log: Log) -> None:
    subject = staging()
    rounds = [taken(subject, 1, 2), taken(subject, 3, 4)]
    for each in rounds:
        each.ready()
        each.release()
    log.clear()
    again = taken(subject, 5)
    assert log == [("side", "waits for main"), ("side", "copies")]
    assert again.ready().data_ptr() == rounds[0].ready().data_ptr()
    assert values_of(again.ready()) == [5.0]
    assert copies.waits == 0


def test_rows_are_copied_when_their_round_is_applied_if_all_memory_on_the_device_is_in_use(
    copies: SimulatedDevice,
) -> None:
    subject = staging()
    lent = [taken(subject, value, value) for value in range(MATRICES)]
    late = taken(subject, 8, 9)
    assert type(late.ready()) is Tensor
    assert late.ready() is late.rows
    lent[0].release()
    late.release()
    assert values_of(taken(subject, 6, 7).ready()) == [6.0, 7.0]
    assert copies.waits == 0


def test_a_discarded_row_is_not_copied(copies: SimulatedDevice, log: Log) -> None:
    subject = staging()
    handle, _ = subject.row()
    subject.discard(handle)
    assert log == []
    assert values_of(taken(subject, 4).ready()) == [4.0]
    assert copies.waits == 0


def test_rows_of_an_earlier_process_are_copied(copies: SimulatedDevice) -> None:
    subject = staging()
    subject.restore([(handle, update(), partial(torch.fill_, value=handle + 5)) for handle in (0, 1)], 2)
    assert values_of(subject.take([0, 1]).ready()) == [5.0, 6.0]
    assert copies.waits == 0


@pytest.mark.parametrize(
    ("rows", "device_bytes", "are_copied"),
    [(5, 4 * 4 * 2 * 5 * D, True), (5, 4 * 4 * 2 * 5 * D - 4, False), (1, 2**40, False)],
)
def test_rows_are_copied_early_if_a_quarter_of_the_devices_memory_is_enough(
    log: Log, monkeypatch: pytest.MonkeyPatch, rows: int, device_bytes: int, are_copied: bool
) -> None:
    monkeypatch.setattr(build, "memory_bytes", lambda _: device_bytes)
    assert (build.row_uploads(rows, D, CUDA) is not None) is are_copied
    assert build.row_uploads(rows, D, torch.device("cpu")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_rounds_have_the_rows_that_arrived() -> None:
    numbers, cuda = 1_000_003, torch.device("cuda")
    subject = Staging(numbers, 4, blocks_max=3, pin=True, uploads=RowUploads(cuda))

    def arrived(version: int, index: int) -> Tensor:
        return torch.randn(numbers, generator=torch.Generator().manual_seed(4 * version + index))

    for version in range(8):
        handles = []
        for index in range(4):
            handle, (row_D, *_) = subject.row()
            row_D.copy_(arrived(version, index))
            subject.keep(handle, update())
            handles.append(handle)
        taken = subject.take(handles)
        torch.cuda.set_sync_debug_mode("error")
        try:
            rows = taken.ready()
            sum_d = rows.sum(0) if isinstance(rows, Tensor) else None
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert sum_d is not None
        taken.release()
        torch.testing.assert_close(sum_d.cpu(), sum(arrived(version, index) for index in range(4)))
