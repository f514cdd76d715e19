"""Updates that arrive, whole or in chunks, and models that are sent in chunks. Only a complete update is recorded."""

from collections.abc import Sequence

from unstale.coordinator.machine import Coordinator
from unstale.coordinator.phase import Phase
from unstale.log_rate_limit import about_peer, logger
from unstale.server.downloads import Chunks
from unstale.server.executor import ActionExecutor
from unstale.server.sender import Sender
from unstale.server.slot_scheduler import SlotScheduler
from unstale.server.state import RunState, TransferBounds
from unstale.server.stats import ServerStats
from unstale.server.update_decoder import UpdateDecoder
from unstale.server.uploads import Uploads
from unstale_client.partial_files import PartialFiles
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Chunk, Credit, Error, Message, Update
from unstale_proto.transfer import LEAST_CHUNK_BYTES, checksum

log = logger("unstale.server")


def defect_of_whole(update: Update, frames: Sequence[memoryview]) -> Reason | None:
    """Defect that the checksum of a whole payload shows; None without a checksum, or where the size is wrong."""
    if update.checksum is None or sum(map(len, frames)) != update.payload_bytes:
        return None
    return None if checksum(frames) == update.checksum else Reason.WRONG_CHECKSUM


def _parts_to_resume(partial_files: PartialFiles, coordinator: Coordinator) -> set[str]:
    """Names of the parts of open tasks; deletes the others."""
    names = set()
    for name in partial_files.names:
        client_id, _, task_id = name.partition("-")
        is_part = client_id.isdecimal() and task_id.isdecimal() and int(client_id) < coordinator.settings.clients
        if is_part and coordinator.awaits(int(client_id), int(task_id)):
            names.add(name)
        else:
            partial_files.delete(name)
    return names


class Transfers:
    """Protocol thread only."""

    def __init__(
        self,
        state: RunState,
        bounds: TransferBounds,
        scheduler: SlotScheduler,
        *,
        sender: Sender,
        executor: ActionExecutor,
        stats: ServerStats,
    ) -> None:
        """scheduler: of the places for updates."""
        self._coordinator, self._recorder = state.coordinator, executor.recorder
        self._sender, self._executor, self._stats = sender, executor, stats
        self._downloads = sender.downloads
        self._useful_bytes = min(LEAST_CHUNK_BYTES, bounds.chunk_bytes)
        self._decoder = UpdateDecoder(
            state.staging,
            signature=state.welcome.signature,
            encodings=sender.negotiation.updates,
            layout=sender.negotiation.layout,
            admission=state.admission,
        )
        self._uploads = Uploads(
            open_part=state.partial_files.open,
            partial_names=_parts_to_resume(state.partial_files, state.coordinator),
            window_bytes=bounds.window_bytes,
            scheduler=scheduler,
            parts_max=bounds.parts_max,
        )

    @property
    def due_s(self) -> float | None:
        """Time at which `flush` is due if nothing happens before; None for never."""
        dues_s = (self._uploads.scheduler.due_s() if self._may_come else None, self._downloads.scheduler.due_s())
        return min((due_s for due_s in dues_s if due_s is not None), default=None)

    # --- messages ---

    def on_message(self, client_id: int, message: Message, frames: Sequence[memoryview], at_s: float) -> bool:
        """Handle a message about a transfer; False for others. Raises RemoteContractError where it is refused."""
        if isinstance(message, Update):
            return self._announced(client_id, message, frames, at_s)
        if isinstance(message, Credit):
            self._credited(client_id, message, at_s)
            return True
        return False

    def take(self, client_id: int, chunk: Chunk, frames: Sequence[memoryview], at_s: float) -> bool:
        """Receive a chunk. Whether it brings so much that it costs no message. Raises RemoteContractError."""
        update = self._uploads.update_of(client_id)
        if update is None or update.task_id != chunk.task_id:
            raise RemoteContractError(
                Reason.NO_CREDIT, f"a chunk of task {chunk.task_id}, whose update was not announced"
            )
        try:
            credit, gained = self._uploads.take(client_id, chunk, frames, at_s)
        except OSError as error:
            self._cannot_keep(client_id, update, error, at_s)
            return False
        if credit is not None:
            self._sender.send_to_client(client_id, credit)
        self._receive_if_whole(client_id, update, at_s)
        is_last = chunk.offset + gained == update.payload_bytes
        return gained >= self._useful_bytes or (gained > 0 and is_last)

    def goes_on(self, client_id: int, at_s: float) -> bool:
        """Whether a client waits for its turn, or its update or model moves at the least rate at least."""
        return any(transfers.scheduler.goes_on(client_id, at_s) for transfers in (self._uploads, self._downloads))

    def on_order_proved(self, client_id: int) -> None:
        """A welcome or the answer to a heartbeat was sent: a client that announces its update now may miss a credit."""
        self._uploads.on_order_proved(client_id)

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
        self._stats.transfers(uploads=self._uploads.take_counts(), downloads=self._downloads.take_counts())
        return lost

    # --- updates ---

    def receive(
        self,
        client_id: int,
        update: Update,
        frames: Sequence[memoryview],
        at_s: float,
        known_defect: Reason | None = None,
    ) -> bool:
        """Validate a complete update and pass it to the coordinator. False where the disk has no room for it now."""
        size_bytes = max(sum(map(len, frames)), self._decoder.row_bytes) if frames else 0
        if not self._has_room(client_id, update, size_bytes):
            return False
        if update.evaluation is not None and not self._sender.is_evaluation_wanted(client_id, update.base_version):
            update = update.model_copy(update={"evaluation": None})  # it was not requested
        self._executor.on_update(self._decoder.stage(client_id, update, frames, at_s, known_defect))
        return True

    def _has_room(self, client_id: int, update: Update, size_bytes: int) -> bool:
        """Whether so many bytes can be stored for an update. If not, its client receives an error."""
        if self._recorder.has_room(size_bytes):
            return True
        self._refuse_not_stored(client_id, update)
        return False

    def _refuse_not_stored(self, client_id: int, update: Update) -> None:
        self._stats.refused(Reason.NOT_STORED)
        why = "there is no room on the server's disk; keep the update and send it again later"
        error = Error(reason=Reason.NOT_STORED, message=why, task_id=update.task_id, refused=update.type)
        self._sender.send_to_client(client_id, error)

    def _announced(self, client_id: int, update: Update, frames: Sequence[memoryview], at_s: float) -> bool:
        """Whether an update is sent in chunks. One whose verdict needs no payload is not."""
        if (
            frames
            or update.checksum is None
            or not self._awaits(client_id, update.task_id)
            or self._version_of(client_id) != update.base_version
            or self._decoder.defect_of_header(client_id, update) is not None
        ):
            return False
        as_it_comes_and_is_kept = update.payload_bytes + self._decoder.row_bytes
        if not self._has_room(client_id, update, as_it_comes_and_is_kept):
            self._uploads.pause(client_id, at_s)
            return True
        try:
            self._uploads.announce(client_id, update, at_s)
        except OSError as error:
            self._cannot_keep(client_id, update, error, at_s)
            return True
        is_answered = self._receive_if_whole(client_id, update, at_s) or (
            self._may_come and client_id in self._give_places(at_s)
        )
        if not is_answered and self._uploads.update_of(client_id) is not None and not self._uploads.is_asked(client_id):
            self._sender.send_to_client(client_id, self._uploads.ask(client_id))
        return True

    def _give_places(self, at_s: float) -> list[int]:
        """Clients that were sent a credit or an error."""
        changed, failed = self._uploads.give_places(at_s)
        for client_id, error in failed.items():
            update = self._uploads.update_of(client_id)
            assert update is not None
            self._cannot_keep(client_id, update, error, at_s)
        for client_id in changed:
            self._sender.send_to_client(client_id, self._uploads.ask(client_id))
        return [*changed, *failed]

    def _receive_if_whole(self, client_id: int, update: Update, at_s: float) -> bool:
        """Whether an update is complete; receives it then."""
        receiving = self._uploads.whole(client_id)
        if receiving is None:
            return False
        if receiving.is_right():
            judged = self.receive(client_id, update, receiving.part.frames(), at_s)
        elif receiving.is_unusable:
            judged = self.receive(client_id, update, (), at_s, Reason.WRONG_CHECKSUM)
        else:
            why = "client %d: the update of task %d was damaged on its way"
            log.warning(why, client_id, update.task_id, extra=about_peer(client_id))
            self._stats.refused(Reason.WRONG_CHECKSUM)
            self._sender.send_to_client(client_id, self._uploads.ask(client_id))
            return True
        if judged:
            self._uploads.drop(client_id, at_s, finished=True)
        else:
            self._uploads.pause(client_id, at_s)  # it is announced again
        return True

    def _cannot_keep(self, client_id: int, update: Update, error: OSError, at_s: float) -> None:
        why = "client %d: what comes of its update cannot be kept (%s)"
        log.warning(why, client_id, error.strerror, extra=about_peer(client_id))
        self._uploads.drop(client_id, at_s)
        self._refuse_not_stored(client_id, update)

    @property
    def _may_come(self) -> bool:
        """Whether rows are free. While a round is applied and the next one is complete, they are not."""
        coordinator = self._coordinator
        return coordinator.making is None or len(coordinator.pending) < coordinator.settings.round_size_max

    # --- models ---

    def _credited(self, client_id: int, credit: Credit, at_s: float) -> None:
        size_bytes = self._sender.payload_bytes(client_id)
        has_all = credit.have >= size_bytes
        if has_all and self._downloads.finished(client_id, credit.task_id, at_s):
            self._stats.model_sent(size_bytes)
        elif not self._awaits(client_id, credit.task_id):
            why = f"task {credit.task_id} is not open any more"
            error = Error(reason=Reason.EXPIRED_TASK, message=why, task_id=credit.task_id, refused=credit.type)
            self._sender.send_to_client(client_id, error)
        elif self._sender.bytes_with_task(client_id):
            raise RemoteContractError(Reason.UNEXPECTED_TYPE, "models of this run come with their task")
        elif not has_all:
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
