"""Payloads in chunks: announcements, chunks and requests chosen by the bytes, and the invariants of the answers."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from fuzz import headers
from fuzz.choices import Choices
from fuzz.material import ONES, UPDATES, floats, update_fields
from support.parts import PlayedPart
from unstale.server.state import TransferBounds
from unstale_proto.messages import Chunk, Credit, Task
from unstale_proto.transfer import checksum

BOUNDS = TransferBounds(chunk_bytes=4, window_bytes=4, places=1, parts_max=1, versions=1)
BYTES = len(ONES)
OFFSETS = (0, 4, 8, 2, 3, 5, 6, 7, 9, 12, 2**34, 2**63)


class PlayedParts:
    """Parts in memory. is_full: no part can be created, and no more stored."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._opened: list[PlayedPart] = []
        self._is_full = False

    def open(self, name: str) -> PlayedPart:
        if self._is_full:
            raise OSError("no room")
        self._opened.append(PlayedPart())
        return self._opened[-1]

    def delete(self, name: str) -> None:
        """No part existed before."""

    @property
    def held(self) -> list[PlayedPart]:
        """The existing parts."""
        self._opened = [part for part in self._opened if not part.deleted]
        return self._opened

    def be_full(self, is_full: bool) -> None:
        self._is_full = is_full
        for part in self._opened:
            part.full = is_full


class Says(Protocol):
    """The simulation that sends."""

    choices: Choices
    task_of: dict[bytes, Task]

    def route(self) -> bytes: ...
    def say(self, route: bytes, type_: str, frames: Sequence[bytes] = (), **fields: Any) -> None: ...
    def take_in(self, route: bytes, *frames: bytes) -> None: ...


class Transfers:
    """Steps of a simulation, and the state of its transfers.

    payload_of: the last announcement of a connection. credit_of: its last credit, until used.
    until_of: credit for the model of a task. model_bytes_of: received bytes of it.
    """

    def __init__(self, says: Says) -> None:
        self.says = says
        self.parts = PlayedParts()
        self.payload_of: dict[bytes, bytes] = {}
        self.credit_of: dict[bytes, Credit] = {}
        self.until_of: dict[int, int] = {}
        self.model_bytes_of: dict[int, int] = {}

    # --- steps ---

    def say_announcement(self) -> None:
        """Announce an update, mostly of the last task; its checksum is mostly right."""
        choices, route = self.says.choices, self.says.route()
        task = self.says.task_of.get(route)
        payload, wrong = choices.of(UPDATES), choices.number(16)
        self.payload_of[route] = payload
        fields = {**update_fields(task), "checksum": checksum([memoryview(payload)])}
        if wrong == 1:
            fields["checksum"] = "0" * 16
        elif wrong == 2:
            fields["task_id"] = choices.number(40) + 1
        elif wrong == 3:
            fields["payload_bytes"] = 4 * (choices.number(2**16) + 1)
        elif wrong == 4:
            self.says.take_in(route, headers.changed(fields, choices))
            return
        self.says.take_in(route, headers.packed(fields))

    def say_chunk(self) -> None:
        """At the last credit, if there is one, or anywhere."""
        choices, route = self.says.choices, self.says.route()
        task, credit = self.says.task_of.get(route), self.credit_of.get(route)
        task_id = 1 if task is None else task.task_id
        payload, kind = self.payload_of.get(route, ONES), choices.number(8)
        offset, end = (0, 4) if credit is None else (credit.have, credit.until)
        if kind >= 6:
            offset = choices.of(OFFSETS)
            end = offset + choices.number(12)
        pieces: tuple[bytes, ...] = (payload[min(offset, BYTES) : end],)
        if kind == 5:
            pieces = (choices.taken(choices.number(12)),) * choices.of((1, 0, 2))
        elif kind == 4:
            task_id = choices.number(40) + 1
        self.says.say(route, "chunk", pieces, task_id=task_id, offset=offset)

    def say_credit(self) -> None:
        """Credit for the model of the last task."""
        choices, route = self.says.choices, self.says.route()
        task = self.says.task_of.get(route)
        task_id = choices.number(40) + 1 if task is None or choices.number(8) == 7 else task.task_id
        have = choices.of(OFFSETS)
        self.ask(route, task_id, have, max(have, choices.of((BYTES, *OFFSETS))), again=bool(choices.number(2)))

    def ask(self, route: bytes, task_id: int, have: int, until: int, *, again: bool) -> None:
        self.until_of[task_id] = max(self.until_of.get(task_id, 0), until)
        fields = {"again": True} if again else {}
        self.says.say(route, "credit", task_id=task_id, have=have, until=until, **fields)

    # --- invariants ---

    def sent(self, chunk: Chunk, frames: Sequence[bytes], version: int) -> None:
        """A sent chunk of a model has the right bytes, and was requested."""
        (piece,) = frames
        end = chunk.offset + len(piece)
        assert 0 < len(piece) <= BOUNDS.chunk_bytes
        assert piece == floats(version, version)[chunk.offset : end]
        assert end <= self.until_of.get(chunk.task_id, 0), f"{chunk} goes beyond its credit"
        if chunk.offset <= self.model_bytes_of.get(chunk.task_id, 0):
            self.model_bytes_of[chunk.task_id] = end

    def check(self, note: Callable[[Hashable], None], bounds: TransferBounds) -> None:
        """The server stores at most as many partial updates as its bounds permit."""
        held = self.parts.held
        note(("parts", tuple(part.have for part in held)))
        assert len(held) <= bounds.places + bounds.parts_max
        assert all(part.have <= BYTES for part in held)
