"""The updates of clients on this machine: encoded, stored until their verdict, and counted once."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from unstale_client import residuals
from unstale_client.actions import PendingUpdate
from unstale_client.jobs import Job, Settlement
from unstale_client.outbox import Outbox, State
from unstale_client.residuals import Residuals
from unstale_proto import encodings, limits, transfer
from unstale_proto.encodings import FLOAT32, Vector
from unstale_proto.messages import Update

NO_STATE: State = {}


class TrainingState(Protocol):
    """State of a training that its clients keep from task to task. `number` is that of an update's task."""

    def keep(self, client_id: int, number: int) -> bool:
        """The update was accepted. Returns whether the client's state has changed: not on a second call."""

    def drop(self, client_id: int, number: int) -> None:
        """The update was not accepted."""

    def kept(self, client_id: int) -> State:
        """State of a client after its accepted updates."""

    def restore(self, client_id: int, kept: State, pending: Mapping[int, State]) -> None:
        """Restore what an earlier process stored. pending: states after updates without a verdict, by number."""


class UpdateStore:
    """Encodes and stores updates, and applies verdicts to the clients' states. One thread at a time.

    A client's state is that of its training, and the residual of a lossy encoding.
    """

    def __init__(self, outbox: Outbox | None) -> None:
        self._outbox = outbox
        self._residuals = Residuals()
        self._training: TrainingState | None = None
        self._run_id = ""
        self._early: list[Settlement] = []  # verdicts on stored updates, from before the first task of their run

    def begin(self, run_id: str, training: TrainingState | None = None) -> None:
        """A task of this run came. Restores what an earlier process stored for it. training: None for no state."""
        if run_id == self._run_id:
            return
        self._run_id = run_id
        self._training = training
        self._residuals.clear()
        if self._outbox is None:
            return
        for client_id, kept, pending in self._outbox.restore(run_id):
            if training is not None:
                of_training = {number: residuals.without(state) for number, state in pending.items()}
                training.restore(client_id, residuals.without(kept), of_training)
            self._residuals.restore(client_id, kept, pending)
        early, self._early = self._early, []
        for settlement in early:
            if settlement.run_id == run_id:
                self.settle(settlement)

    def put(self, job: Job, update: Update, parts: Sequence[Vector], state: State = NO_STATE) -> PendingUpdate:
        """Encode and store an update.

        Args:
            job: Its task.
            update: Its header, complete except for the payload.
            parts: Of the payload.
            state: Of the training, if the update is accepted.
        """
        encoding = encodings.of_update(job.welcome)
        parcel, residual = self._residuals.encode(job.client_id, job.task.number, parts, encoding)
        payload_bytes = sum(map(len, parcel))
        about_payload = {
            "payload_bytes": payload_bytes,
            "checksum": transfer.checksum(parcel) if payload_bytes > limits.CHUNK_BYTES else None,
            "encoding": None if encoding.name == FLOAT32 else encoding.name,
        }
        pending = PendingUpdate(
            run_id=job.welcome.run_id,
            number=job.task.number,
            update=update.model_copy(update=about_payload),
            parcel=parcel,
        )
        return pending if self._outbox is None else self._outbox.put(job.client_id, pending, {**state, **residual})

    def settle(self, settlement: Settlement) -> None:
        """Apply the verdict on an update, and delete its file."""
        key = settlement.client_id, settlement.run_id, settlement.number
        is_current = settlement.run_id == self._run_id
        changed = is_current and self._changes_state(settlement)
        if self._outbox is None:
            return
        if changed:
            self._outbox.keep(*key, self.kept(settlement.client_id))
        elif not is_current and settlement.accepted and self._outbox.has_state(*key):
            self._early.append(settlement)
        else:
            self._outbox.drop(*key)

    def kept(self, client_id: int) -> State:
        """State of a client after its accepted updates."""
        of_training = NO_STATE if self._training is None else self._training.kept(client_id)
        return {**of_training, **self._residuals.kept(client_id)}

    def _changes_state(self, settlement: Settlement) -> bool:
        """Apply a verdict of the current run. Returns whether the client's state has changed."""
        client_id, number, accepted = settlement.client_id, settlement.number, settlement.accepted
        changed = self._residuals.settle(client_id, number, accepted=accepted)
        if self._training is None:
            return changed
        if accepted:
            return self._training.keep(client_id, number) or changed
        self._training.drop(client_id, number)
        return False
