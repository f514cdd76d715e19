"""A part as it is read frame by frame."""

from pathlib import Path

import pytest

from unstale_client.partial_files import PartialFile, PartialFiles
from unstale_proto import limits, payload

FRAME = limits.FRAME_BYTES_MAX


def parts_of(tmp_path: Path, place: str) -> PartialFiles:
    return PartialFiles(tmp_path if place == "folder" else None)


def filled(partial_files: PartialFiles, content: bytes) -> PartialFile:
    part = partial_files.open("1-2")
    part.append(memoryview(content))
    return part


@pytest.mark.parametrize("place", ["folder", "memory"])
@pytest.mark.parametrize("size_bytes", [0, 4, FRAME, FRAME + 4])
def test_frames_are_the_part_cut_as_a_payload_is(tmp_path: Path, place: str, size_bytes: int) -> None:
    content = bytes(range(256)) * (size_bytes // 256) + bytes(range(size_bytes % 256))
    part = filled(parts_of(tmp_path, place), content)
    frames = part.frames()
    part.delete()
    assert [bytes(frame) for frame in frames] == [
        content[start : start + FRAME] for start in range(0, size_bytes, FRAME)
    ]
    payload.check([len(frame) for frame in frames], size_bytes)
    assert b"".join(frames[:]) == content


def test_each_frame_is_mapped_when_it_is_asked_for(tmp_path: Path) -> None:
    frames = filled(PartialFiles(tmp_path), bytes(2 * FRAME)).frames()
    assert frames[0].obj is not frames[0].obj
    assert frames[-1].obj is not frames[0].obj
    with pytest.raises(IndexError):
        frames[2]
