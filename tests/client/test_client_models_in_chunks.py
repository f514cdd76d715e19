"""Models in chunks for the clients of one process: by hand, with parts in memory.

A model has 8 bytes; at most 4 of them are in transit. Source: PROTOCOL.md 4.7.
"""

import logging

import pytest

from support.parts import PlayedPart
from unstale_client.models import ModelKey, Models
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Chunk, Credit
from unstale_proto.transfer import checksum

RUN = "1" * 32
MODEL = b"\x01\x02\x03\x04\x05\x06\x07\x08"


def model_of(version: int) -> bytes:
    return bytes(8 * [version + 1])


def key_of(version: int, payload: bytes | None = None) -> ModelKey:
    digest = checksum([memoryview(model_of(version) if payload is None else payload)])
    return ModelKey(run_id=RUN, version=version, checksum=digest, payload_bytes=8)


class Disk:
    """The parts of a process. stored: parts of a former process. refuses: no new part can be created."""

    def __init__(self, stored: dict[str, bytes] | None = None) -> None:
        self.parts: dict[str, PlayedPart] = {}
        self.spare: list[PlayedPart] = []
        self.refuses = False
        for name, content in (stored or {}).items():
            self.open(name).append(memoryview(content))

    def open(self, name: str) -> PlayedPart:
        if self.refuses:
            raise OSError(28, "No space left on device")
        if name not in self.parts or self.parts[name].deleted:
            self.parts[name] = PlayedPart()
        return self.parts[name]

    def open_spare(self) -> PlayedPart:
        self.spare.append(PlayedPart())
        return self.spare[-1]

    def delete(self, name: str) -> None:
        self.parts[name].delete()

    @property
    def held(self) -> list[str]:
        return sorted(name for name, part in self.parts.items() if not part.deleted)

    def models(self, places: int = 2) -> Models:
        return Models(
            self.open, self.open_spare, partial_names=self.held, delete=self.delete, window_bytes=4, places=places
        )


def take(models: Models, client_id: int, task_id: int, start: int, end: int, payload: bytes = MODEL) -> Credit | None:
    return models.take(client_id, Chunk(task_id=task_id, offset=start), [memoryview(payload[start:end])])


def fetch(models: Models, client_id: int, task_id: int, payload: bytes) -> None:
    """All of a model, in two chunks."""
    models.ask(client_id)
    take(models, client_id, task_id, 0, 4, payload)
    take(models, client_id, task_id, 4, 8, payload)


def bytes_of(models: Models, client_id: int) -> bytes | None:
    frames = models.frames(client_id)
    return None if frames is None else b"".join(frames)


# ------------------------------------------------------------------------------------------------------------ one model


def test_a_model_is_requested_up_to_the_window_and_then_to_its_end() -> None:
    models = Disk().models()
    models.want(0, 7, key_of(0, MODEL))
    assert models.ask(0) == Credit(task_id=7, have=0, until=4, again=True)
    assert take(models, 0, 7, 0, 2) is None
    assert bytes_of(models, 0) is None
    assert take(models, 0, 7, 2, 4) == Credit(task_id=7, have=4, until=8)
    assert take(models, 0, 7, 4, 6) is None
    assert take(models, 0, 7, 6, 8) is None
    assert bytes_of(models, 0) == MODEL
    assert models.ask(0) == Credit(task_id=7, have=8, until=8, again=True)  # so that the server knows


def test_the_first_client_fetches_a_model_and_the_others_wake_when_it_is_complete() -> None:
    models = Disk().models()
    for client_id in (3, 1, 2):
        models.want(client_id, 10 + client_id, key_of(0, MODEL))
    assert [models.ask(client_id) for client_id in (1, 2)] == [None, None]
    assert models.woken() == []
    fetch(models, 3, 13, MODEL)
    assert models.woken() == [3, 1, 2]
    assert models.woken() == []
    assert {bytes_of(models, client_id) for client_id in (1, 2, 3)} == {MODEL}
    assert models.frames(1) is models.frames(2)  # one copy
    assert models.ask(2) == Credit(task_id=12, have=8, until=8, again=True)


def test_when_the_fetching_client_gets_another_task_the_next_client_continues() -> None:
    models = Disk().models()
    models.want(0, 10, key_of(0, MODEL))
    models.want(1, 11, key_of(0, MODEL))
    models.ask(0)
    take(models, 0, 10, 0, 4)
    models.leave(0)
    assert models.woken() == [1]
    assert models.ask(1) == Credit(task_id=11, have=4, until=8, again=True)
    assert take(models, 0, 10, 4, 8) is None  # delayed
    assert bytes_of(models, 1) is None
    take(models, 1, 11, 4, 8)
    assert bytes_of(models, 1) == MODEL
    assert bytes_of(models, 0) is None


def test_a_newer_task_with_the_same_model_continues_the_transfer() -> None:
    models = Disk().models()
    models.want(0, 10, key_of(0, MODEL))
    models.ask(0)
    take(models, 0, 10, 0, 4)
    models.want(0, 20, key_of(0, MODEL))
    assert models.ask(0) == Credit(task_id=20, have=4, until=8, again=True)
    assert take(models, 0, 10, 4, 8) is None  # of the former task
    assert bytes_of(models, 0) is None


def test_chunks_that_were_not_requested_change_nothing() -> None:
    models = Disk().models()
    assert take(models, 5, 1, 0, 4) is None  # wants no model
    models.want(0, 10, key_of(0, MODEL))
    models.want(1, 11, key_of(0, MODEL))
    models.ask(0)
    assert take(models, 1, 11, 0, 4) is None  # another one fetches it
    assert take(models, 0, 9, 0, 4) is None  # another task's
    assert models.ask(0) == Credit(task_id=10, have=0, until=4, again=True)
    with pytest.raises(RemoteContractError) as refused:
        take(models, 0, 10, 0, 5)
    assert refused.value.reason is Reason.NO_CREDIT


# ------------------------------------------------------------------------------------------------------------ errors


def test_a_damaged_model_is_fetched_again_and_fails_the_third_time() -> None:
    disk = Disk()
    models = disk.models()
    models.want(0, 10, key_of(0, MODEL))
    models.want(1, 11, key_of(0, MODEL))
    wrong = bytes(8)
    models.ask(0)
    for _ in range(2):
        take(models, 0, 10, 0, 4, wrong)
        assert take(models, 0, 10, 4, 8, wrong) == Credit(task_id=10, have=0, until=4, again=True)
    take(models, 0, 10, 0, 4, wrong)
    with pytest.raises(RemoteContractError) as refused:
        take(models, 0, 10, 4, 8, wrong)
    assert refused.value.reason is Reason.WRONG_CHECKSUM
    assert disk.held == []
    models.leave(0)
    assert models.woken() == [1]
    fetch(models, 1, 11, MODEL)  # another client may have a better link
    assert bytes_of(models, 1) == MODEL


def test_a_transfer_continues_in_memory_when_the_disk_is_full(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    models = disk.models()
    models.want(0, 10, key_of(0, MODEL))
    models.ask(0)
    take(models, 0, 10, 0, 4)
    disk.parts[key_of(0, MODEL).name].full = True
    take(models, 0, 10, 4, 8)
    assert bytes_of(models, 0) == MODEL
    assert (disk.held, len(disk.spare)) == ([], 1)
    assert "it is downloaded to memory" in caplog.text


def test_a_model_is_received_in_memory_when_no_file_can_be_created(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    disk.refuses = True
    models = disk.models()
    models.want(0, 10, key_of(0, MODEL))
    fetch(models, 0, 10, MODEL)
    assert bytes_of(models, 0) == MODEL
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left on device" in caplog.text


# ------------------------------------------------------------------------------------------------- former parts


def test_a_partial_model_of_a_former_process_is_resumed() -> None:
    models = Disk({key_of(0, MODEL).name: MODEL[:6]}).models()
    models.want(0, 10, key_of(0, MODEL))
    assert models.ask(0) == Credit(task_id=10, have=6, until=8, again=True)
    take(models, 0, 10, 6, 8)
    assert bytes_of(models, 0) == MODEL


def test_a_complete_stored_model_is_available_at_once() -> None:
    models = Disk({key_of(0, MODEL).name: MODEL}).models()
    models.want(0, 10, key_of(0, MODEL))
    assert bytes_of(models, 0) == MODEL


@pytest.mark.parametrize("left", [bytes(8), bytes(9)])
def test_a_stored_part_that_does_not_match_is_dropped(left: bytes) -> None:
    models = Disk({key_of(0, MODEL).name: left}).models()
    models.want(0, 10, key_of(0, MODEL))
    assert bytes_of(models, 0) is None
    assert models.ask(0) == Credit(task_id=10, have=0, until=4, again=True)


def test_parts_of_other_models_are_deleted_when_a_transfer_starts() -> None:
    disk = Disk({key_of(version).name: b"\x00" * 4 for version in (3, 4, 5)})
    models = disk.models()
    assert len(disk.held) == 3
    models.want(0, 10, key_of(4))
    assert disk.held == [key_of(4).name]


def test_no_part_remains_when_no_model_is_needed() -> None:
    disk = Disk({key_of(3).name: b"\x00" * 4})
    disk.models().close()  # of a run that ended before its first task with a model
    assert disk.held == []
    models = disk.models()
    models.want(0, 10, key_of(0, MODEL))
    models.ask(0)
    take(models, 0, 10, 0, 4)
    models.close()
    assert disk.held == []


# --------------------------------------------------------------------------------------------------------- several


def test_concurrent_transfers_are_bounded_and_the_next_starts_when_one_completes() -> None:
    disk = Disk()
    models = disk.models(places=2)
    for client_id in range(4):
        models.want(client_id, 10 + client_id, key_of(client_id))
    assert [models.ask(client_id) is not None for client_id in range(4)] == [True, True, False, False]
    assert models.woken() == []
    fetch(models, 1, 11, model_of(1))
    assert models.woken() == [1, 2]
    assert models.ask(2) == Credit(task_id=12, have=0, until=4, again=True)
    assert models.ask(3) is None
    models.leave(0)
    assert models.woken() == [3]


def test_the_last_unused_model_stays_as_a_file_and_the_one_before_is_deleted() -> None:
    disk = Disk()
    models = disk.models()
    for version in (0, 1):
        models.want(0, 10 + version, key_of(version))
        fetch(models, 0, 10 + version, model_of(version))
        assert bytes_of(models, 0) == model_of(version)
    assert disk.held == [key_of(0).name, key_of(1).name]
    models.leave(0)
    assert disk.held == [key_of(1).name]
    models.want(0, 20, key_of(1))  # it is assigned again
    assert bytes_of(models, 0) == model_of(1)


def test_a_client_that_wants_no_model_gets_no_event() -> None:
    models = Disk().models()
    models.leave(0)
    assert models.frames(0) is None
    models.want(0, 10, key_of(0))
    models.leave(0)
    assert models.frames(0) is None
    assert models.woken() == []
