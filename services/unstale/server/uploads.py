"""Updates that arrive in chunks: permission to send, and the received bytes. Pure, except for the files.

announced -> waits for a place (`SlotScheduler`) -> has a place -> complete -> verdict
^------------------------------|  loses its place
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unstale.server.slot_scheduler import Counts, SlotScheduler
from unstale_proto.messages import Chunk, Credit, Update
from unstale_proto.transfer import Part, Receiving


@dataclass(slots=True)
class _Upload:
    """An announced update."""

    update: Update
    receiving: Receiving | None = None  # None before its first byte
    is_asked: bool = False  # a credit with `again` may be in flight, and a second one would repeat chunks

    @property
    def has_place(self) -> bool:
        return self.receiving is not None and self.receiving.has_place


@dataclass(slots=True, kw_only=True, eq=False)
class Uploads:
    """At most one upload for each client. One thread."""

    open_part: Callable[[str], Part]  # opens the file of a part by its name; raises OSError
    partial_names: set[str] = field(default_factory=set)  # names of parts of an earlier server
    window_bytes: int  # most bytes that a client may send ahead
    scheduler: SlotScheduler
    parts_max: int  # most parts without a place; those with the most bytes are kept
    resumed: int = 0  # uploads that continued an earlier one
    _of: dict[int, _Upload] = field(init=False, default_factory=dict)  # by client, in order of announcement

    def take_counts(self) -> Counts:
        """Uploads that have a place and that wait, and that were resumed since the last call."""
        active = sum(upload.has_place for upload in self._of.values())
        resumed, self.resumed = self.resumed, 0
        return active, self.scheduler.waiting, resumed

    def update_of(self, client_id: int) -> Update | None:
        """The update that a client announced; None without one."""
        upload = self._of.get(client_id)
        return None if upload is None else upload.update

    def announce(self, client_id: int, update: Update, at_s: float) -> None:
        """A client announces an update, for the first time or again. Raises OSError."""
        upload = self._of.get(client_id)
        if upload is None or upload.update != update:
            self.drop(client_id, at_s)
            upload = self._of[client_id] = _Upload(update)
            if _name(client_id, update) in self.partial_names:
                self._receiving(client_id, upload)
        if not upload.has_place:
            self.scheduler.wait(client_id, client_id, at_s)

    def ask(self, client_id: int) -> Credit:
        """The credit of a client that announced an update."""
        upload = self._of[client_id]
        upload.is_asked = True
        if upload.receiving is None:
            return Credit(task_id=upload.update.task_id, have=0, until=0, again=True)
        if upload.has_place and 0 < upload.receiving.part.have < upload.update.payload_bytes:
            self.resumed += 1
        return upload.receiving.ask()

    def is_asked(self, client_id: int) -> bool:
        """Whether the last credit of `ask` may be in flight: nothing proves that it arrived or was lost."""
        return self._of[client_id].is_asked

    def on_order_proved(self, client_id: int) -> None:
        """The client is sent a message that it receives after all credits before it."""
        upload = self._of.get(client_id)
        if upload is not None:
            upload.is_asked = False

    def take(
        self, client_id: int, chunk: Chunk, frames: Sequence[memoryview], at_s: float
    ) -> tuple[Credit | None, int]:
        """Receive a chunk; the credit to send, and the number of new bytes. Raises as `Receiving.take`."""
        upload = self._of[client_id]
        upload.is_asked = False
        if upload.receiving is None:
            return self.ask(client_id), 0  # its part was dropped since
        have = upload.receiving.part.have
        credit = upload.receiving.take(chunk.offset, frames)
        gained = upload.receiving.part.have - have
        self.scheduler.on_bytes(client_id, gained, at_s)
        return credit, gained

    def whole(self, client_id: int) -> Receiving | None:
        """The upload of a client once it is complete; None before."""
        receiving = self._of[client_id].receiving
        return receiving if receiving is not None and receiving.is_whole else None

    def pause(self, client_id: int, at_s: float) -> None:
        """Free the place of a client that lost its connection, or whose update cannot be stored yet."""
        self.scheduler.leave(client_id, at_s)
        self._take_place(client_id)
        self._bound()

    def drop(self, client_id: int, at_s: float, *, finished: bool = False) -> None:
        """Drop the upload of a client. finished: it is complete."""
        self.scheduler.leave(client_id, at_s, finished=finished)
        upload = self._of.pop(client_id, None)
        if upload is not None:
            self._empty(upload)
            self.partial_names.discard(_name(client_id, upload.update))

    def sweep(self, awaits: Callable[[int, int], bool], at_s: float) -> None:
        """Drop uploads whose task is not open any more."""
        for client_id, upload in list(self._of.items()):
            if not awaits(client_id, upload.update.task_id):
                self.drop(client_id, at_s)

    def give_places(self, at_s: float) -> tuple[list[int], dict[int, OSError]]:
        """Assign places; returns the clients that need a new credit, and errors of clients with a full disk here."""
        credited: dict[int, None] = {}
        failed: dict[int, OSError] = {}
        while True:
            lost, got = self.scheduler.assign(at_s)
            for client_id in lost:
                self._take_place(client_id)
            for client_id in got:
                try:
                    self._receiving(client_id, self._of[client_id]).has_place = True
                except OSError as error:
                    failed[client_id] = error
                    self.scheduler.leave(client_id, at_s)
            credited.update(dict.fromkeys([*lost, *got]))
            if not got:
                break
        self._bound()
        return [client_id for client_id in credited if client_id not in failed], failed

    def _take_place(self, client_id: int) -> None:
        upload = self._of.get(client_id)
        if upload is not None and upload.receiving is not None:
            upload.receiving.has_place = False

    def _receiving(self, client_id: int, upload: _Upload) -> Receiving:
        """What receives an upload; opens its part if it has none. Raises OSError."""
        update = upload.update
        if upload.receiving is None:
            assert update.checksum is not None
            part = self.open_part(_name(client_id, update))
            upload.receiving = Receiving(
                update.task_id, update.payload_bytes, update.checksum, part, window_bytes=self.window_bytes
            )
        return upload.receiving

    def _empty(self, upload: _Upload) -> None:
        if upload.receiving is not None:
            upload.receiving.part.delete()
            upload.receiving = None

    def _bound(self) -> None:
        """Delete the smallest parts without a place above `parts_max`."""
        idle = [upload for upload in self._of.values() if upload.receiving is not None and not upload.has_place]
        if len(idle) > self.parts_max:
            idle.sort(key=lambda upload: upload.receiving.part.have if upload.receiving else 0)
            for upload in idle[: len(idle) - self.parts_max]:
                self._empty(upload)


def _name(client_id: int, update: Update) -> str:
    return f"{client_id}-{update.task_id}"
