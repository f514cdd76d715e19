"""From payload frames to a row of the round's matrix: the only copy that the server makes of an update."""

from collections.abc import Sequence
from typing import NamedTuple

from unstale.learner import screen
from unstale.learner.updates import Staging, write
from unstale_proto import limits, payload
from unstale_proto.encodings import FLOAT32, Encoding, Frames
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Update


class Staged(NamedTuple):
    """What became of an update's payload.

    handle: of the row, which waits for `Staging.keep` or `discard`; -1 when it is in none. row: its bytes. defect: what
    is wrong with it.
    """

    handle: int
    row: memoryview
    defect: Reason | None


def _refused(defect: Reason) -> Staged:
    return Staged(-1, memoryview(b""), defect)


class Ingest:
    """Stages updates that fit the model, and says what is wrong with the others. The exchange's thread only.

    signature: of the run's model. encodings: that an update may have. dimension: d, parameters of the model. norm_max:
    L2 norm over which an update is refused; None for none. row_bytes: of an update that is decoded.
    """

    def __init__(
        self,
        staging: Staging,
        *,
        signature: str,
        encodings: Sequence[Encoding],
        dimension: int,
        norm_max: float | None = None,
    ) -> None:
        self._staging = staging
        self._signature = signature
        self._encodings = {encoding.name: encoding for encoding in encodings}
        self.row_bytes = max(limits.FLOAT_BYTES * (each.dimension + each.behind) for each in encodings)
        self._dimension = dimension
        self._norm_max = norm_max

    def fits(self, update: Update) -> Reason | None:
        """What is wrong with an update, going by its header alone."""
        return self._looked_at(update)[1]

    def stage(self, update: Update, frames: Frames, defect: Reason | None = None) -> Staged:
        """Decode the payload into the next free row, or say what is wrong with it. defect: what is known to be."""
        encoding, unfit = self._looked_at(update)
        unfit = defect or unfit
        if unfit is not None or encoding is None:
            return _refused(unfit or Reason.MALFORMED_PAYLOAD)
        try:
            payload.check([len(frame) for frame in frames], encoding.payload_bytes)
        except RemoteContractError as error:
            return _refused(error.reason)
        handle, row = self._staging.row()
        found: str | None
        try:
            write(row.array_D, encoding.decode(frames), update.kind, update.learning_rate, self._dimension)
            found = screen.row_defect(row.array_D, self._dimension, update.kind, self._norm_max)
        except RemoteContractError as error:
            found = error.reason
        if found is not None:
            self._staging.discard(handle)
            return _refused(Reason(found))
        return Staged(handle, row.data, None)

    def _looked_at(self, update: Update) -> tuple[Encoding | None, Reason | None]:
        """How an update is encoded, None where that is not used in this run, and what is wrong with its header."""
        encoding = self._encodings.get(update.encoding or FLOAT32)
        if update.signature != self._signature:
            return encoding, Reason.WRONG_SIGNATURE
        if encoding is None:
            return None, Reason.MALFORMED_PAYLOAD
        return encoding, None if update.payload_bytes == encoding.payload_bytes else Reason.WRONG_SIZE
