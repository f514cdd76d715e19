"""One client's side of the wire contract, as a pure state machine: what happened in, what to do out.

    away --reachable--> greeting --welcome--> in
    in --silence, `hello-first`, stop `shutdown`--> greeting
    greeting, in --unreachable--> away
    in --`quarantined`--> greeting, after a pause
    any --stop `finished`, `superseded` or failed, leave--> over

An update is kept from the moment it is made until it is acknowledged, also over the death of the process (`outbox`
stores it; what was found there is where a session begins), and is sent again when there is proof that it, or
its ack, was lost: after a reconnect, or when the server answers a heartbeat that left after it. That a task was lost is
for the server to find: each heartbeat says which is the newest that came.

A large update is announced, and goes in chunks as the server gives credit; a large model comes so. What is lost of
either is found in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from unstale.client.actions import Action, Payload, PendingUpdate, Retire, Send, Settle, Train, Warn
from unstale.client.models import ModelKey, Models
from unstale_proto import encodings, limits, payload
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import (
    Ack,
    Bye,
    Chunk,
    Credit,
    Error,
    Heartbeat,
    Hello,
    Message,
    ProcessStart,
    Stop,
    Task,
    Update,
    Welcome,
)
from unstale_proto.transfer import Sending

GREETING_S = 5.0  # a hello that is lost, or refused for now, is said again after this long


class State(Enum):
    """Where a client stands."""

    AWAY = "away"  # no connection
    GREETING = "greeting"  # hello said, welcome not yet heard
    IN = "in"
    OVER = "over"


_TROUBLES = {
    Reason.NOT_STORED: "the server cannot store updates; they are kept here, and sent again until it can",
    Reason.RATE_LIMITED: "the server lets this client say no more in so short a time; what is lost is said again",
    Reason.QUARANTINED: "the server keeps this client out for a while; trying again until it is let in",
}


@dataclass(slots=True)
class _Kept:
    """An update that is not acknowledged. beat: number of the first heartbeat that left after it did, or after the last
    that was said or heard of it. sending: of its payload, if that goes in chunks. first_sent, last_sent: places of its
    sendings among all, None before the first."""

    pending: PendingUpdate
    beat: int
    sending: Sending | None
    first_sent: int | None = None
    last_sent: int | None = None


class ClientSession:
    """Pure. Every call takes the time and returns instructions, to be carried out in order.

    token: 16 random bytes in hex, of this process. kept: updates that a process before this one made for the client and
    nobody has acknowledged, fewer than it may hold. models: where those come that go in chunks; None takes none.
    chunk_bytes: of an update's, at most. offers: encodings, by name; None for float32 alone. start: of this process;
    None where nothing outlives it. `due_s`: when `tick` wants to be called next; None is never.
    """

    def __init__(
        self,
        client_id: int,
        token: str,
        kept: Sequence[PendingUpdate] = (),
        *,
        models: Models | None = None,
        chunk_bytes: int = limits.CHUNK_BYTES,
        offers: tuple[str, ...] | None = None,
        start: ProcessStart | None = None,
    ) -> None:
        assert len(kept) < limits.HOLDING_MAX
        self.client_id = client_id
        self.state = State.AWAY
        self.due_s: float | None = None
        self._token = token
        self._welcome: Welcome | None = None
        self._task: Task | None = None
        self._beats = 0
        self._model_comes = False  # of the task; it is not worked on before
        self._model_beat = 0  # as `_Kept.beat`
        self._models = models
        self._chunk_bytes = chunk_bytes
        self._offers = offers
        self._start = start
        self._kept = {pending.update.task_id: self._kept_of(pending) for pending in kept}
        self._newest_task_id = 0
        self._has_newest = False  # it came, and was not given back
        self._troubles: set[Reason] = set()
        self._sendings = 0  # of updates
        self._heard_beat: int | None = None
        self._version = 0
        self._heard_s = 0.0

    # -------------------------------------------------------------------------------------------------- what happened

    def reachable(self, at_s: float) -> list[Action]:
        """There is a connection that can be written to."""
        return self._greet(at_s) if self.state is State.AWAY else []

    def unreachable(self) -> None:
        """Something could not be sent: there is no connection."""
        if self.state is not State.OVER:
            self.state, self.due_s = State.AWAY, None

    def received(self, message: Message, parcel: Payload, at_s: float) -> list[Action]:
        """A message came in. parcel: its payload."""
        if self.state is State.OVER:
            return []
        self._heard_s = at_s
        match message:
            case Welcome():
                return self._welcomed(message, at_s)
            case Task() if (
                self._welcome is not None
            ):  # also one that was long under way while we greeted anew
                return self._given(message, parcel)
            case Ack() if self._welcome is not None:
                return self._acknowledged(message)
            case Credit() if self.state is State.IN:
                return self._credited(message)
            case Chunk() if self._waits_for_model_of(message.task_id):
                return self._took(message, parcel)
            case Heartbeat() if self.state is State.IN and message.number < self._beats:
                self._version = max(self._version, message.version)
                self._heard_beat = max(message.number, self._heard_beat or 0)
                return [*self._send_lost(message.number), *self._ask_again(message.number)]
            case Stop():
                return self._stopped(message, at_s)
            case Hello() | Update() | Bye():
                text = f"a client takes no {message.type}"
                return [Send(message=Error(reason=Reason.UNEXPECTED_TYPE, message=text))]
            case Error():
                return self._refused(message, at_s)
            case _:
                return []  # an answer to what this session has moved on from

    def _refused(self, error: Error, at_s: float) -> list[Action]:
        """The server refuses something."""
        match error:
            case Error(reason=Reason.HELLO_FIRST) if self.state is State.IN:
                return self._greet(at_s)
            case Error(reason=Reason.UNKNOWN_CLIENT | Reason.WRONG_PROTOCOL | Reason.NOT_THE_OWNER):
                return self._retire("refused", f"the server refuses client {self.client_id}: {_said(error)}")
            case Error(reason=Reason.EXPIRED_TASK, task_id=task_id) if self._waits_for_model_of(task_id):
                self._drop_task()
                return []
            case Error(reason=reason) if reason in _TROUBLES:
                return self._troubled(error, at_s)
            case _:
                return []  # of something that this session has moved on from

    def trained(self, run_id: str, update: Update, parcel: Payload) -> list[Action]:
        """A task of this run is done. parcel: the update's payload, kept until it is acknowledged."""
        if not self.wants(run_id, update.task_id):
            return []
        assert self._task is not None
        pending = PendingUpdate(run_id=run_id, number=self._task.number, update=update, parcel=parcel)
        kept = self._kept[update.task_id] = self._kept_of(pending)
        self._drop_task()
        given_up: list[_Kept] = []
        if len(self._kept) == limits.HOLDING_MAX:
            # A server that gave so many tasks since has long taken this one back.
            given_up.append(self._kept.pop(min(self._kept)))
        said = self._send_kept([kept]) if self.state is State.IN else []
        return [*map(_discarded, given_up), *said]

    def failed(self, run_id: str, task_id: int, message: str) -> list[Action]:
        """A task of this run cannot be done, and goes back. While away that needs no word: the next hello does not
        name it. A hello that is under way did name it, so then it is said behind that."""
        if not self.wants(run_id, task_id):
            return []
        self._drop_task()
        self._has_newest = False  # should the error be lost, the server finds that the task is
        error = Error(reason=Reason.NON_FINITE, message=message, task_id=task_id)
        return [Send(message=error)] if self.state is not State.AWAY else []

    def go_on(self) -> list[Action]:
        """The model of its task may have come, or it may be this client's turn to fetch it."""
        if self._task is None or not self._model_comes:
            return []
        assert self._models is not None and self._welcome is not None
        self._model_beat = self._beats
        credit = self._models.ask(self.client_id) if self.state is State.IN else None
        said: list[Action] = [] if credit is None else [Send(message=credit)]
        frames = self._models.frames(self.client_id)
        if frames is None:
            return said
        self._model_comes = False
        return [*said, Train(welcome=self._welcome, task=self._task, parcel=frames)]

    def tick(self, at_s: float) -> list[Action]:
        """Time has come to `due_s`: beat, or greet again."""
        if self.due_s is None or at_s < self.due_s:
            return []
        if self.state is State.GREETING:
            return self._greet(at_s)
        assert self.state is State.IN and self._welcome is not None
        if at_s - self._heard_s > self._welcome.lease_s:
            return self._greet(at_s)
        self.due_s = at_s + self._welcome.heartbeat_s
        beat = Heartbeat(
            number=self._beats,
            version=self._version,
            newest_task=self._newest_task_id if self._has_newest else 0,
            heard=self._heard_beat,
        )
        self._beats += 1
        return [Send(message=beat)]

    def leave(self, reason: str) -> list[Action]:
        """The person or the system that runs this client ends it."""
        was_in = self.state is State.IN
        self.state, self.due_s = State.OVER, None
        self._drop_task()
        return [Send(message=Bye(reason=reason))] if was_in else []

    def wants(self, run_id: str, task_id: int) -> bool:
        """Whether a task that was given is still to be worked on; a newer one takes the place of an older.

        Task ids begin anew with each run, so a task is known by its run, too.
        """
        return self._task is not None and self._task.task_id == task_id and self.run_id == run_id

    @property
    def run_id(self) -> str | None:
        """The run that it was welcomed to last."""
        return None if self._welcome is None else self._welcome.run_id

    @property
    def unacknowledged(self) -> int:
        """Updates kept."""
        return len(self._kept)

    # ---------------------------------------------------------------------------------------------------- what follows

    def _greet(self, at_s: float) -> list[Action]:
        self.state = State.GREETING
        self.due_s = at_s + GREETING_S
        holding = tuple(self._kept) if self._task is None else (*self._kept, self._task.task_id)
        hello = Hello(
            client_id=self.client_id,
            session=self._token,
            holding=holding,
            encodings=self._offers,
            start=self._start,
        )
        return [Send(message=hello)]

    def _welcomed(self, welcome: Welcome, at_s: float) -> list[Action]:
        void = [] if welcome.run_id == self.run_id else self._begin(welcome.run_id)
        self._welcome = welcome
        self._version = welcome.version
        self._troubles.discard(Reason.QUARANTINED)
        if self.state is not State.GREETING:
            return void
        self.state = State.IN
        self.due_s = at_s + welcome.heartbeat_s
        return [*void, *self._send_kept(list(self._kept.values())), *self.go_on()]

    def _begin(self, run_id: str) -> list[Action]:
        """Forget what belongs to other runs than this: it knows none of those tasks."""
        void = [kept for kept in self._kept.values() if kept.pending.run_id != run_id]
        for kept in void:
            del self._kept[kept.pending.update.task_id]
        self._drop_task()
        self._newest_task_id = max(self._kept, default=0)
        self._has_newest = bool(self._kept)
        self._heard_beat = None
        return [*map(_discarded, void)]

    def _given(self, task: Task, parcel: Payload) -> list[Action]:
        assert self._welcome is not None
        if task.run_id not in (None, self._welcome.run_id):
            return []  # of a run whose welcome was lost: its server finds that this was, too
        if task.task_id <= self._newest_task_id:
            return []  # a copy of one that was given before
        in_chunks = task.checksum is not None and not parcel and self._models is not None
        try:
            _check_fit(task, None if in_chunks else parcel, self._welcome)
        except RemoteContractError as error:
            return [Send(message=Error(reason=error.reason, message=str(error), task_id=task.task_id))]
        self._drop_task()
        self._task, self._newest_task_id, self._has_newest = task, task.task_id, True
        self._version = max(self._version, task.version)
        if not in_chunks:
            return [Train(welcome=self._welcome, task=task, parcel=parcel)]
        assert self._models is not None and task.checksum is not None
        self._model_comes = True
        key = ModelKey(
            run_id=self._welcome.run_id,
            version=task.version,
            checksum=task.checksum,
            payload_bytes=task.payload_bytes,
        )
        self._models.want(self.client_id, task.task_id, key)
        return self.go_on()

    def _drop_task(self) -> None:
        self._task, self._model_comes = None, False
        if self._models is not None:
            self._models.leave(self.client_id)

    def _waits_for_model_of(self, task_id: int | None) -> bool:
        return self._model_comes and self._task is not None and self._task.task_id == task_id

    def _took(self, chunk: Chunk, frames: Payload) -> list[Action]:
        assert self._models is not None
        self._model_beat = self._beats
        try:
            credit = self._models.take(self.client_id, chunk, frames)
        except RemoteContractError as error:
            if error.reason is not Reason.WRONG_CHECKSUM:
                return [Send(message=Error(reason=error.reason, message=str(error)))]
            self._drop_task()
            self._has_newest = False
            return [Send(message=Error(reason=error.reason, message=str(error), task_id=chunk.task_id))]
        if credit is not None:
            return [Send(message=credit)]
        return self.go_on() if self._models.frames(self.client_id) is not None else []

    def _ask_again(self, beat: int) -> list[Action]:
        """Nothing has come of the model since that heartbeat left, and what was under way has come or is lost."""
        return self.go_on() if self._model_beat <= beat else []

    def _credited(self, credit: Credit) -> list[Action]:
        kept = self._kept.get(credit.task_id)
        if kept is None or kept.sending is None:
            return []
        kept.beat = self._beats
        return [Send(message=chunk, parcel=[piece]) for chunk, piece in kept.sending.credited(credit)]

    def _kept_of(self, pending: PendingUpdate) -> _Kept:
        update, sending = pending.update, None
        if update.checksum is not None:
            sending = Sending(update.task_id, pending.parcel, chunk_bytes=self._chunk_bytes)
        return _Kept(pending, self._beats, sending)

    def _acknowledged(self, ack: Ack) -> list[Action]:
        if ack.reason is Reason.UNKNOWN_TASK and ack.task_id == self._newest_task_id:
            # What came was damaged on the way, its id at least: what is the newest is not known.
            self._newest_task_id, self._has_newest = 0, False
        kept = self._kept.pop(ack.task_id, None)
        if kept is None:
            return []
        self._troubles.discard(Reason.NOT_STORED)
        accepted = ack.first_outcome == "accepted"
        settle = Settle(run_id=kept.pending.run_id, number=kept.pending.number, accepted=accepted)
        return [settle, *self._send_passed_over(kept)]

    def _troubled(self, error: Error, at_s: float) -> list[Action]:
        """The server cannot take something now. Nothing is lost by it: what is not acknowledged is kept, and said again
        on the usual proof. One word for people each time that it begins."""
        if error.reason is Reason.QUARANTINED and self.state in (State.GREETING, State.IN):
            self.state, self.due_s = State.GREETING, at_s + GREETING_S
        if error.reason in self._troubles:
            return []
        self._troubles.add(error.reason)
        said = f" ({_said(error)})" if error.message else ""
        return [Warn(message=_TROUBLES[error.reason] + said)]

    def _send_passed_over(self, acknowledged: _Kept) -> list[Action]:
        """Send again what left before an update that is acknowledged now: verdicts come in order, so it was lost, or
        its verdict was. Not so of those in chunks, which take their time."""
        if self.state is not State.IN or acknowledged.first_sent is None:
            return []
        before = acknowledged.first_sent
        return self._send_kept(
            [
                kept
                for kept in self._kept.values()
                if kept.sending is None and kept.last_sent is not None and kept.last_sent < before
            ]
        )

    def _send_lost(self, beat: int) -> list[Action]:
        return self._send_kept([kept for kept in self._kept.values() if kept.beat <= beat])

    def _send_kept(self, updates: list[_Kept]) -> list[Action]:
        for kept in updates:
            kept.beat = self._beats
            kept.last_sent = self._sendings
            kept.first_sent = self._sendings if kept.first_sent is None else kept.first_sent
            self._sendings += 1
        return [
            Send(message=kept.pending.update, parcel=kept.pending.parcel if kept.sending is None else ())
            for kept in updates
        ]

    def _stopped(self, stop: Stop, at_s: float) -> list[Action]:
        if stop.reason == "finished":
            goodbye = Send(message=Bye(reason="the run is finished"))
            return [*self._retire("finished", f"the run is finished at version {stop.version}"), goodbye]
        if stop.reason == "superseded":
            return self._retire(
                "superseded",
                f"another process took over client {self.client_id}; give each process ids of its own with --first",
            )
        if stop.failed:
            why = f" ({stop.message})" if stop.message and stop.message.isprintable() else ""
            goodbye = Send(message=Bye(reason="the run has failed"))
            return [
                *self._retire("failed", f"the server gave the run up at version {stop.version}{why}"),
                goodbye,
            ]
        # A server that shuts down may come back: greet it then, not now while it is still closing.
        self.state, self.due_s = State.GREETING, at_s + GREETING_S
        return [Send(message=Bye(reason="the server shuts down"))]

    def _retire(self, reason: str, message: str) -> list[Action]:
        self.state, self.due_s = State.OVER, None
        self._drop_task()
        return [Retire(reason=reason, message=message)]


def _discarded(kept: _Kept) -> Settle:
    return Settle(run_id=kept.pending.run_id, number=kept.pending.number, accepted=False)


def _said(error: Error) -> str:
    """What a server says, fit for a terminal."""
    return error.message if error.message.isprintable() else repr(error.message)


def _check_fit(task: Task, parcel: Payload | None, welcome: Welcome) -> None:
    """Raise RemoteContractError when the model that came, or None that is to come, is not one of this run."""
    if task.signature != welcome.signature:
        raise RemoteContractError(Reason.WRONG_SIGNATURE, "the task's model is not the one of the welcome")
    encoding = encodings.of_task(welcome, task)
    if parcel is not None:
        payload.check([len(frame) for frame in parcel], encoding.payload_bytes)
    elif task.payload_bytes != encoding.payload_bytes:
        raise RemoteContractError(
            Reason.WRONG_SIZE, f"the model is {task.payload_bytes} bytes, not {encoding.payload_bytes}"
        )
