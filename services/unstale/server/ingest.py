"""From payload frames to a row of the round's matrix: the only copy that the server makes of an update."""

from collections.abc import Sequence

from unstale.learner import screen
from unstale.learner.updates import Staging, write
from unstale_proto import payload
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Update

NOT_STAGED = -1


class Ingest:
    """Stages updates that fit the model, and says what is wrong with the others. The exchange's thread only.

    signature: of the run's model. payload_bytes: of one update of it. dimension: d, parameters of the model.
    """

    def __init__(self, staging: Staging, *, signature: str, payload_bytes: int, dimension: int) -> None:
        self._staging = staging
        self._signature = signature
        self._payload_bytes = payload_bytes
        self._dimension = dimension

    def stage(self, update: Update, frames: Sequence[memoryview]) -> tuple[int, Reason | None]:
        """Copy the payload into the next free row.

        Returns (handle, None), the row waiting for `Staging.keep` or `discard`, or (NOT_STAGED, what is wrong).
        """
        if update.signature != self._signature:
            return NOT_STAGED, Reason.WRONG_SIGNATURE
        if update.payload_bytes != self._payload_bytes:
            return NOT_STAGED, Reason.WRONG_SIZE
        try:
            payload.check([len(frame) for frame in frames], self._payload_bytes)
        except RemoteContractError as error:
            return NOT_STAGED, error.reason
        handle, row_D = self._staging.row()
        write(row_D, frames, update.kind, update.learning_rate, self._dimension)
        defect = screen.row_defect(row_D, self._dimension)
        if defect is not None:
            self._staging.discard(handle)
            return NOT_STAGED, Reason(defect)
        return handle, None
