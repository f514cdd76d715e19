"""The places and the parts of uploads, by hand, with simulated parts. A payload has 8 bytes."""

import pytest

from support.parts import PlayedPart
from unstale.server.slot_scheduler import SlotScheduler
from unstale.server.uploads import Uploads
from unstale_proto.messages import Chunk, Update

BYTES = 8


class Opened:
    """Parts by name. held: names of those that are there, in the order in which they were begun."""

    def __init__(self) -> None:
        self._parts: dict[str, PlayedPart] = {}

    def __call__(self, name: str) -> PlayedPart:
        self._parts[name] = PlayedPart()
        return self._parts[name]

    @property
    def held(self) -> list[str]:
        return [name for name, part in self._parts.items() if not part.deleted]


def uploads_of(opened: Opened, *, parts_max: int, places: int = 1) -> Uploads:
    scheduler = SlotScheduler(lambda client: client, slots=places, grace_s=1.0, chunk_bytes=BYTES, payload_bytes=BYTES)
    return Uploads(open_part=opened, window_bytes=BYTES, scheduler=scheduler, parts_max=parts_max)


def update(task_id: int) -> Update:
    return Update(
        task_id=task_id,
        base_version=0,
        kind="gradient",
        num_examples=1,
        steps=1,
        loss=1.0,
        learning_rate=1.0,
        signature="0" * 64,
        payload_bytes=BYTES,
        checksum="0" * 16,
    )


def begin(uploads: Uploads, client_id: int) -> None:
    """It announces the update of task client_id + 1, has the place and sends half of it."""
    uploads.announce(client_id, update(client_id + 1), 0.0)
    assert uploads.give_places(0.0) == ([client_id], {})
    uploads.ask(client_id)
    uploads.take(client_id, Chunk(task_id=client_id + 1, offset=0), [memoryview(bytes(4))], 0.0)


def test_of_parts_without_a_place_the_most_complete_are_kept() -> None:
    opened = Opened()
    uploads = uploads_of(opened, parts_max=1)
    for client_id, count in ((0, 6), (1, 4)):
        uploads.announce(client_id, update(client_id + 1), 0.0)
        uploads.give_places(0.0)
        uploads.ask(client_id)
        uploads.take(client_id, Chunk(task_id=client_id + 1, offset=0), [memoryview(bytes(count))], 0.0)
        uploads.pause(client_id, 0.0)
    assert opened.held == ["0-1"]


@pytest.mark.parametrize(
    ("parts_max", "held"),
    [(0, []), (1, ["2-3"]), (2, ["1-2", "2-3"]), (3, ["0-1", "1-2", "2-3"]), (9, ["0-1", "1-2", "2-3"])],
)
def test_of_parts_without_a_place_those_announced_last_are_kept(parts_max: int, held: list[str]) -> None:
    opened = Opened()
    uploads = uploads_of(opened, parts_max=parts_max)
    for client_id in range(3):
        begin(uploads, client_id)
        uploads.pause(client_id, 0.0)  # its connection is gone
    assert opened.held == held


def test_a_part_that_was_dropped_is_begun_anew() -> None:
    uploads = uploads_of(Opened(), parts_max=0)
    begin(uploads, 0)
    uploads.pause(0, 0.0)
    credit = uploads.ask(0)
    assert (credit.have, credit.until) == (0, 0)  # it has no place
    uploads.announce(0, update(1), 0.0)
    assert uploads.give_places(0.0) == ([0], {})
    credit = uploads.ask(0)
    assert (credit.have, credit.until, uploads.resumed) == (0, BYTES, 0)


def test_a_stored_part_is_resumed() -> None:
    uploads = uploads_of(Opened(), parts_max=1)
    begin(uploads, 0)
    uploads.pause(0, 0.0)
    uploads.announce(0, update(1), 0.0)
    assert uploads.give_places(0.0) == ([0], {})
    credit = uploads.ask(0)
    assert (credit.have, credit.until, uploads.resumed) == (4, BYTES, 1)


def test_without_stored_parts_an_upload_that_lost_its_place_restarts() -> None:
    opened = Opened()
    uploads = uploads_of(opened, parts_max=0)
    begin(uploads, 0)
    uploads.announce(1, update(2), 0.5)
    assert uploads.give_places(1.0) == ([0, 1], {})
    assert opened.held == ["1-2"]
    uploads.drop(1, 1.0)
    assert uploads.give_places(1.0) == ([0], {})
    assert uploads.ask(0).have == 0
