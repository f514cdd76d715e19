"""Models that go out in chunks: which versions may be sent now, and how far each client has got. Pure.

A version is held in memory from when it is announced to a client until that has it. Few are, so that a slow client
does not make us hold all those that come meanwhile: who was given another waits until one of them is done, and may be
given a newer one then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unstale_proto.messages import Chunk, Credit
from unstale_proto.transfer import Sending

Chunks = list[tuple[Chunk, memoryview]]
Sent = tuple[int, bool]
"""Which model: its version, and whether it is encoded."""


@dataclass(slots=True)
class _Download:
    """What a client is given. credit: what it said last, None before it has asked. sending: None while it waits.
    moved_s: when it was last heard to have more."""

    task_id: int
    version: Sent
    moved_s: float
    credit: Credit | None = None
    sending: Sending | None = None


class Downloads:
    """One for each client. One thread.

    frames_of: of a version that may be given now; None for others. versions_max: held at once. patience_s: how
    long one may stand still while others wait.
    """

    def __init__(
        self,
        frames_of: Callable[[Sent], Sequence[memoryview] | None],
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

    def announced(self, client_id: int, task_id: int, version: Sent, at_s: float) -> None:
        """A client was given a task with a model that it may ask for."""
        self._of.pop(client_id, None)
        one = self._of[client_id] = _Download(task_id, version, at_s)
        self._stop_the_stuck(at_s)
        self._begin(client_id, one, at_s)

    def credited(self, client_id: int, credit: Credit, version: Sent, at_s: float) -> Chunks:
        """A client wants the model of its open task, which is this version. What to send it; nothing while it waits."""
        one = self._of.get(client_id)
        if one is None or one.task_id != credit.task_id:
            self._of.pop(client_id, None)
            one = self._of[client_id] = _Download(credit.task_id, version, at_s)
        elif one.credit is None or credit.have > one.credit.have:
            one.moved_s = at_s
        if one.credit is None and credit.have:
            self.resumed += 1
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
            sending = self._begin(client_id, one, at_s)
            if sending is not None:
                if one.credit is not None:  # whatever it says, nothing was sent yet
                    again = one.credit.model_copy(update={"again": True})
                    started.append((client_id, sending.credited(again)))
            elif len(self._held()) < self._versions_max:
                del self._of[client_id]
                lost.append((client_id, one.task_id))
        return started, lost

    def _begin(self, client_id: int, one: _Download, at_s: float) -> Sending | None:
        """Hold its version, if that can be."""
        held = self._held()
        frames = held.get(one.version)
        if frames is None and len(held) < self._versions_max:
            frames = self._frames_of(one.version)
        if frames is None:
            return None
        begin_bytes = self._chunk_bytes_of.get(client_id)
        one.sending = Sending(one.task_id, frames, chunk_bytes=self._chunk_bytes, begin_bytes=begin_bytes)
        one.moved_s = at_s
        return one.sending

    def _held(self) -> dict[Sent, Sequence[memoryview]]:
        return {one.version: one.sending.frames for one in self._of.values() if one.sending is not None}

    def _stop_the_stuck(self, at_s: float) -> None:
        """Who stands still is last in the queue, where there is no room for another version."""
        if len(self._held()) < self._versions_max:
            return
        for client_id, one in list(self._of.items()):
            if one.sending is not None and one.moved_s + self._patience_s <= at_s:
                one.sending = None
                del self._of[client_id]
                self._of[client_id] = one
