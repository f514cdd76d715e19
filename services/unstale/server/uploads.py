"""Updates that come in chunks: which of them may come now, and what has come of each. Pure, but for the parts.

    announced -> waits for its turn (`scheduler.SlotScheduler`) -> has a place -> whole -> judged, or taken from its
    place again

Places are few, so that it is the clients' bytes that wait, and not ours: a part without a place does not grow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unstale.server.slot_scheduler import SlotScheduler
from unstale_proto.messages import Chunk, Credit, Update
from unstale_proto.transfer import Part, Receiving


@dataclass(slots=True)
class _Upload:
    """An update that was announced. receiving: None as long as there is nothing of it."""

    update: Update
    receiving: Receiving | None = None

    @property
    def has_place(self) -> bool:
        return self.receiving is not None and self.receiving.has_place


class Uploads:
    """One for each client. One thread.

    open_part: by name; raises OSError. found: names of parts that a server before this one left. scheduler: says who
    has a place. parts_max: parts without one that are kept: those of which most has come.
    """

    def __init__(
        self,
        open_part: Callable[[str], Part],
        found: Sequence[str] = (),
        *,
        window_bytes: int,
        scheduler: SlotScheduler,
        parts_max: int,
    ) -> None:
        self._open_part = open_part
        self._found = set(found)
        self._window_bytes = window_bytes
        self._scheduler = scheduler
        self._parts_max = parts_max
        self._of: dict[int, _Upload] = {}  # by client, that which was announced first is first
        self.resumed = 0  # went on from what was there

    @property
    def active(self) -> int:
        """Those that have a place."""
        return sum(upload.has_place for upload in self._of.values())

    @property
    def waiting(self) -> int:
        """Those that wait for one."""
        return self._scheduler.waiting

    def due_s(self) -> float | None:
        """When `give_places` has something to look at; None for never."""
        return self._scheduler.due_s()

    def goes_on(self, client_id: int, at_s: float) -> bool:
        """Whether the update of a client waits for a place, or comes no slower than it must."""
        return self._scheduler.waits(client_id) or self._scheduler.keeps_pace(client_id, at_s)

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
            self.drop(client_id, at_s)
            upload = self._of[client_id] = _Upload(update)
            if _name(client_id, update) in self._found:
                self._begin(client_id, upload)
        if not upload.has_place:
            self._scheduler.wait(client_id, client_id, at_s)

    def ask(self, client_id: int) -> Credit:
        """What a client that announced something is to be told now."""
        upload = self._of[client_id]
        if upload.receiving is None:
            return Credit(task_id=upload.update.task_id, have=0, until=0, again=True)
        if upload.has_place and 0 < upload.receiving.part.have < upload.update.payload_bytes:
            self.resumed += 1
        return upload.receiving.ask()

    def take(
        self, client_id: int, chunk: Chunk, frames: Sequence[memoryview], at_s: float
    ) -> tuple[Credit | None, int]:
        """A chunk of what was announced; what to answer, and how many bytes of it are new. Raises as
        `Receiving.take`."""
        upload = self._of[client_id]
        if upload.receiving is None:
            return self.ask(client_id), 0  # its part was dropped since
        have = upload.receiving.part.have
        credit = upload.receiving.take(chunk.offset, frames)
        gained = upload.receiving.part.have - have
        self._scheduler.on_bytes(client_id, gained, at_s)
        return credit, gained

    def whole(self, client_id: int) -> Receiving | None:
        """What a client announced, once all of it has come."""
        receiving = self._of[client_id].receiving
        return receiving if receiving is not None and receiving.is_whole else None

    def pause(self, client_id: int, at_s: float) -> None:
        """Nothing comes from a client now: it has lost its connection, or what came could not be taken yet."""
        self._scheduler.leave(client_id, at_s)
        self._take_place(client_id)
        self._bound()

    def drop(self, client_id: int, at_s: float, *, finished: bool = False) -> None:
        """What a client announced is settled, or for nothing. finished: it came whole."""
        self._scheduler.leave(client_id, at_s, finished=finished)
        upload = self._of.pop(client_id, None)
        if upload is not None:
            self._empty(upload)
            self._found.discard(_name(client_id, upload.update))

    def sweep(self, awaits: Callable[[int, int], bool], at_s: float) -> None:
        """Drop what nobody waits for any more."""
        for client_id, upload in list(self._of.items()):
            if not awaits(client_id, upload.update.task_id):
                self.drop(client_id, at_s)

    def give_places(self, at_s: float) -> tuple[list[int], dict[int, OSError]]:
        """Who is to be told something new: those that have a place now, and those that have lost theirs. And whose
        update cannot be kept, and why."""
        told: list[int] = []
        failed: dict[int, OSError] = {}
        while True:
            lost, got = self._scheduler.assign(at_s)
            for client_id in lost:
                self._take_place(client_id)
            for client_id in got:
                try:
                    self._give_place(client_id)
                except OSError as error:
                    failed[client_id] = error
                    self._scheduler.leave(client_id, at_s)
            told += [*lost, *got]
            if not got:
                break
        self._bound()
        return [client_id for client_id in dict.fromkeys(told) if client_id not in failed], failed

    def _give_place(self, client_id: int) -> None:
        upload = self._of[client_id]
        if upload.receiving is None:
            self._begin(client_id, upload)
        assert upload.receiving is not None
        upload.receiving.has_place = True

    def _take_place(self, client_id: int) -> None:
        upload = self._of.get(client_id)
        if upload is not None and upload.receiving is not None:
            upload.receiving.has_place = False

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
        """Of parts without a place keep those of which most has come: then the one that is nearest to its end is
        never dropped."""
        idle = [
            upload for upload in self._of.values() if upload.receiving is not None and not upload.has_place
        ]
        if len(idle) > self._parts_max:
            idle.sort(key=lambda upload: upload.receiving.part.have if upload.receiving else 0)
            for upload in idle[: len(idle) - self._parts_max]:
                self._empty(upload)


def _name(client_id: int, update: Update) -> str:
    return f"{client_id}-{update.task_id}"


def owner_of(name: str) -> tuple[int, int] | None:
    """Client and task of a part that was found; None when it is none of ours."""
    client_id, _, task_id = name.partition("-")
    return (int(client_id), int(task_id)) if client_id.isdecimal() and task_id.isdecimal() else None
