"""Receives complete updates: checks the room on the disk, stages them, and passes them to the coordinator."""

from collections.abc import Sequence

from unstale.journal.recorder import Recorder
from unstale.server.executor import ActionExecutor
from unstale.server.sender import Sender
from unstale.server.stats import ServerStats
from unstale.server.update_decoder import UpdateDecoder
from unstale_proto.errors import Reason
from unstale_proto.messages import Error, Update


class UpdateReceiver:
    """Protocol thread only.

    Attributes:
        defect_of_header: Defect of an update, from its header alone.
        row_bytes: Size of an update as it is stored.
    """

    def __init__(
        self,
        *,
        decoder: UpdateDecoder,
        recorder: Recorder,
        executor: ActionExecutor,
        sender: Sender,
        stats: ServerStats,
    ) -> None:
        self._recorder = recorder
        self._executor = executor
        self._sender = sender
        self._stats = stats
        self._is_evaluation_wanted = stats.own_evaluations.is_wanted
        self.defect_of_header = decoder.defect_of_header
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
        """Validate an update and pass it to the coordinator.

        Args:
            client_id: Of the sender.
            update: Header.
            frames: Payload.
            at_s: Time of arrival.
            known_defect: Defect of the payload that is known already.

        Returns:
            False where the disk has no room for it now.
        """
        size_bytes = self.row_bytes if frames else 0
        if not self.has_room(client_id, update, max(sum(map(len, frames)), size_bytes)):
            return False
        if update.evaluation is not None and not self._is_evaluation_wanted(client_id, update.base_version):
            update = update.model_copy(update={"evaluation": None})  # it was not requested
        self._executor.on_update(self._stage(client_id, update, frames, at_s, known_defect))
        return True

    def has_room(self, client_id: int, update: Update, size_bytes: int) -> bool:
        """Whether so many bytes can be stored for an update. If not, its client receives an error."""
        if self._recorder.has_room(size_bytes):
            return True
        self.refuse_not_stored(client_id, update.task_id)
        return False

    def refuse_not_stored(self, client_id: int, task_id: int | None) -> None:
        """Send a client the error that its update cannot be stored now."""
        self._stats.refused(Reason.NOT_STORED)
        why = "there is no room on the server's disk; keep the update and send it again later"
        self._sender.send_to_client(client_id, Error(reason=Reason.NOT_STORED, message=why, task_id=task_id))
