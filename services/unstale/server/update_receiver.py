"""Updates that are whole: stored if there is room, staged, and judged."""

from collections.abc import Callable, Sequence

from unstale import translate
from unstale.coordinator import actions, events
from unstale.journal.recorder import Arriving, Recorder
from unstale.server.executor import ActionExecutor, Arrived
from unstale.server.sender import Sender
from unstale.server.stats import ServerStats
from unstale.server.update_decoder import UpdateDecoder
from unstale_proto.errors import Reason
from unstale_proto.messages import Error, Update

Perform = Callable[[events.Event, Sequence[actions.Action]], None]


class UpdateReceiver:
    """Protocol thread only. perform: does what follows from an event. row_bytes: of an update as it is stored."""

    def __init__(
        self,
        *,
        decoder: UpdateDecoder,
        recorder: Recorder,
        executor: ActionExecutor,
        sender: Sender,
        stats: ServerStats,
        perform: Perform,
    ) -> None:
        self._recorder = recorder
        self._executor = executor
        self._sender = sender
        self._stats = stats
        self._is_evaluation_wanted = stats.own_evaluations.wanted
        self._perform = perform
        self.fits = decoder.defect_of_header
        self.row_bytes = decoder.row_bytes
        self._stage = decoder.stage

    def receive(
        self,
        client_id: int,
        update: Update,
        frames: Sequence[memoryview],
        at_s: float,
        known_defect: Reason | None = None,
    ) -> bool:
        """Have an update judged that came now; False if it cannot be stored now. known_defect: what is wrong with its
        payload."""
        payload_bytes = sum(map(len, frames))
        if not self._recorder.has_room(max(payload_bytes, self.row_bytes if frames else 0)):
            self.refuse_not_stored(client_id, update.task_id)
            return False
        if update.evaluation is not None and not self._is_evaluation_wanted(client_id, update.base_version):
            update = update.model_copy(
                update={"evaluation": None}
            )  # nobody asked; the update itself is as good
        handle, row, defect, norms = self._stage(client_id, update, frames, known_defect)
        staged = translate.to_staged(update, client_id)
        self._executor.arrived = Arrived(handle, update, staged, payload_bytes, at_s, norms)
        event = translate.to_update_arrived(update, client_id, handle, defect, at_s)
        arriving = Arriving(staged=staged, row=row, evaluation=update.evaluation, norms=norms)
        self._perform(event, self._recorder.update(event, arriving))
        return True

    def has_room(self, client_id: int, update: Update, size_bytes: int) -> bool:
        """Whether so much can be stored for an update; if not, its client is told."""
        if self._recorder.has_room(size_bytes):
            return True
        self.refuse_not_stored(client_id, update.task_id)
        return False

    def refuse_not_stored(self, client_id: int, task_id: int | None) -> None:
        """Tell a client that its update cannot be stored now."""
        self._stats.refused(Reason.NOT_STORED)
        why = "there is no room on the server's disk; keep the update and send it again later"
        self._sender.send_to_client(client_id, Error(reason=Reason.NOT_STORED, message=why, task_id=task_id))
