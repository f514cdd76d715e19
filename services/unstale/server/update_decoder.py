"""Decodes payload frames into a row of the round's matrix: the only copy that the server makes of an update."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass

from unstale import translate
from unstale.journal.recorder import IncomingUpdate
from unstale.learner.row_checks import Layout, Norms
from unstale.learner.updates import Staging
from unstale.server.admission import Admission
from unstale_proto import limits, payload
from unstale_proto.encodings import FLOAT32, Encoding, Frames
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Update

_NO_ROW = memoryview(b"")


@dataclass(eq=False)
class UpdateDecoder:
    """Decodes and stages updates that fit the model. Protocol thread only."""

    staging: Staging
    _: KW_ONLY
    signature: str
    encodings: InitVar[Sequence[Encoding]]  # that an update may have
    layout: Layout
    admission: Admission

    def __post_init__(self, encodings: Sequence[Encoding]) -> None:
        self._encodings = {encoding.name: encoding for encoding in encodings}
        self.row_bytes = max(limits.FLOAT_BYTES * (each.dimension + each.behind) for each in encodings)
        assert self.row_bytes == limits.FLOAT_BYTES * sum(self.layout), f"{self.layout}, rows of {self.row_bytes} bytes"

    def defect_of_header(self, client_id: int, update: Update) -> Reason | None:
        """Defect of the header of an update, None for none."""
        return self._check_header(client_id, update)[1]

    def stage(
        self, client_id: int, update: Update, frames: Frames, at_s: float, defect: Reason | None = None
    ) -> IncomingUpdate:
        """Decode an update into the next free row, if it fits. defect: of the payload, if it is known already."""
        encoding, header_defect = self._check_header(client_id, update)
        handle, row, norms = -1, _NO_ROW, None
        if defect is None:
            defect = header_defect
        if defect is None:
            assert encoding is not None
            handle, row, defect, norms = self._decode(client_id, update, frames, encoding)
        return IncomingUpdate(
            translate.to_update_arrived(update, client_id, handle, defect, at_s),
            translate.to_staged(update, client_id),
            row,
            norms,
            update.evaluation,
            encoding.payload_bytes if defect is None and encoding is not None else sum(map(len, frames)),
        )

    def _decode(
        self, client_id: int, update: Update, frames: Frames, encoding: Encoding
    ) -> tuple[int, memoryview, Reason | None, Norms | None]:
        """Handle and bytes of the row, defect and norms; the handle is -1 with a defect."""
        handle, row_bytes = -1, _NO_ROW
        norms: Norms | None = None
        try:
            payload.check([len(frame) for frame in frames], encoding.payload_bytes)
            decoded = encoding.decode(frames)
            handle, row = self.staging.fill(decoded, update.kind, update.learning_rate, self.layout.dimension)
            norms, defect = self.admission.screen(client_id, update, row.array_D, self.layout)
            row_bytes = row.data
        except RemoteContractError as error:
            defect = error.reason
        if defect is None:
            return handle, row_bytes, None, norms
        if handle >= 0:
            self.staging.discard(handle)
        return -1, _NO_ROW, defect, norms

    def _check_header(self, client_id: int, update: Update) -> tuple[Encoding | None, Reason | None]:
        """Encoding of an update, None where this run does not use it, and the defect of its header."""
        encoding = self._encodings.get(update.encoding or FLOAT32)
        if update.signature != self.signature:
            return encoding, Reason.WRONG_SIGNATURE
        if encoding is None:
            return None, Reason.MALFORMED_PAYLOAD
        if update.payload_bytes != encoding.payload_bytes:
            return encoding, Reason.WRONG_SIZE
        return encoding, Reason.MALFORMED_PAYLOAD if self.admission.refuses(client_id, update) else None
