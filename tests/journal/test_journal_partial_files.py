"""Payloads that come in chunks, in files and in memory."""

from pathlib import Path

import pytest

from unstale.errors import UserError
from unstale_client.partial_files import PartialFiles


def view(text: bytes) -> memoryview:
    return memoryview(text)


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_part_grows_and_begins_anew(tmp_path: Path, on_disk: bool) -> None:
    part = PartialFiles(tmp_path if on_disk else None).open("0-1")
    assert (part.have, part.mapped()) == (0, b"")
    part.append(view(b"abc"))
    part.append(view(b"de"))
    assert (part.have, bytes(part.mapped())) == (5, b"abcde")
    part.clear()
    assert (part.have, part.mapped()) == (0, b"")
    part.append(view(b"f"))
    assert bytes(part.mapped()) == b"f"
    part.delete()
    assert list(tmp_path.iterdir()) == []


def test_a_mapped_part_stays_readable_after_its_deletion(tmp_path: Path) -> None:
    part = PartialFiles(tmp_path).open("0-1")
    part.append(view(b"abc"))
    mapped = part.mapped()
    part.delete()
    assert bytes(mapped) == b"abc"


def test_another_process_finds_a_part_and_resumes_it(tmp_path: Path) -> None:
    first = PartialFiles(tmp_path / "folder")
    assert first.names == []
    part = first.open("0-1")
    part.append(view(b"abc"))
    part.close()
    (tmp_path / "folder" / "notes.txt").touch()
    second = PartialFiles(tmp_path / "folder")
    assert second.names == ["0-1"]
    part = second.open("0-1")
    part.append(view(b"d"))
    assert bytes(part.mapped()) == b"abcd"
    part.close()
    second.delete("0-1")
    second.delete("0-1")
    assert PartialFiles(tmp_path / "folder").names == []


def test_a_file_that_cannot_be_deleted_stays(tmp_path: Path) -> None:
    (tmp_path / "0-1.part").mkdir()
    partial_files = PartialFiles(tmp_path)
    assert partial_files.names == ["0-1"]
    partial_files.delete("0-1")
    with pytest.raises(OSError, match="directory"):
        partial_files.open("0-1")


def test_the_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^cannot use .*file/parts: not a directory$"):
        PartialFiles(tmp_path / "file" / "parts")
