"""Models that are sent in chunks: which versions may be sent now, and the progress of each client. Pure.

A version is held in memory from when it is announced to a client until that has it. Few are, so that a slow client
does not make us hold all those that come meanwhile: who was given another waits for its turn
(`scheduler.SlotScheduler`), and may be given a newer version then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unstale.server.slot_scheduler import SlotScheduler
from unstale_proto.messages import Chunk, Credit
from unstale_proto.transfer import Sending

Chunks = list[tuple[Chunk, memoryview]]
Sent = tuple[int, bool]
"""A model: its version, and whether it is encoded."""


@dataclass(slots=True)
class _Download:
    """The model of a client's task. credit: its last one, None before. most: bytes that it ever had. sending: None
    while it waits.
    """

    task_id: int
    version: Sent
    credit: Credit | None = None
    most: int = 0
    sending: Sending | None = None


class Downloads:
    """One for each client. One thread.

    frames_of: of a version that may be given now; None for others. scheduler: says which versions are held, and who is
    sent one.
    """

    def __init__(
        self,
        frames_of: Callable[[Sent], Sequence[memoryview] | None],
        *,
        chunk_bytes: int,
        scheduler: SlotScheduler,
    ) -> None:
        self._frames_of = frames_of
        self._chunk_bytes = chunk_bytes
        self._scheduler = scheduler
        self._of: dict[int, _Download] = {}  # by client, that which was asked for first is first
        self._chunk_bytes_of: dict[int, int] = {}  # of clients whose connection was cut
        self._started: dict[int, None] = {}  # clients that have a turn and were sent nothing yet
        self._gone: list[tuple[int, int]] = []  # clients with tasks whose version cannot be sent
        self.resumed = 0  # downloads that continued an earlier one

    @property
    def active(self) -> int:
        """Number of models that are being sent."""
        return sum(one.sending is not None for one in self._of.values())

    @property
    def waiting(self) -> int:
        """Number of clients that wait."""
        return self._scheduler.waiting

    def due_s(self) -> float | None:
        """Time at which `start` is due; None for never."""
        return self._scheduler.due_s()

    def goes_on(self, client_id: int, at_s: float) -> bool:
        """Whether the model of a client waits for its turn, or moves at the least rate at least."""
        return self._scheduler.waits(client_id) or self._scheduler.keeps_pace(client_id, at_s)

    def announced(self, client_id: int, task_id: int, version: Sent, at_s: float) -> None:
        """A client was given a task with a model that it may ask for."""
        self._want(client_id, task_id, version, at_s)
        self._give(at_s)  # at once: soon there may be another version in its place

    def credited(self, client_id: int, credit: Credit, version: Sent, at_s: float) -> Chunks:
        """A client wants the model of its open task, which is this version. What to send it; nothing while it waits."""
        one = self._of.get(client_id)
        if one is None or one.task_id != credit.task_id:
            one = self._want(client_id, credit.task_id, version, at_s)
        if one.credit is None:
            one.most = credit.have
            if credit.have:
                self.resumed += 1
        elif credit.have > one.most:
            self._scheduler.on_bytes(client_id, credit.have - one.most, at_s)
            one.most = credit.have
        one.credit = credit
        self._started.pop(client_id, None)
        return [] if one.sending is None else one.sending.credited(credit)

    def finished(self, client_id: int, task_id: int, at_s: float) -> bool:
        """A client has the complete model of this task. Whether it was being sent."""
        one = self._of.get(client_id)
        if one is None or one.task_id != task_id:
            return False
        self._let_go(client_id, at_s, finished=True)
        self._chunk_bytes_of.pop(client_id, None)
        return one.sending is not None

    def drop(self, client_id: int, at_s: float) -> None:
        """A client has lost its connection."""
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
        """Continue those whose turn it is: clients and chunks; and clients with tasks whose version cannot be sent
        any more.
        """
        self._give(at_s)
        started = []
        for client_id in self._started:
            one = self._of[client_id]
            if one.sending is not None and one.credit is not None:  # whatever it says, nothing was sent yet
                again = one.credit.model_copy(update={"again": True})
                started.append((client_id, one.sending.credited(again)))
        self._started.clear()
        gone, self._gone = self._gone, []
        return started, gone

    def _want(self, client_id: int, task_id: int, version: Sent, at_s: float) -> _Download:
        self._let_go(client_id, at_s)
        one = self._of[client_id] = _Download(task_id, version)
        self._scheduler.wait(client_id, version, at_s)
        return one

    def _let_go(self, client_id: int, at_s: float, *, finished: bool = False) -> None:
        self._scheduler.leave(client_id, at_s, finished=finished)
        self._started.pop(client_id, None)
        self._of.pop(client_id, None)

    def _give(self, at_s: float) -> None:
        while True:
            lost, got = self._scheduler.assign(at_s)
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
        frames = self._stored().get(one.version) or self._frames_of(one.version)
        if frames is None:
            self._gone.append((client_id, one.task_id))
            self._let_go(client_id, at_s)
            return
        begin_bytes = self._chunk_bytes_of.get(client_id)
        one.sending = Sending(one.task_id, frames, chunk_bytes=self._chunk_bytes, begin_bytes=begin_bytes)
        if one.credit is not None:
            self._started[client_id] = None

    def _stored(self) -> dict[Sent, Sequence[memoryview]]:
        return {one.version: one.sending.frames for one in self._of.values() if one.sending is not None}
