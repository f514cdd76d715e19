"""Models that go out in chunks: which versions may be sent now, and how far each client has got. Pure.

A version is held in memory as long as a client is being sent it. Few are, so that a slow client does not make us hold
all those that come meanwhile: who wants another waits until one of them is done, and may be given a newer one then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unstale_proto.messages import Chunk, Credit
from unstale_proto.transfer import Sending

Chunks = list[tuple[Chunk, memoryview]]


@dataclass(slots=True)
class _Download:
    """What a client is given. credit: what it said last. sending: None while it waits. moved_s: when it was last heard
    to have more."""

    task_id: int
    version: int
    credit: Credit
    moved_s: float
    sending: Sending | None = None


class Downloads:
    """One for each client. One thread.

    frames_of: of a version that may be given now; None for others. versions_max: being sent at once. patience_s: how
    long one may stand still while others wait.
    """

    def __init__(
        self,
        frames_of: Callable[[int], Sequence[memoryview] | None],
        *,
        chunk_bytes: int,
        versions_max: int,
        patience_s: float,
    ) -> None:
        self._frames_of = frames_of
        self._chunk_bytes = chunk_bytes
        self._versions_max = versions_max
        self._patience_s = patience_s
        self._of: dict[int, _Download] = {}  # by client, that which was asked for first is first
        self._chunk_bytes_of: dict[int, int] = {}  # of clients whose connection was cut
        self.resumed = 0  # went on from what the client had

    @property
    def active(self) -> int:
        """Those that are being sent."""
        return sum(one.sending is not None for one in self._of.values())

    @property
    def waiting(self) -> int:
        """Those that wait."""
        return len(self._of) - self.active

    def due_s(self) -> float | None:
        """When somebody has stood still for too long while others wait."""
        if not self.waiting:
            return None
        return min((one.moved_s for one in self._of.values() if one.sending is not None), default=0.0) + (
            self._patience_s
        )

    def credited(self, client_id: int, credit: Credit, version: int, at_s: float) -> Chunks:
        """A client wants the model of its open task, which is this version. What to send it; nothing while it waits."""
        one = self._of.get(client_id)
        if one is None or one.task_id != credit.task_id:
            self._of.pop(client_id, None)
            one = self._of[client_id] = _Download(credit.task_id, version, credit, at_s)
        elif credit.have > one.credit.have:
            one.moved_s = at_s
        one.credit = credit
        return [] if one.sending is None else one.sending.credited(credit)

    def finished(self, client_id: int, task_id: int) -> bool:
        """A client has all of the model of this task. Whether it was being sent it."""
        one = self._of.get(client_id)
        if one is None or one.task_id != task_id:
            return False
        del self._of[client_id]
        self._chunk_bytes_of.pop(client_id, None)
        return one.sending is not None

    def drop(self, client_id: int) -> None:
        """A client has lost its connection."""
        one = self._of.pop(client_id, None)
        if one is not None and one.sending is not None:
            self._chunk_bytes_of[client_id] = one.sending.next_chunk_bytes

    def sweep(self, awaits: Callable[[int, int], bool]) -> None:
        """Drop what nobody waits for any more."""
        for client_id, one in list(self._of.items()):
            if not awaits(client_id, one.task_id):
                del self._of[client_id]

    def start(self, at_s: float) -> tuple[list[tuple[int, Chunks]], list[tuple[int, int]]]:
        """Go on with those whose turn it is: what to send to whom; and clients with tasks whose version cannot be sent
        any more."""
        started: list[tuple[int, Chunks]] = []
        lost: list[tuple[int, int]] = []
        if not self.waiting:
            return started, lost
        self._stop_the_stuck(at_s)
        for client_id, one in list(self._of.items()):
            if one.sending is not None:
                continue
            frames = self._being_sent().get(one.version)
            if frames is None and len(self._being_sent()) >= self._versions_max:
                continue
            frames = frames or self._frames_of(one.version)
            if frames is None:
                del self._of[client_id]
                lost.append((client_id, one.task_id))
                continue
            one.sending = Sending(
                one.task_id,
                frames,
                chunk_bytes=self._chunk_bytes,
                begin_bytes=self._chunk_bytes_of.get(client_id),
            )
            one.moved_s = at_s
            self.resumed += one.credit.have > 0
            again = one.credit.model_copy(update={"again": True})  # whatever it says, nothing was sent yet
            started.append((client_id, one.sending.credited(again)))
        return started, lost

    def _being_sent(self) -> dict[int, Sequence[memoryview]]:
        return {one.version: one.sending.frames for one in self._of.values() if one.sending is not None}

    def _stop_the_stuck(self, at_s: float) -> None:
        """Who stands still is last in the queue, if another version is waited for."""
        if len(self._being_sent()) < self._versions_max:
            return
        for client_id, one in list(self._of.items()):
            if one.sending is not None and one.moved_s + self._patience_s <= at_s:
                one.sending = None
                del self._of[client_id]
                self._of[client_id] = one
