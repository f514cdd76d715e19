"""Payloads that are sent in chunks: announcements, credits and chunks of clients, and the answers.

Transfers are not recorded: one changes nothing in the run before it is complete.
"""

from collections.abc import Callable, Sequence
from functools import partial

from unstale.coordinator.machine import Coordinator
from unstale.coordinator.phase import Phase
from unstale.journal.partial_files import PartialFiles
from unstale.log_rate_limit import about_peer, logger
from unstale.server.downloads import Chunks, Downloads
from unstale.server.sender import Sender
from unstale.server.slot_scheduler import Owner, SlotScheduler
from unstale.server.state import TransferBounds
from unstale.server.stats import ServerStats
from unstale.server.update_receiver import UpdateReceiver
from unstale.server.uploads import Uploads, owner_of
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Chunk, Credit, Error, Message, Update
from unstale_proto.transfer import LEAST_CHUNK_BYTES, checksum

log = logger("unstale.server")


def defect_of_whole(update: Update, frames: Sequence[memoryview]) -> Reason | None:
    """Defect that the checksum of a whole payload shows; None without a checksum, or where the size is wrong."""
    if update.checksum is None or sum(map(len, frames)) != update.payload_bytes:
        return None
    return None if checksum(frames) == update.checksum else Reason.WRONG_CHECKSUM


class Transfers:
    """Protocol thread only. partial_files: of updates. receiver: receives complete updates."""

    def __init__(
        self,
        clock: Callable[[], float],
        bounds: TransferBounds,
        partial_files: PartialFiles,
        *,
        coordinator: Coordinator,
        sender: Sender,
        stats: ServerStats,
        receiver: UpdateReceiver,
    ) -> None:
        self._coordinator = coordinator
        self._sender = sender
        self._stats = stats
        self._receiver = receiver
        self._owners: dict[int, Owner] = {}
        self._useful_bytes = min(LEAST_CHUNK_BYTES, bounds.chunk_bytes)
        turns = partial(
            SlotScheduler,
            self._owner,
            grace_s=coordinator.settings.lease_s,
            chunk_bytes=bounds.chunk_bytes,
            payload_bytes=receiver.row_bytes,
        )
        valid_names = []
        for name in partial_files.names:
            owner = owner_of(name)
            if owner is not None and owner[0] < coordinator.settings.clients and coordinator.awaits(*owner):
                valid_names.append(name)
            else:
                partial_files.delete(name)
        self._uploads = Uploads(
            partial_files.open,
            valid_names,
            window_bytes=bounds.window_bytes,
            scheduler=turns(slots=bounds.places),
            parts_max=bounds.parts_max,
        )
        self._downloads = Downloads(
            sender.frames_in_chunks,
            chunk_bytes=bounds.chunk_bytes,
            scheduler=turns(slots=bounds.versions, slow_slots=bounds.versions // 2),
        )
        sender.announced = lambda client_id, task_id, model: self._downloads.announced(
            client_id, task_id, model, clock()
        )

    @property
    def due_s(self) -> float | None:
        """Time at which `flush` is due if nothing happens before; None for never."""
        dues_s = (self._uploads.due_s() if self._may_come else None, self._downloads.due_s())
        return min((due_s for due_s in dues_s if due_s is not None), default=None)

    # --- messages ---

    def on_message(self, client_id: int, message: Message, frames: Sequence[memoryview], at_s: float) -> bool:
        """Handle a message about a transfer; False for others. Raises RemoteContractError where it is refused."""
        match message:
            case Update():
                return self._announced(client_id, message, frames, at_s)
            case Credit():
                self._credited(client_id, message, at_s)
                return True
            case _:
                return False

    def take(self, client_id: int, chunk: Chunk, frames: Sequence[memoryview], at_s: float) -> bool:
        """Receive a chunk of an update. Whether it brings enough new bytes, so that it costs the client no message.
        Raises RemoteContractError where it is refused.
        """
        update = self._uploads.update_of(client_id, chunk.task_id)
        if update is None:
            raise RemoteContractError(
                Reason.NO_CREDIT, f"a chunk of task {chunk.task_id}, whose update was not announced"
            )
        try:
            credit, gained = self._uploads.take(client_id, chunk, frames, at_s)
        except OSError as error:
            self._cannot_keep(client_id, chunk.task_id, error, at_s)
            return False
        if credit is not None:
            self._sender.send_to_client(client_id, credit)
        if self._uploads.whole(client_id) is not None:
            self._is_whole(client_id, at_s)
        is_last = chunk.offset + gained == update.payload_bytes
        return gained >= self._useful_bytes or (gained > 0 and is_last)

    def belongs_to(self, client_id: int, owner: Owner) -> None:
        """Set the owner of a client."""
        self._owners[client_id] = owner

    def goes_on(self, client_id: int, at_s: float) -> bool:
        """Whether a client waits for its turn, or its update or model moves at the least rate at least."""
        return self._uploads.goes_on(client_id, at_s) or self._downloads.goes_on(client_id, at_s)

    def _owner(self, client_id: int) -> Owner:
        return self._owners.get(client_id, client_id)

    def moved_on(self, client_id: int, at_s: float) -> None:
        """A client has left, or is on another connection: it announces its transfers again."""
        self._uploads.pause(client_id, at_s)
        self._downloads.drop(client_id, at_s)

    def flush(self, at_s: float) -> list[tuple[int, int]]:
        """Continue the transfers whose turn it is; clients and tasks whose model cannot be sent any more."""
        self._uploads.sweep(self._awaits, at_s)
        self._downloads.sweep(self._awaits, at_s)
        if self._may_come:
            self._give_places(at_s)
        started, lost = self._downloads.start(at_s)
        for client_id, chunks in started:
            self._send(client_id, chunks, at_s)
        self._stats.transfers(
            uploads=(self._uploads.active, self._uploads.waiting, self._uploads.resumed),
            downloads=(self._downloads.active, self._downloads.waiting, self._downloads.resumed),
        )
        self._uploads.resumed = self._downloads.resumed = 0
        return lost

    # --- updates ---

    def _announced(self, client_id: int, update: Update, frames: Sequence[memoryview], at_s: float) -> bool:
        """Whether an update is sent in chunks. One whose verdict needs no payload is not."""
        if (
            frames
            or update.checksum is None
            or not self._awaits(client_id, update.task_id)
            or self._version_of(client_id) != update.base_version
            or self._receiver.defect_of_header(client_id, update) is not None
        ):
            return False
        as_it_comes_and_is_kept = update.payload_bytes + self._receiver.row_bytes
        if not self._receiver.has_room(client_id, update, as_it_comes_and_is_kept):
            self._uploads.pause(client_id, at_s)
            return True
        try:
            self._uploads.announce(client_id, update, at_s)
        except OSError as error:
            self._cannot_keep(client_id, update.task_id, error, at_s)
            return True
        if self._uploads.whole(client_id) is not None:
            self._is_whole(client_id, at_s)
            return True
        if self._may_come and client_id in self._give_places(at_s):
            return True
        if self._uploads.update_of(client_id, update.task_id) is not None:
            self._sender.send_to_client(client_id, self._uploads.ask(client_id))
        return True

    def _give_places(self, at_s: float) -> list[int]:
        """Clients that were sent a credit or an error."""
        changed, failed = self._uploads.give_places(at_s)
        for client_id, error in failed.items():
            self._cannot_keep(client_id, self._uploads.task_of(client_id), error, at_s)
        for client_id in changed:
            self._sender.send_to_client(client_id, self._uploads.ask(client_id))
        return [*changed, *failed]

    def _is_whole(self, client_id: int, at_s: float) -> None:
        receiving = self._uploads.whole(client_id)
        update = self._uploads.update_of(client_id, receiving.task_id) if receiving is not None else None
        assert receiving is not None and update is not None
        if receiving.is_right():
            judged = self._receiver.receive(client_id, update, receiving.part.frames(), at_s)
        elif receiving.is_unusable:
            judged = self._receiver.receive(client_id, update, (), at_s, Reason.WRONG_CHECKSUM)
        else:
            log.warning(
                "client %d: the update of task %d was damaged on its way",
                client_id,
                update.task_id,
                extra=about_peer(client_id),
            )
            self._stats.refused(Reason.WRONG_CHECKSUM)
            self._sender.send_to_client(client_id, self._uploads.ask(client_id))
            return
        if judged:
            self._uploads.drop(client_id, at_s, finished=True)
        else:
            self._uploads.pause(client_id, at_s)  # it is announced again

    def _cannot_keep(self, client_id: int, task_id: int | None, error: OSError, at_s: float) -> None:
        log.warning(
            "client %d: what comes of its update cannot be kept (%s)",
            client_id,
            error.strerror,
            extra=about_peer(client_id),
        )
        self._uploads.drop(client_id, at_s)
        self._receiver.refuse_not_stored(client_id, task_id)

    @property
    def _may_come(self) -> bool:
        """Whether rows are free. While a round is applied and the next one is complete, they are not."""
        coordinator = self._coordinator
        return coordinator.making is None or len(coordinator.pending) < coordinator.settings.round_size_max

    # --- models ---

    def _credited(self, client_id: int, credit: Credit, at_s: float) -> None:
        size_bytes = self._sender.payload_bytes(client_id)
        if credit.have >= size_bytes and self._downloads.finished(client_id, credit.task_id, at_s):
            self._stats.model_sent(size_bytes)
            return
        if not self._awaits(client_id, credit.task_id):
            why = f"task {credit.task_id} is not open any more"
            self._sender.send_to_client(
                client_id, Error(reason=Reason.EXPIRED_TASK, message=why, task_id=credit.task_id)
            )
            return
        if self._sender.bytes_with_task(client_id):
            raise RemoteContractError(Reason.UNEXPECTED_TYPE, "models of this run come with their task")
        if credit.have >= size_bytes:
            return
        model = self._sender.sent_to(client_id, self._version_of(client_id))
        self._send(client_id, self._downloads.credited(client_id, credit, model, at_s), at_s)

    def _send(self, client_id: int, chunks: Chunks, at_s: float) -> None:
        for chunk, piece in chunks:
            if not self._sender.send_to_client(client_id, chunk, [piece]):
                self._downloads.drop(client_id, at_s)  # it is gone, and will say hello
                return

    # --- the coordinator ---

    def _awaits(self, client_id: int, task_id: int) -> bool:
        return self._coordinator.phase is not Phase.FINISHED and self._coordinator.awaits(client_id, task_id)

    def _version_of(self, client_id: int) -> int:
        """Base version of a client's open task."""
        return self._coordinator.membership.client(client_id).base_version
