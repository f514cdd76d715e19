"""From payload frames to a row of the round's matrix: the only copy that the server makes of an update."""

from collections.abc import Sequence
from typing import NamedTuple

from unstale.learner.row_checks import Layout, Norms
from unstale.learner.updates import Staging, write
from unstale.server.admission import Admission
from unstale_proto import limits, payload
from unstale_proto.encodings import FLOAT32, Encoding, Frames
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Update


class Staged(NamedTuple):
    """What became of an update's payload.

    handle: of the row, which waits for `Staging.keep` or `discard`; -1 when it is in none. row: its bytes. defect: what
    is wrong with it. norms: of its vectors; None where they were not measured.
    """

    handle: int
    row: memoryview
    defect: Reason | None
    norms: Norms | None = None


def _refused(defect: Reason, norms: Norms | None = None) -> Staged:
    return Staged(-1, memoryview(b""), defect, norms)


class UpdateDecoder:
    """Stages updates that fit the model, and says what is wrong with the others. Protocol thread only.

    signature: of the run's model. encodings: that an update may have. layout: of a row. admission: judges what updates
    claim. row_bytes: of an update that is decoded.
    """

    def __init__(
        self,
        staging: Staging,
        *,
        signature: str,
        encodings: Sequence[Encoding],
        layout: Layout,
        admission: Admission,
    ) -> None:
        self._staging = staging
        self._signature = signature
        self._encodings = {encoding.name: encoding for encoding in encodings}
        self.row_bytes = max(limits.FLOAT_BYTES * (each.dimension + each.behind) for each in encodings)
        assert self.row_bytes == limits.FLOAT_BYTES * sum(layout), (
            f"{layout}, and rows of {self.row_bytes} bytes"
        )
        self._layout = layout
        self._admission = admission

    def defect_of_header(self, client_id: int, update: Update) -> Reason | None:
        """What is wrong with an update, going by its header alone."""
        return self._check_header(client_id, update)[1]

    def stage(self, client_id: int, update: Update, frames: Frames, defect: Reason | None = None) -> Staged:
        """Decode the payload into the next free row, or say what is wrong with it. defect: what is known to be."""
        encoding, unfit = self._check_header(client_id, update)
        unfit = defect or unfit
        if unfit is not None or encoding is None:
            return _refused(unfit or Reason.MALFORMED_PAYLOAD)
        try:
            payload.check([len(frame) for frame in frames], encoding.payload_bytes)
        except RemoteContractError as error:
            return _refused(error.reason)
        handle, row = self._staging.row()
        norms: Norms | None = None
        try:
            write(
                row.array_D,
                encoding.decode(frames),
                update.kind,
                update.learning_rate,
                self._layout.dimension,
            )
            norms, found = self._admission.screen(client_id, update, row.array_D, self._layout)
        except RemoteContractError as error:
            found = error.reason
        if found is not None:
            self._staging.discard(handle)
            return _refused(found, norms)
        return Staged(handle, row.data, None, norms)

    def _check_header(self, client_id: int, update: Update) -> tuple[Encoding | None, Reason | None]:
        """How an update is encoded, None where that is not used in this run, and what is wrong with its header."""
        encoding = self._encodings.get(update.encoding or FLOAT32)
        if update.signature != self._signature:
            return encoding, Reason.WRONG_SIGNATURE
        if encoding is None:
            return None, Reason.MALFORMED_PAYLOAD
        if update.payload_bytes != encoding.payload_bytes:
            return encoding, Reason.WRONG_SIZE
        return encoding, Reason.MALFORMED_PAYLOAD if self._admission.refuses(client_id, update) else None
