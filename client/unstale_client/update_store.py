"""The updates of clients on this machine: encoded, stored until their verdict, and counted once."""

from collections.abc import Sequence

from unstale_client.actions import PendingUpdate
from unstale_client.jobs import Job, Settlement
from unstale_client.outbox import Outbox
from unstale_client.residuals import Residuals
from unstale_proto import encodings, limits, transfer
from unstale_proto.encodings import FLOAT32, Vector
from unstale_proto.messages import Update


class UpdateStore:
    """Encodes and stores updates, and applies verdicts to the residuals of lossy encodings. One thread at a time."""

    def __init__(self, outbox: Outbox | None) -> None:
        self._outbox = outbox
        self._residuals = Residuals()
        self._run_id = ""
        self._early: list[Settlement] = []  # verdicts on stored updates, from before the first task of their run

    def begin(self, run_id: str) -> None:
        """A task of this run came. Restores what an earlier process stored for it."""
        if run_id == self._run_id:
            return
        self._run_id = run_id
        self._residuals.clear()
        if self._outbox is None:
            return
        for client_id, kept, pending in self._outbox.restore(run_id):
            self._residuals.restore(client_id, kept, pending)
        early, self._early = self._early, []
        for settlement in early:
            if settlement.run_id == run_id:
                self.settle(settlement)

    def put(self, job: Job, update: Update, parts: Sequence[Vector]) -> PendingUpdate:
        """Encode and store an update. update: its header, complete except for the payload. parts: of the payload."""
        encoding = encodings.of_update(job.welcome)
        parcel, state = self._residuals.encode(job.client_id, job.task.number, parts, encoding)
        in_chunks = encoding.payload_bytes > limits.CHUNK_BYTES
        about_payload = {
            "payload_bytes": encoding.payload_bytes,
            "checksum": transfer.checksum(parcel) if in_chunks else None,
            "encoding": None if encoding.name == FLOAT32 else encoding.name,
        }
        pending = PendingUpdate(
            run_id=job.welcome.run_id,
            number=job.task.number,
            update=update.model_copy(update=about_payload),
            parcel=parcel,
        )
        return pending if self._outbox is None else self._outbox.put(job.client_id, pending, state)

    def settle(self, settlement: Settlement) -> None:
        """Apply the verdict on an update, and delete its file."""
        client_id, run_id, number = key = settlement.client_id, settlement.run_id, settlement.number
        is_current = run_id == self._run_id
        changed = is_current and self._residuals.settle(client_id, number, accepted=settlement.accepted)
        if self._outbox is None:
            return
        if changed:
            self._outbox.keep(*key, self._residuals.kept(client_id))
        elif not is_current and settlement.accepted and self._outbox.has_state(*key):
            self._early.append(settlement)
        else:
            self._outbox.drop(*key)
