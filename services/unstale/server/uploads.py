"""Updates that come in chunks: which of them may come now, and what has come of each. Pure, but for the parts.

    announced -> waits, first come first served -> has a place -> whole -> judged, or taken from its place again

Places are few, so that it is the clients' bytes that wait, and not ours: a part without a place does not grow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unstale_proto.messages import Chunk, Credit, Update
from unstale_proto.transfer import Part, Receiving


@dataclass(slots=True)
class _Upload:
    """An update that was announced. receiving: None as long as there is nothing of it. moved_s: when the last of it
    came, or its place."""

    update: Update
    moved_s: float
    receiving: Receiving | None = None

    @property
    def has_place(self) -> bool:
        return self.receiving is not None and self.receiving.has_place


class Uploads:
    """One for each client. One thread.

    open_part: by name; raises OSError. found: names of parts that a server before this one left. places: that there
    are. parts_max: parts without one that are kept. patience_s: how long one may stand still in a place that others
    wait for.
    """

    def __init__(
        self,
        open_part: Callable[[str], Part],
        found: Sequence[str] = (),
        *,
        window_bytes: int,
        places: int,
        parts_max: int,
        patience_s: float,
    ) -> None:
        self._open_part = open_part
        self._found = set(found)
        self._window_bytes = window_bytes
        self._places = places
        self._parts_max = parts_max
        self._patience_s = patience_s
        self._of: dict[int, _Upload] = {}  # by client, that which was announced first is first
        self._queue: dict[int, None] = {}
        self.resumed = 0  # went on from what was there

    @property
    def active(self) -> int:
        """Those that have a place."""
        return sum(upload.has_place for upload in self._of.values())

    @property
    def waiting(self) -> int:
        """Those that wait for one."""
        return len(self._queue)

    def due_s(self) -> float | None:
        """When somebody has stood still for too long in a place that others wait for."""
        if not self._queue:
            return None
        moved_s = [upload.moved_s for upload in self._of.values() if upload.has_place]
        return min(moved_s) + self._patience_s if len(moved_s) >= self._places else None

    def update_of(self, client_id: int, task_id: int) -> Update | None:
        """What a client announced for this task."""
        upload = self._of.get(client_id)
        return upload.update if upload is not None and upload.update.task_id == task_id else None

    def task_of(self, client_id: int) -> int | None:
        """The task whose update a client announced; None when there is none."""
        upload = self._of.get(client_id)
        return None if upload is None else upload.update.task_id

    def announce(self, client_id: int, update: Update, at_s: float) -> None:
        """A client has an update, and waits; perhaps it said so before. Raises OSError."""
        upload = self._of.get(client_id)
        if upload is None or upload.update != update:
            self.drop(client_id)
            upload = self._of[client_id] = _Upload(update, at_s)
            if _name(client_id, update) in self._found:
                self._begin(client_id, upload)
        if not upload.has_place:
            self._queue.setdefault(client_id)

    def ask(self, client_id: int) -> Credit:
        """What a client that announced something is to be told now."""
        upload = self._of[client_id]
        if upload.receiving is None:
            return Credit(task_id=upload.update.task_id, have=0, until=0, again=True)
        if upload.has_place and 0 < upload.receiving.part.have < upload.update.payload_bytes:
            self.resumed += 1
        return upload.receiving.ask()

    def take(self, client_id: int, chunk: Chunk, frames: Sequence[memoryview], at_s: float) -> Credit | None:
        """A chunk of what was announced; what to answer. Raises as `Receiving.take`."""
        upload = self._of[client_id]
        if upload.receiving is None:
            return self.ask(client_id)  # its part was dropped since
        have = upload.receiving.part.have
        credit = upload.receiving.take(chunk.offset, frames)
        if upload.receiving.part.have > have:
            upload.moved_s = at_s
        return credit

    def whole(self, client_id: int) -> Receiving | None:
        """What a client announced, once all of it has come."""
        receiving = self._of[client_id].receiving
        return receiving if receiving is not None and receiving.is_whole else None

    def pause(self, client_id: int) -> None:
        """Nothing comes from a client now: it has lost its connection, or what came could not be taken yet."""
        self._queue.pop(client_id, None)
        upload = self._of.get(client_id)
        if upload is not None and upload.receiving is not None:
            upload.receiving.has_place = False
            if upload.receiving.part.have == 0:
                self._empty(upload)
        self._bound()

    def drop(self, client_id: int) -> None:
        """What a client announced is settled, or for nothing."""
        self._queue.pop(client_id, None)
        upload = self._of.pop(client_id, None)
        if upload is not None:
            self._empty(upload)
            self._found.discard(_name(client_id, upload.update))

    def sweep(self, awaits: Callable[[int, int], bool]) -> None:
        """Drop what nobody waits for any more."""
        for client_id, upload in list(self._of.items()):
            if not awaits(client_id, upload.update.task_id):
                self.drop(client_id)

    def give_places(self, at_s: float) -> list[int]:
        """Who is to be told something new: those that have a place now, and those that have lost theirs.

        Raises OSError, and then the client in question is first in `waiting`."""
        told = []
        while self._queue:
            if self.active >= self._places:
                slowest = self._stuck(at_s)
                if slowest is None:
                    break
                self.pause(slowest)
                self._queue[slowest] = None
                told.append(slowest)
            client_id = next(iter(self._queue))
            upload = self._of[client_id]
            if upload.receiving is None:
                self._begin(client_id, upload)
            assert upload.receiving is not None
            del self._queue[client_id]
            upload.receiving.has_place = True
            upload.moved_s = at_s
            told.append(client_id)
        return told

    @property
    def first(self) -> int:
        """The client that waits for a place, and for whom it is the turn."""
        return next(iter(self._queue))

    def _stuck(self, at_s: float) -> int | None:
        stuck = [
            (upload.moved_s, client_id)
            for client_id, upload in self._of.items()
            if upload.has_place and upload.moved_s + self._patience_s <= at_s
        ]
        return min(stuck)[1] if stuck else None

    def _begin(self, client_id: int, upload: _Upload) -> None:
        update = upload.update
        assert update.checksum is not None
        upload.receiving = Receiving(
            update.task_id,
            update.payload_bytes,
            update.checksum,
            self._open_part(_name(client_id, update)),
            window_bytes=self._window_bytes,
        )

    def _empty(self, upload: _Upload) -> None:
        if upload.receiving is not None:
            upload.receiving.part.delete()
            upload.receiving = None

    def _bound(self) -> None:
        idle = [
            upload for upload in self._of.values() if upload.receiving is not None and not upload.has_place
        ]
        for upload in idle[: max(0, len(idle) - self._parts_max)]:
            self._empty(upload)


def _name(client_id: int, update: Update) -> str:
    return f"{client_id}-{update.task_id}"


def owner_of(name: str) -> tuple[int, int] | None:
    """Client and task of a part that was found; None when it is none of ours."""
    client_id, _, task_id = name.partition("-")
    return (int(client_id), int(task_id)) if client_id.isdecimal() and task_id.isdecimal() else None
