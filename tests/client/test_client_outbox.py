"""An outbox returns what was stored, or detects damage."""

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from support.wire import RUN
from unstale.errors import UserError
from unstale_client import atomic_file
from unstale_client.actions import PendingUpdate
from unstale_client.disk import DamagedError
from unstale_client.outbox import Outbox
from unstale_proto import codec, limits, payload
from unstale_proto.messages import Bye, Update

OTHER_RUN = "2" * 32


def made(number: int, *, run_id: str = RUN, numbers: int = 2) -> PendingUpdate:
    """An update of the numbers `number`, `number` + 1, ..."""
    update = Update(
        task_id=number + 1,
        base_version=3,
        kind="delta",
        num_examples=5,
        steps=2,
        loss=0.25,
        learning_rate=0.5,
        signature="0" * 64,
        payload_bytes=4 * numbers,
    )
    vector = np.arange(number, number + numbers, dtype="<f4")
    return PendingUpdate(run_id=run_id, number=number, update=update, parcel=payload.split(vector.data.cast("B")))


def fields(one: PendingUpdate) -> tuple[Any, ...]:
    """All fields of an update, with its bytes."""
    return one.run_id, one.number, one.update, b"".join(one.parcel)


def opened(folder: Path, first: int = 0, count: int = 1, *, durable: bool = False) -> Outbox:
    return Outbox(folder, first, count, durable=durable)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def state(*values: float) -> dict[str, np.ndarray]:
    return {"control_d": np.array(values, np.float32)}


def kept_in(folder: Path, run_id: str = RUN, client_id: int = 0) -> dict[str, list[float]]:
    """The state of a client that a new process loads."""
    outbox = opened(folder, client_id)
    outbox.load()
    found = {client: kept for client, kept, _ in outbox.restore(run_id)}
    outbox.close()
    return {name: tensor.tolist() for name, tensor in found.get(client_id, {}).items()}


# ------------------------------------------------------------------------------------------------------------ updates


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("numbers", [2, atomic_file.MAPPED_BYTES // 4, limits.FRAME_BYTES_MAX // 4 + 1])
def test_the_next_process_loads_an_update_byte_for_byte(tmp_path: Path, numbers: int, durable: bool) -> None:
    update = made(7, numbers=numbers)
    stored = opened(tmp_path, durable=durable).put(0, update, {})
    assert fields(stored) == fields(update)
    assert names(tmp_path) == ["0-7.update"]
    assert (tmp_path / "0-7.update").stat().st_mode & 0o777 == 0o600
    (found,) = opened(tmp_path).load()[0]
    assert fields(found) == fields(update)
    assert [len(frame) for frame in found.parcel] == [len(frame) for frame in update.parcel]


def test_a_large_update_is_read_from_its_file_even_after_deletion(tmp_path: Path) -> None:
    update = made(1, numbers=atomic_file.MAPPED_BYTES)
    outbox = opened(tmp_path)
    stored = outbox.put(0, update, {})
    assert stored.parcel is not update.parcel
    outbox.drop(0, RUN, 1)
    assert fields(stored) == fields(update)


def test_no_file_stays_open_for_an_update(tmp_path: Path) -> None:
    outbox = opened(tmp_path)
    before = len(os.listdir("/dev/fd"))
    stored = [outbox.put(0, made(number, numbers=atomic_file.MAPPED_BYTES // 4), {}) for number in range(8)]
    assert len(os.listdir("/dev/fd")) == before
    assert len(stored) == 8


def test_updates_are_loaded_oldest_first_for_each_client(tmp_path: Path) -> None:
    outbox = opened(tmp_path, 3, 2)
    for client_id, number in [(4, 10), (3, 11), (4, 9)]:
        outbox.put(client_id, made(number), {})
    outbox.close()
    opened(tmp_path, 5).put(5, made(1), {})
    found = opened(tmp_path, 3, 2).load()
    assert {client: [one.number for one in updates] for client, updates in found.items()} == {3: [11], 4: [9, 10]}


def test_a_settled_update_is_deleted(tmp_path: Path) -> None:
    outbox = opened(tmp_path)
    outbox.put(0, made(7), {})
    outbox.drop(0, RUN, 7)
    outbox.drop(0, RUN, 7)
    assert names(tmp_path) == []


def test_a_verdict_of_another_run_leaves_the_updates_of_this_one(tmp_path: Path) -> None:
    outbox = opened(tmp_path)
    outbox.put(0, made(7), {})
    outbox.drop(0, OTHER_RUN, 7)
    assert names(tmp_path) == ["0-7.update"]


def test_the_oldest_updates_are_deleted_above_the_bound(tmp_path: Path) -> None:
    outbox = opened(tmp_path)
    for number in range(limits.HOLDING_MAX + 2):
        outbox.put(0, made(number), {})
    outbox.close()
    found = opened(tmp_path).load()[0]
    assert [one.number for one in found] == list(range(3, limits.HOLDING_MAX + 2))
    assert len(names(tmp_path)) == len(found) == limits.HOLDING_MAX - 1  # and one task to work on


def test_a_partially_written_file_is_no_update(tmp_path: Path) -> None:
    opened(tmp_path).put(0, made(7), {})
    (tmp_path / "0-7.update").rename(tmp_path / "0-7.update.tmp")
    assert opened(tmp_path).load() == {}
    assert names(tmp_path) == []


def test_other_files_in_the_folder_are_left_unchanged(tmp_path: Path) -> None:
    for name in ("notes.txt", "1-1.update", "1.state.tmp", "0-x.update"):
        (tmp_path / name).write_text("mine")
    assert opened(tmp_path).load() == {}
    assert len(names(tmp_path)) == 4


# ------------------------------------------------------------------------------------------------------------- damage


class OfRun(atomic_file.Facts):
    run_id: str


def test_any_flipped_bit_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "x"
    atomic_file.write(path, {"run_id": RUN}, [[b"abc", b"de"], []], durable=False)
    whole = path.read_bytes()
    found = atomic_file.read(path, OfRun)
    assert (found.facts.run_id, [bytes(part) for part in found.parts]) == (RUN, [b"abcde", b""])
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match="x is damaged"):
            atomic_file.read(path, atomic_file.Facts)


def test_a_file_truncated_anywhere_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "x"
    atomic_file.write(path, {"run_id": RUN}, [[b"abcde"]], durable=False)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedError):
            atomic_file.read(path, atomic_file.Facts)


def test_a_file_keeps_its_old_content_until_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    atomic_file.write(path, {}, [[b"old"]], durable=False)

    def die(*_: Any) -> None:
        assert bytes(atomic_file.read(path, atomic_file.Facts).parts[0]) == b"old"
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_file.os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        atomic_file.write(path, {}, [[b"new"]], durable=False)
    assert bytes(atomic_file.read(path, atomic_file.Facts).parts[0]) == b"old"


def test_a_damaged_update_is_never_sent_and_gets_a_one_sentence_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = opened(tmp_path)
    outbox.put(0, made(7), {})
    outbox.put(0, made(8), {})
    outbox.close()
    os.truncate(tmp_path / "0-7.update", 50)
    with caplog.at_level(logging.WARNING):
        assert [one.number for one in opened(tmp_path).load()[0]] == [8]
    assert caplog.messages == [f"{tmp_path}/0-7.update is damaged and is deleted; its client continues without it"]
    assert names(tmp_path) == ["0-8.update"]


HEADER = codec.encode(made(7).update)
GOOD: dict[str, Any] = {"run_id": RUN, "number": 7, "keeps": ["a"]}


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        ({}, [HEADER, bytes(8), bytes(4)]),
        (GOOD | {"number": 8}, [HEADER, bytes(8), bytes(4)]),  # of another file
        (GOOD | {"number": "7"}, [HEADER, bytes(8), bytes(4)]),
        (GOOD | {"keeps": "a"}, [HEADER, bytes(8), bytes(4)]),
        (GOOD | {"keeps": ["a", "a"]}, [HEADER, bytes(8), bytes(4), bytes(4)]),
        (GOOD, [HEADER, bytes(8)]),  # its state is missing
        (GOOD, [HEADER, bytes(8), bytes(5)]),  # no floats
        (GOOD | {"keeps": []}, [HEADER]),
        (GOOD | {"keeps": []}, []),
        (GOOD, [HEADER, bytes(12), bytes(4)]),  # longer than in the header
        (GOOD, [HEADER, b"", bytes(4)]),
        (GOOD, [codec.encode(Bye()), bytes(8), bytes(4)]),
        (GOOD, [b"\xc1", bytes(8), bytes(4)]),
    ],
)
def test_an_intact_file_that_is_not_a_valid_update_is_not_sent(
    tmp_path: Path, facts: dict[str, Any], parts: list[bytes]
) -> None:
    atomic_file.write(tmp_path / "0-7.update", facts, [[part] for part in parts], durable=False)
    atomic_file.write(tmp_path / "0-8.update", GOOD | {"number": 8}, [[HEADER], [bytes(8)], [bytes(4)]], durable=False)
    assert [one.number for one in opened(tmp_path).load()[0]] == [8]
    assert names(tmp_path) == ["0-8.update"]


@pytest.mark.parametrize("parts", [[4, -4], [2**70], [5], "4", None])
def test_parts_that_do_not_add_up_are_damage(tmp_path: Path, parts: Any) -> None:
    about = json.dumps({"parts": parts}).encode()
    head = atomic_file.MAGIC + len(about).to_bytes(4, "little") + about + bytes(4)
    (tmp_path / "x").write_bytes(head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little"))
    with pytest.raises(DamagedError, match="x is damaged"):
        atomic_file.read(tmp_path / "x", atomic_file.Facts)


@pytest.mark.parametrize(
    ("facts", "part"), [({"settled": [1], "keeps": ["a"]}, 4), ({"run_id": RUN, "settled": [1], "keeps": ["a"]}, 6)]
)
def test_an_intact_file_that_is_not_a_valid_state_is_not_used(tmp_path: Path, facts: dict[str, Any], part: int) -> None:
    atomic_file.write(tmp_path / "0.state", facts, [[bytes(part)]], durable=False)
    assert kept_in(tmp_path) == {}
    assert names(tmp_path) == []


def test_a_damaged_state_gets_a_one_sentence_warning_and_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = opened(tmp_path)
    outbox.keep(0, RUN, 1, state(1.0, 2.0))
    outbox.close()
    os.truncate(tmp_path / "0.state", 20)
    with caplog.at_level(logging.WARNING):
        assert kept_in(tmp_path) == {}
    assert caplog.messages == [f"{tmp_path}/0.state is damaged and is deleted; its client continues without it"]


def test_a_file_that_cannot_be_read_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path).put(0, made(7), {})

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"cannot read .*/0-7\.update: permission denied"):
        opened(tmp_path).load()


# ---------------------------------------------------------------------------------- full disk, unusable folder


class Disk:
    """A disk that can be full: then no file is replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self._replace = os.replace
        monkeypatch.setattr(atomic_file.os, "replace", self._put)

    def _put(self, source: Any, target: Any) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._replace(source, target)


def test_on_a_full_disk_an_update_is_kept_in_memory_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, disk = opened(tmp_path), Disk(monkeypatch)
    with caplog.at_level(logging.WARNING):
        for number in (1, 2):
            update = made(number, numbers=atomic_file.MAPPED_BYTES)
            assert outbox.put(0, update, {}) is update
    assert caplog.messages == [
        f"cannot write {tmp_path}/0-1.update: the disk is full; make room; meanwhile updates are kept in "
        "memory, and lost if this process is killed"
    ]
    assert names(tmp_path) == []
    outbox.drop(0, RUN, 1)
    disk.is_full = False
    outbox.put(0, made(3), {})
    assert names(tmp_path) == ["0-3.update"]
    with caplog.at_level(logging.WARNING):
        for number in range(4, 20):  # a disk with space for every second update
            disk.is_full = number % 2 == 0
            outbox.put(0, made(number), {})
    assert len(caplog.messages) == 1


def test_a_client_disk_with_free_space_again_is_logged_and_so_is_the_next_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    outbox, disk = opened(tmp_path), Disk(monkeypatch)
    for is_full in (True, False, True):
        disk.is_full = is_full
        for number in range(120):
            outbox.put(0, made(number), {})
            outbox.drop(0, RUN, number)
    first, again, second = caplog.messages
    assert first == second
    assert again == f"{tmp_path}: updates are stored again"


def test_an_update_stays_until_its_state_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = opened(tmp_path)
    outbox.put(0, made(1), state(1.0))
    outbox.put(0, made(2), state(2.0))
    disk = Disk(monkeypatch)
    outbox.keep(0, RUN, 1, state(1.0))
    assert names(tmp_path) == ["0-1.update", "0-2.update"]
    disk.is_full = False
    outbox.keep(0, RUN, 2, state(3.0))
    assert names(tmp_path) == ["0.state"]
    assert kept_in(tmp_path) == {"control_d": [3.0]}


def test_an_unusable_folder_gets_a_one_sentence_error_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cannot use client\.directory .*/file: file exists$"):
        opened(tmp_path / "file")


# --------------------------------------------------------------------------------------------------------------- state


def test_the_next_process_loads_the_state_and_the_pending_state(tmp_path: Path) -> None:
    outbox = opened(tmp_path, count=3)
    outbox.put(1, made(1), state(1.0, 2.0))
    outbox.keep(1, RUN, 1, state(1.0, 2.0))
    outbox.put(1, made(2), state(3.0, 4.0))
    outbox.put(2, made(1), {"trained_d": np.float32([5.0]), "trained_buffers_b": np.float32([6.0, 7.0])})
    outbox.put(0, made(1), {})
    outbox.close()
    after = opened(tmp_path, count=3)
    after.load()
    found = [
        (client_id, lists(kept), {number: lists(one) for number, one in pending.items()})
        for client_id, kept, pending in after.restore(RUN)
    ]
    assert found == [
        (1, {"control_d": [1.0, 2.0]}, {2: {"control_d": [3.0, 4.0]}}),
        (2, {}, {1: {"trained_d": [5.0], "trained_buffers_b": [6.0, 7.0]}}),
    ]


def lists(kept: Any) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in kept.items()}


def test_an_update_that_is_in_the_state_is_not_resent(tmp_path: Path) -> None:
    outbox = opened(tmp_path)
    outbox.put(0, made(1), state(1.0))
    aside = (tmp_path / "0-1.update").read_bytes()
    outbox.keep(0, RUN, 1, state(1.0))
    outbox.close()
    (tmp_path / "0-1.update").write_bytes(aside)  # as if it had died before the deletion
    after = opened(tmp_path)
    assert after.load() == {0: []}
    assert names(tmp_path) == ["0.state"]
    assert [pending for _, _, pending in after.restore(RUN)] == [{}]


def test_the_state_of_another_run_is_deleted_and_its_updates_are_ignored(tmp_path: Path) -> None:
    outbox = opened(tmp_path)
    outbox.keep(0, RUN, 1, state(1.0))
    outbox.put(0, made(2), state(2.0))
    outbox.close()
    after = opened(tmp_path)
    after.load()
    assert [(lists(kept), pending) for _, kept, pending in after.restore(OTHER_RUN)] == [({}, {})]
    assert names(tmp_path) == ["0-2.update"]  # the session decides about it
    after.close()


def test_no_file_of_a_finished_run_remains(tmp_path: Path) -> None:
    outbox = opened(tmp_path, count=2)
    for client_id in (0, 1):
        outbox.put(client_id, made(1), state(1.0))
        outbox.keep(client_id, RUN, 1, state(1.0))
        outbox.put(client_id, made(2), state(2.0))
    outbox.put(1, made(3, run_id=OTHER_RUN), {})
    outbox.clear(0, RUN)
    assert names(tmp_path) == ["1-2.update", "1-3.update", "1.state"]
    outbox.clear(1, OTHER_RUN)
    assert names(tmp_path) == ["1-2.update", "1.state"]
    outbox.close()
    after = opened(tmp_path, 1)  # which learns that the run is over before it has started
    after.load()
    after.clear(1, RUN)
    assert names(tmp_path) == []


# ------------------------------------------------------------------------------------------------------ two processes

TAKES = """
import sys
from pathlib import Path
from unstale_client.outbox import Outbox
from unstale.errors import UserError
for first in (0, 5, 4):
    try:
        Outbox(Path(sys.argv[1]), first, 2, durable=False)
    except UserError as error:
        print(error)
    else:
        print(first, "to", first + 1)
"""


def test_a_client_has_one_process_per_folder_and_clients_share_a_folder(tmp_path: Path) -> None:
    outbox = opened(tmp_path, 2, 3)
    command = [sys.executable, "-c", TAKES, str(tmp_path)]
    another = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert another.stdout.splitlines() == [
        "0 to 1",
        "5 to 6",
        f"client.directory {tmp_path} is in use for one of the clients 4 to 5; end the other process, give each one "
        "ids of its own with --first, or name another folder",
    ]
    outbox.close()


def test_a_folder_that_every_user_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "outbox"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UserError, match=r"^every user may write to .*outbox \(mode 0777\)"):
        opened(folder)
