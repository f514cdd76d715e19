"""Models that are sent in chunks: the versions that may be sent now, and the progress of each client. Pure.

A version stays in memory from its announcement until the client has it. Few versions do: a client of another version
waits for its turn (`SlotScheduler`), and may then receive a newer version.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unstale.server.slot_scheduler import Counts, SlotScheduler
from unstale_proto.messages import Chunk, Credit
from unstale_proto.transfer import Sending

Chunks = list[tuple[Chunk, memoryview]]
Sent = tuple[int, bool]
"""A model: its version, and whether it is encoded."""


@dataclass(slots=True)
class _Download:
    """The model of a client's task."""

    task_id: int
    version: Sent
    credit: Credit | None = None  # its last one
    most: int = 0  # most bytes that the client ever had
    sending: Sending | None = None  # None while it waits


@dataclass(slots=True, kw_only=True, eq=False)
class Downloads:
    """At most one download for each client. One thread."""

    chunk_bytes: int
    scheduler: SlotScheduler
    models: dict[Sent, Sequence[memoryview]] = field(init=False, default_factory=dict)
    """Frames of the versions that may be sent now; the sender adds and removes them."""
    _of: dict[int, _Download] = field(init=False, default_factory=dict)  # by client, in order of request
    _chunk_bytes_of: dict[int, int] = field(init=False, default_factory=dict)  # of clients whose connection was cut
    _started: dict[int, None] = field(init=False, default_factory=dict)  # have a turn, were sent nothing
    _gone: list[tuple[int, int]] = field(init=False, default_factory=list)  # clients with tasks whose version is gone
    _resumed: int = field(init=False, default=0)  # downloads that continued an earlier one

    def take_counts(self) -> Counts:
        """Models that are being sent, clients that wait, and downloads that were resumed since the last call."""
        active = sum(one.sending is not None for one in self._of.values())
        resumed, self._resumed = self._resumed, 0
        return active, self.scheduler.waiting, resumed

    def announced(self, client_id: int, task_id: int, version: Sent, at_s: float) -> None:
        """Record a task whose model the client may request."""
        self._want(client_id, task_id, version, at_s)
        self._give(at_s)  # now, because a newer version may replace this one

    def credited(self, client_id: int, credit: Credit, version: Sent, at_s: float) -> Chunks:
        """Take the credit of a client for the model of its open task; returns chunks, none before its turn."""
        one = self._of.get(client_id)
        if one is None or one.task_id != credit.task_id:
            one = self._want(client_id, credit.task_id, version, at_s)
        if one.credit is None:
            one.most = credit.have
            if credit.have:
                self._resumed += 1
        elif credit.have > one.most:
            self.scheduler.on_bytes(client_id, credit.have - one.most, at_s)
            one.most = credit.have
        one.credit = credit
        self._started.pop(client_id, None)
        return [] if one.sending is None else one.sending.credited(credit)

    def finished(self, client_id: int, task_id: int, at_s: float) -> bool:
        """End the download of a client that has the complete model; returns whether it was being sent."""
        one = self._of.get(client_id)
        if one is None or one.task_id != task_id:
            return False
        self._let_go(client_id, at_s, finished=True)
        self._chunk_bytes_of.pop(client_id, None)
        return one.sending is not None

    def drop(self, client_id: int, at_s: float) -> None:
        """Drop the download of a client that lost its connection."""
        one = self._of.get(client_id)
        if one is not None:
            self._let_go(client_id, at_s)
            if one.sending is not None:
                self._chunk_bytes_of[client_id] = one.sending.next_chunk_bytes

    def sweep(self, awaits: Callable[[int, int], bool], at_s: float) -> None:
        """Drop transfers whose task is not open any more."""
        for client_id, one in list(self._of.items()):
            if not awaits(client_id, one.task_id):
                self._let_go(client_id, at_s)

    def start(self, at_s: float) -> tuple[list[tuple[int, Chunks]], list[tuple[int, int]]]:
        """Start downloads that got a turn: clients with chunks to send, and clients with tasks that cannot be sent."""
        self._give(at_s)
        started = []
        for client_id in self._started:
            one = self._of[client_id]
            if one.sending is not None and one.credit is not None:  # nothing was sent yet, so `again` is true
                again = one.credit.model_copy(update={"again": True})
                started.append((client_id, one.sending.credited(again)))
        self._started.clear()
        gone, self._gone = self._gone, []
        return started, gone

    def _want(self, client_id: int, task_id: int, version: Sent, at_s: float) -> _Download:
        self._let_go(client_id, at_s)
        one = self._of[client_id] = _Download(task_id, version)
        self.scheduler.wait(client_id, version, at_s)
        return one

    def _let_go(self, client_id: int, at_s: float, *, finished: bool = False) -> None:
        self.scheduler.leave(client_id, at_s, finished=finished)
        self._started.pop(client_id, None)
        self._of.pop(client_id, None)

    def _give(self, at_s: float) -> None:
        while True:
            lost, got = self.scheduler.assign(at_s)
            for client_id in lost:
                self._of[client_id].sending = None
                self._started.pop(client_id, None)
            for client_id in got:
                self._begin(client_id, at_s)
            if not got:
                return

    def _begin(self, client_id: int, at_s: float) -> None:
        """Hold the version of a download, if that is possible."""
        one = self._of[client_id]
        stored = (other.sending.frames for other in self._of.values() if other.sending and other.version == one.version)
        frames = next(stored, None) or self.models.get(one.version)
        if frames is None:
            self._gone.append((client_id, one.task_id))
            self._let_go(client_id, at_s)
            return
        begin_bytes = self._chunk_bytes_of.get(client_id)
        one.sending = Sending(one.task_id, frames, chunk_bytes=self.chunk_bytes, begin_bytes=begin_bytes)
        if one.credit is not None:
            self._started[client_id] = None
