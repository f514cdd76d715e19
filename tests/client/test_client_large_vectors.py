"""Large vectors of a client lie in files: the same numbers as in memory, and the model is what was received."""

import errno
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unstale_client import vectors
from unstale_client.jobs import ReceivedModel
from unstale_client.partial_files import PartialFiles
from unstale_client.vectors import Vector
from unstale_proto import payload
from unstale_proto.encodings import BFloat16, Float32
from unstale_proto.errors import RemoteContractError
from unstale_proto.limits import FRAME_BYTES_MAX

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
    monkeypatch.setattr(vectors, "FILE_BYTES", 12)
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
    monkeypatch.setattr(vectors, "FILE_BYTES", 24)
    large, small = vectors.built(blocks, 6, tmp_path), vectors.built(blocks, 6, None)
    assert large.tolist() == small.tolist() == [0, 1, 2, 3, 4, 5]
    assert (lies_in_a_file(large), lies_in_a_file(small)) == (True, False)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(vectors, "FILE_BYTES", 25)
    assert not lies_in_a_file(vectors.built(blocks, 6, tmp_path))


def test_without_room_a_large_vector_is_built_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.left = file, 12

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: memoryview) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            written: int = self.file.write(data[: self.left][:5])
            self.left -= written
            return written

    real = tempfile.TemporaryFile
    monkeypatch.setattr(vectors, "FILE_BYTES", 24)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: Full(real(**options)))
    vector = vectors.built(blocks, 6, tmp_path)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5]
    assert not lies_in_a_file(vector)


def test_an_error_of_a_block_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Iterator[Vector]:
        yield from blocks()
        raise ValueError("not finite")

    monkeypatch.setattr(vectors, "FILE_BYTES", 24)
    for folder in (tmp_path, None):
        with pytest.raises(ValueError, match="not finite"):
            vectors.built(failing, 6, folder)
    assert list(tmp_path.iterdir()) == []
