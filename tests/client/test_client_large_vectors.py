"""Large vectors of a client lie in files: the same numbers as in memory, and the model is what was received."""

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.wire import RUN
from unstale_client import atomic_file, built_vectors, vectors
from unstale_client.actions import PendingUpdate
from unstale_client.jobs import ReceivedModel
from unstale_client.outbox import Outbox
from unstale_client.partial_files import PartialFiles
from unstale_client.vectors import Vector
from unstale_proto import payload
from unstale_proto.encodings import BFloat16, Float32
from unstale_proto.errors import RemoteContractError
from unstale_proto.limits import FRAME_BYTES_MAX
from unstale_proto.messages import Update

NUMBERS = FRAME_BYTES_MAX // 4 + 3  # two frames


def received(tmp_path: Path, data: bytes) -> ReceivedModel:
    part = PartialFiles(tmp_path).open("model")
    part.append(memoryview(data))
    model = ReceivedModel(payload.split(part.mapped()))
    part.delete()
    return model


def lies_in_a_file(vector: Vector) -> bool:
    source: Any = vector
    while getattr(source, "base", None) is not None:
        source = source.base
    return isinstance(source.obj if isinstance(source, memoryview) else source, mmap.mmap)


def test_a_received_model_is_not_copied(tmp_path: Path) -> None:
    model_d = np.arange(NUMBERS, dtype="<f4")
    vector_d = received(tmp_path, model_d.tobytes()).vector(Float32(NUMBERS))
    assert (vector_d == model_d).all()
    assert lies_in_a_file(vector_d)


def test_a_model_in_several_pieces_of_memory_is_copied(tmp_path: Path) -> None:
    model_d = np.arange(4, dtype="<f4")
    frames = [memoryview(model_d[:1].tobytes()), memoryview(model_d[1:].tobytes())]
    assert ReceivedModel(frames).vector(Float32(3, 1)).tolist() == [0, 1, 2, 3]
    whole = received(tmp_path, model_d.tobytes())
    assert ReceivedModel([whole.frames[0][:8]]).vector(Float32(2)).tolist() == [0, 1], "a part of a file"


@pytest.mark.parametrize("in_a_file", [False, True])
def test_an_encoded_model_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_file: bool) -> None:
    monkeypatch.setattr(built_vectors, "FILE_BYTES", 12)
    encoding = BFloat16(2, behind=1)
    model_D = np.array([1.5, -2.0, 0.1], "<f4")
    frames = encoding.frames([memoryview(model_D[:2]).cast("B"), memoryview(model_D[2:]).cast("B")])
    vector_D = received(tmp_path, b"".join(frames)).vector(encoding, tmp_path if in_a_file else None)
    assert vector_D.tolist() == [1.5, -2.0, model_D[2]]
    assert lies_in_a_file(vector_D) is in_a_file


def test_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    model = received(tmp_path, bytes(8))
    with pytest.raises((AssertionError, RemoteContractError)):
        model.vector(Float32(3))


def blocks() -> Iterator[Vector]:
    scratch = np.empty(2, np.float32)
    for start in range(0, 6, 2):
        scratch[:] = [start, start + 1]
        yield scratch


def test_a_large_vector_is_built_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built_vectors, "FILE_BYTES", 24)
    large, small = built_vectors.built(blocks, 6, tmp_path), built_vectors.built(blocks, 6, None)
    assert large.tolist() == small.tolist() == [0, 1, 2, 3, 4, 5]
    assert (lies_in_a_file(large), lies_in_a_file(small)) == (True, False)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(built_vectors, "FILE_BYTES", 25)
    assert not lies_in_a_file(built_vectors.built(blocks, 6, tmp_path))


def test_without_room_a_large_vector_is_built_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, written = os.pwrite, []

    def pwrite(file: int, data: memoryview, offset: int) -> int:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(offset)
        return real(file, data[:5], offset)

    monkeypatch.setattr(built_vectors, "FILE_BYTES", 24)
    monkeypatch.setattr(os, "pwrite", pwrite)
    vector = built_vectors.built(blocks, 6, tmp_path)
    assert len(written) == 3
    assert vector.tolist() == [0, 1, 2, 3, 4, 5]
    assert not lies_in_a_file(vector)


def test_an_error_of_a_block_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Iterator[Vector]:
        yield from blocks()
        raise ValueError("not finite")

    monkeypatch.setattr(built_vectors, "FILE_BYTES", 24)
    for folder in (tmp_path, None):
        with pytest.raises(ValueError, match="not finite"):
            built_vectors.built(failing, 6, folder)
    assert list(tmp_path.iterdir()) == []


UPDATE = Update(
    task_id=2,
    base_version=3,
    kind="delta",
    num_examples=5,
    steps=2,
    loss=0.25,
    learning_rate=0.5,
    signature="0" * 64,
    payload_bytes=32,
)
STATE = {"control_d": np.array([7.0, 8.0], np.float32)}


def pending_of(vector_d: Vector) -> PendingUpdate:
    """An update of the numbers 0 to 5, and 6 and 7 in its buffers."""
    parts = [vectors.to_bytes(vector_d), vectors.to_bytes(np.array([6, 7], np.float32))]
    return PendingUpdate(
        run_id=RUN, number=1, update=UPDATE, parcel=[frame for part in parts for frame in payload.split(part)]
    )


def stored(folder: Path, pending: PendingUpdate) -> tuple[bytes, list[float]]:
    """Payload and state of an update that a process stores and the next one reads."""
    first = Outbox(folder, 0, 1, durable=True)
    kept = first.put(0, pending, STATE)
    assert b"".join(kept.parcel) == np.arange(8, dtype="<f4").tobytes()
    assert sorted(path.name for path in folder.iterdir()) == ["0-1.update", "lock"]
    first.close()
    second = Outbox(folder, 0, 1, durable=False)
    (loaded,) = second.load()[0]
    assert loaded.update == UPDATE
    ((_, _, states),) = second.restore(RUN)
    second.close()
    return b"".join(loaded.parcel), states[1]["control_d"].tolist()


@pytest.fixture
def built_d(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vector:
    monkeypatch.setattr(built_vectors, "FILE_BYTES", 24)
    monkeypatch.setattr(atomic_file, "MAPPED_BYTES", 1)
    (tmp_path / "outbox").mkdir(mode=0o700)
    return built_vectors.built(blocks, 6, tmp_path / "outbox")


EXPECTED = np.arange(8, dtype="<f4").tobytes(), [7.0, 8.0]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems copy")
def test_a_built_vector_becomes_the_file_of_its_update(tmp_path: Path, built_d: Vector) -> None:
    pending = pending_of(built_d)
    built = built_vectors.file_of(pending.parcel)
    assert built is not None and built[1] == 1
    inode = os.fstat(built[0].file).st_ino
    assert stored(tmp_path / "outbox", pending) == EXPECTED
    assert (tmp_path / "outbox" / "0-1.update").stat().st_ino == inode
    assert built_vectors.file_of(pending.parcel) is None, "the file has its name"


def test_an_update_of_a_built_vector_is_stored_twice(tmp_path: Path, built_d: Vector) -> None:
    pending = pending_of(built_d)
    for _ in range(2):
        assert stored(tmp_path / "outbox", pending) == EXPECTED


@pytest.mark.parametrize("call", ["link", "replace", "pwrite", "fsync"])
def test_a_built_vector_that_cannot_become_a_file_is_copied(
    tmp_path: Path, built_d: Vector, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real, calls = getattr(os, call), []

    def fails_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    monkeypatch.setattr(os, call, fails_once)
    assert stored(tmp_path / "outbox", pending_of(built_d)) == EXPECTED
    assert calls


def test_a_part_of_a_built_vector_is_copied(tmp_path: Path, built_d: Vector) -> None:
    pending = pending_of(built_d)
    assert built_vectors.file_of([pending.parcel[0][:8]]) is None
    assert built_vectors.file_of(pending.parcel[1:]) is None
    assert built_vectors.file_of([]) is None
