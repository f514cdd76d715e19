"""The unacknowledged updates of a client, and the decision when to send them again. No I/O and no clock."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from unstale_client.actions import PendingUpdate, Send, Settle
from unstale_proto import limits
from unstale_proto.messages import Credit
from unstale_proto.transfer import Sending


@dataclass(slots=True)
class Entry:
    """An unacknowledged update. Transmissions of all updates are numbered together."""

    pending: PendingUpdate
    beat: int  # number of the next heartbeat at the time of the latest message about it, sent or received
    sending: Sending | None  # its payload in chunks; None if the payload is sent with the update
    first_sent: int | None = None  # number of its first transmission
    last_sent: int | None = None  # number of its latest transmission

    def settled(self, *, accepted: bool) -> Settle:
        return Settle(run_id=self.pending.run_id, number=self.pending.number, accepted=accepted)


class PendingUpdates:
    """Entries by task id. The argument `beat` of each method is the number of the next heartbeat."""

    def __init__(self, updates: Iterable[PendingUpdate], *, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._transmissions = 0
        self._entries: dict[int, Entry] = {}
        for pending in updates:
            self.add(pending, beat=0)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def add(self, pending: PendingUpdate, *, beat: int) -> Entry:
        update, sending = pending.update, None
        if update.checksum is not None:
            sending = Sending(update.task_id, pending.parcel, chunk_bytes=self._chunk_bytes)
        entry = self._entries[update.task_id] = Entry(pending, beat, sending)
        return entry

    def acknowledge(self, task_id: int) -> Entry | None:
        return self._entries.pop(task_id, None)

    def settle_by(self, accepted_id: int | None) -> list[Settle]:
        """Settle the updates whose verdict a new task reveals. accepted_id: the newest accepted task, 0 for none; None
        for a task that does not name it.

        When the server gives a task, it has closed all earlier ones, and accepts none of their updates any more.
        """
        if accepted_id is None:
            return []
        revealed = sorted(task_id for task_id in self._entries if task_id >= accepted_id)
        return [self._entries.pop(task_id).settled(accepted=task_id == accepted_id) for task_id in revealed]

    def drop_surplus(self) -> list[Settle]:
        """Make room for one more: a hello names at most HOLDING_MAX updates. The lease of the oldest ended long ago."""
        if len(self._entries) < limits.HOLDING_MAX:
            return []
        return [self._entries.pop(min(self._entries)).settled(accepted=False)]

    def drop_other_runs(self, run_id: str) -> list[Settle]:
        dropped = [entry for entry in self._entries.values() if entry.pending.run_id != run_id]
        for entry in dropped:
            del self._entries[entry.pending.update.task_id]
        return [entry.settled(accepted=False) for entry in dropped]

    def credited(self, credit: Credit, *, beat: int) -> list[Send]:
        """Take a credit of the server; returns the chunks that it allows."""
        entry = self._entries.get(credit.task_id)
        if entry is None or entry.sending is None:
            return []
        entry.beat = beat
        return [Send(message=chunk, parcel=[piece]) for chunk, piece in entry.sending.credited(credit)]

    def send_all(self, *, beat: int) -> list[Send]:
        return self.send(self._entries.values(), beat=beat)

    def send_unanswered(self, answered: int, *, beat: int) -> list[Send]:
        """Resend the updates without a message since heartbeat `answered` was sent: they or their acks were lost."""
        return self.send([entry for entry in self._entries.values() if entry.beat <= answered], beat=beat)

    def send_overtaken(self, acknowledged: Entry, *, beat: int) -> list[Send]:
        """Resend the updates that were sent before an acknowledged one. Acks keep the order of updates, so these
        updates or their acks were lost. Updates in chunks are skipped, because their acks take longer.
        """
        first_sent = acknowledged.first_sent
        if first_sent is None:
            return []
        overtaken = [
            entry
            for entry in self._entries.values()
            if entry.sending is None and entry.last_sent is not None and entry.last_sent < first_sent
        ]
        return self.send(overtaken, beat=beat)

    def send(self, entries: Iterable[Entry], *, beat: int) -> list[Send]:
        sends = []
        for entry in entries:
            entry.beat, entry.last_sent = beat, self._transmissions
            entry.first_sent = self._transmissions if entry.first_sent is None else entry.first_sent
            self._transmissions += 1
            parcel: Sequence[memoryview] = entry.pending.parcel if entry.sending is None else ()
            sends.append(Send(message=entry.pending.update, parcel=parcel))
        return sends
