"""Starts of processes, counted in the folder of their clients. Source: PROTOCOL.md 4.5."""

from pathlib import Path

from unstale_client.outbox import Outbox


def start(folder: Path, first: int = 0) -> tuple[str, int]:
    outbox = Outbox(folder, first, 1, durable=False)
    counted = outbox.next_start()
    outbox.close()
    return counted.home, counted.number


def test_each_process_increments_the_count_for_any_clients(tmp_path: Path) -> None:
    home, first = start(tmp_path)
    assert [first, start(tmp_path)[1], start(tmp_path, 5)[1]] == [1, 2, 3]
    assert start(tmp_path) == (home, 4)


def test_another_folder_has_a_count_of_its_own(tmp_path: Path) -> None:
    assert start(tmp_path / "a")[0] != start(tmp_path / "b")[0]


def test_a_damaged_count_starts_a_new_one(tmp_path: Path) -> None:
    home, _ = start(tmp_path)
    (tmp_path / "starts").write_bytes(b"nonsense")
    other, number = start(tmp_path)
    assert (other != home, number) == (True, 1)


def test_the_count_is_not_loaded_as_an_update(tmp_path: Path) -> None:
    start(tmp_path)
    outbox = Outbox(tmp_path, 0, 1, durable=False)
    assert outbox.load() == {}
    outbox.close()
