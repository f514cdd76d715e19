"""Sessions of one client, recorded from the client session and the server protocol (PROTOCOL.md 11).

    PYTHONPATH=tests:scripts .venv/bin/python -m support.transcripts

writes the missing files of proto/vectors/transcripts. To record a transcript again, delete its file first.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import wire_schema
from support.parts import PlayedPart
from support.played import PlayedServer
from support.wire import RUN, update_of, welcome
from unstale.server.state import TransferBounds
from unstale_client.actions import Action, Payload, PendingUpdate, Retire, Send, Settle, Train
from unstale_client.models import Models
from unstale_client.session import ClientSession
from unstale_proto import codec, signature
from unstale_proto.messages import Ack, Credit, Message, Task, Update
from unstale_proto.transfer import checksum

FOLDER = wire_schema.PROTO / "vectors" / "transcripts"
SESSION, SECOND_SESSION = "c0" * 16, "c1" * 16
SIGNATURE = signature.digest(welcome().tensors)
DELTA = np.ones(2, dtype="<f4").tobytes()
WHOLE, CUT = 4 * 1024 * 1024, 2  # chunk_bytes: payloads with their messages, or in chunks of 2 bytes

UNSEEN = "another connection, which the client does not see"
RESTART = "the process of the client is killed and starts again with its stored update"
ROUND = "the server applies a round"
"""Events that are not in the state table of PROTOCOL.md 4.8."""

Step = dict[str, Any]


def server_of(about: dict[str, Any]) -> PlayedServer:
    """The server of a transcript."""
    bounds = TransferBounds(chunk_bytes=about["model_chunk_bytes"], window_bytes=about["window_bytes"])
    return PlayedServer(1, about["rounds"], transfers=bounds, signature=SIGNATURE)


def session_of(about: dict[str, Any], *, session: str = SESSION, kept: Sequence[PendingUpdate] = ()) -> ClientSession:
    """A process of the client of a transcript. kept: updates that it has stored."""
    models = Models(lambda _: PlayedPart(), PlayedPart, window_bytes=about["window_bytes"])
    return ClientSession(0, session, kept, models=models, chunk_bytes=about["update_chunk_bytes"])


def kept(update: Update, payload: Sequence[memoryview]) -> PendingUpdate:
    """A stored update of the first task."""
    return PendingUpdate(run_id=RUN, number=0, update=update, parcel=payload)


def happened(action: Action) -> str:
    """An action of the client, for people."""
    match action:
        case Send():
            return f"sends {action.message.type}"
        case Train():
            return f"trains task {action.task.task_id}"
        case Settle():
            return f"deletes its update number {action.number}, {'accepted' if action.accepted else 'rejected'}"
        case Retire():
            return f"ends: {action.reason}"
        case _:
            return "reports"


def written(message: Message, frames: Payload) -> Step:
    fields = message.model_dump(mode="json", exclude_none=True)
    return {
        "type": message.type,
        "fields": wire_schema.exact(fields),
        "header": codec.encode(message).hex(),
        "payload": [bytes(frame).hex() for frame in frames],
    }


class Recorder:
    """A client, a server and the path between them. Messages wait until `up` or `down` moves the oldest one."""

    def __init__(self, what: str, *, model_chunk_bytes: int, update_chunk_bytes: int, rounds: int = 5) -> None:
        self.about: dict[str, Any] = {
            "what": what,
            "rounds": rounds,
            "model_chunk_bytes": model_chunk_bytes,
            "update_chunk_bytes": update_chunk_bytes,
            "window_bytes": 4,
        }
        self.server, self.session = server_of(self.about), session_of(self.about)
        self.steps: list[Step] = []
        self.task: Task | None = None
        self.update: Update | None = None  # the last one
        self._connection = 0
        self._up: deque[Send] = deque()
        self._down: deque[tuple[Message, Sequence[bytes]]] = deque()

    @property
    def _route(self) -> bytes:
        return b"%d" % self._connection

    def content(self) -> dict[str, Any]:
        assert not self._up and not self._down, "a transcript ends when everything has arrived"
        return self.about | {"steps": self.steps}

    # --- events ---

    def reachable(self) -> None:
        self._event("reachable", self.session.reachable)

    def breaks(self, *, seen: bool) -> None:
        """The connection breaks with everything in flight, and libzmq makes another. seen: by the client."""
        while self._up:
            self.up(lost=True)
        while self._down:
            self.down(lost=True)
        self._connection += 1
        if seen:
            self._event("unreachable", lambda _: self.session.unreachable() or [])
        else:
            self._step({"event": UNSEEN}, [])

    def restarts(self) -> None:
        """The client's process is killed with its connection, and starts again with the stored update."""
        while self._up:
            self.up(lost=True)
        while self._down:
            self.down(lost=True)
        self._connection += 1
        assert self.update is not None
        payload = [memoryview(DELTA)]
        self.session = session_of(self.about, session=SECOND_SESSION, kept=[kept(self.update, payload)])
        self._step({"event": RESTART, "session": SECOND_SESSION, **written(self.update, payload)}, [])

    def timer(self) -> None:
        assert self.session.due_s is not None
        self.server.now_s = self.session.due_s
        self._event("timer", self.session.tick)

    def trained(self) -> None:
        """The training of the task ends."""
        assert self.task is not None
        in_chunks = self.about["update_chunk_bytes"] == CUT
        update = update_of(self.task, kind="delta", checksum=checksum([memoryview(DELTA)]) if in_chunks else None)
        update = update.model_copy(update={"payload_bytes": len(DELTA), "signature": SIGNATURE})
        step = {"event": "trained", **written(update, [memoryview(DELTA)])}
        self.update = update
        self._step(step, self._execute(self.session.trained(RUN, update, [memoryview(DELTA)])))

    def round(self) -> None:
        """The server applies the accepted updates."""
        self.server.compute()
        self._step({"event": ROUND}, self._sent())

    # --- messages ---

    def up(self, *, lost: bool = False, twice: bool = False) -> None:
        """The oldest message of the client arrives, or is lost. twice: the path delivers it and a copy."""
        send = self._up.popleft()
        step = {"from": "client", **written(send.message, send.parcel)}
        if lost:
            self._step(step | {"lost": True}, [])
            return
        for copy in [{}, {"copy": True}][: 1 + twice]:
            frames = [memoryview(bytes(frame)) for frame in send.parcel]
            self.server.protocol.on_message(self._route, codec.encode(send.message), frames)
            self.server.protocol.flush()
            self._step(step | copy, self._sent())

    def down(self, *, lost: bool = False, twice: bool = False) -> None:
        """The oldest message of the server arrives, or is lost. twice: as in `up`."""
        message, frames = self._down.popleft()
        parcel = [memoryview(frame) for frame in frames]
        step = {"from": "server", **written(message, parcel)}
        if lost:
            self._step(step | {"lost": True}, [])
            return
        for copy in [{}, {"copy": True}][: 1 + twice]:
            self._step(step | copy, self._execute(self.session.received(message, parcel, self.server.now_s)))

    def settle(self) -> None:
        """Everything arrives."""
        while self._up or self._down:
            if self._up:
                self.up()
            else:
                self.down()

    def until(self, kind: type[Message]) -> None:
        """Everything arrives until the oldest message of the server has this type."""
        while not (self._down and isinstance(self._down[0][0], kind)):
            if self._up:
                self.up()
            else:
                self.down()

    # --- the parts of a step ---

    def _event(self, name: str, call: Callable[[float], list[Action]]) -> None:
        self._step({"event": name}, self._execute(call(self.server.now_s)))

    def _step(self, step: Step, then: list[str]) -> None:
        self.steps.append({"at_s": self.server.now_s, **step, "then": then})

    def _sent(self) -> list[str]:
        """Take the messages that the server has sent."""
        sent = self.server.wire.sent.pop(self._route, [])
        self._down.extend(sent)
        return [f"sends {message.type}" for message, _ in sent]

    def _execute(self, actions: Sequence[Action]) -> list[str]:
        for action in actions:
            if isinstance(action, Send):
                self._up.append(action)
            elif isinstance(action, Train):
                self.task = action.task
        return [happened(action) for action in actions]


def round_of_two() -> Recorder:
    one = Recorder("a whole session", model_chunk_bytes=WHOLE, update_chunk_bytes=WHOLE, rounds=2)
    one.reachable()
    one.settle()
    one.timer()
    one.settle()
    for _ in range(2):
        one.trained()
        one.settle()
        one.round()
        one.settle()
    return one


def reconnect() -> Recorder:
    one = Recorder("an update is lost with its connection", model_chunk_bytes=WHOLE, update_chunk_bytes=WHOLE)
    one.reachable()
    one.settle()
    one.trained()
    one.breaks(seen=False)
    one.timer()
    one.settle()
    return one


def lost_ack() -> Recorder:
    one = Recorder("the ack of an update is lost", model_chunk_bytes=WHOLE, update_chunk_bytes=WHOLE)
    one.reachable()
    one.settle()
    one.trained()
    one.until(Ack)
    one.down(lost=True)
    one.timer()
    one.settle()
    return one


def lost_task() -> Recorder:
    one = Recorder("a task is lost", model_chunk_bytes=WHOLE, update_chunk_bytes=WHOLE)
    one.reachable()
    one.until(Task)
    one.down(lost=True)
    one.timer()
    one.settle()
    one.timer()
    one.settle()
    one.trained()
    one.settle()
    return one


def outbox() -> Recorder:
    one = Recorder("the client is killed before the ack", model_chunk_bytes=WHOLE, update_chunk_bytes=WHOLE)
    one.reachable()
    one.settle()
    one.trained()
    one.until(Ack)
    one.restarts()
    one.reachable()
    one.settle()
    one.round()
    one.settle()
    return one


def chunks() -> Recorder:
    one = Recorder(
        "a connection breaks within a model and within an update", model_chunk_bytes=CUT, update_chunk_bytes=CUT
    )
    one.reachable()
    one.until(Task)
    one.down()
    one.up()
    one.down()  # the first chunk of the model
    one.breaks(seen=True)
    one.reachable()
    one.settle()
    one.trained()
    one.until(Credit)
    one.down()
    one.up()  # the first chunk of the update
    one.breaks(seen=True)
    one.reachable()
    one.settle()
    return one


def doubled_again() -> Recorder:
    one = Recorder("an announcement and a credit arrive twice", model_chunk_bytes=WHOLE, update_chunk_bytes=CUT)
    one.reachable()
    one.settle()
    one.trained()
    one.up(twice=True)
    one.down(twice=True)
    one.settle()
    return one


SCENARIOS: dict[str, Callable[[], Recorder]] = {
    "round": round_of_two,
    "reconnect": reconnect,
    "lost_ack": lost_ack,
    "lost_task": lost_task,
    "outbox": outbox,
    "chunks": chunks,
    "doubled_again": doubled_again,
}


def text(name: str) -> str:
    """The transcript of a scenario, as its file contains it."""
    return json.dumps(SCENARIOS[name]().content(), indent=1) + "\n"


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in SCENARIOS:
        path = folder / f"{name}.json"
        if not path.exists():
            path.write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
