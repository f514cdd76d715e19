"""One client's side of the wire contract: a pure state machine with an executable transition table.

`ClientSession.TRANSITIONS` names the handler and the next state for each state and event (docs/client-session.md).

An update is kept until it is acknowledged, across restarts of the process too (`client.outbox`). It is sent again after
a reconnect, and when the answer to a later heartbeat proves that the update or its ack was lost. Lost tasks are found
by the server, because each heartbeat names the newest task received. A large update or model goes in chunks, as the
receiver gives credit, and is recovered in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from unstale_client.actions import Action, Payload, PendingUpdate, Retire, Send, Train, Warn
from unstale_client.models import ModelKey, Models
from unstale_client.pending_updates import PendingUpdates
from unstale_client.setting_names import CONFIGURATION, SettingNames
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

GREETING_S = 5.0  # pause before a hello is sent again


class State(StrEnum):
    AWAY = "away"  # no connection
    GREETING = "greeting"  # hello sent, no welcome yet
    IN = "in"
    OVER = "over"


_AWAY, _GREETING, _IN = (State.AWAY,), (State.GREETING,), (State.IN,)
_LIVE = _AWAY + _GREETING + _IN
_REFUSALS = (Reason.UNKNOWN_CLIENT, Reason.WRONG_PROTOCOL, Reason.NOT_THE_OWNER)
_WARNINGS = {
    Reason.NOT_STORED: "the server cannot store updates; this client keeps them and sends them again until it can",
    Reason.RATE_LIMITED: "the server limits the message rate of this client; refused messages are sent again",
    Reason.QUARANTINED: "the server has quarantined this client; retrying until the quarantine ends",
}


class Transition(NamedTuple):
    """The next state is set before the handler is called."""

    handler: Callable[["ClientSession", Any, Payload, float], list[Action]]
    next_state: State


_Rows = Sequence[tuple[Sequence[State], Sequence[str], Callable[..., list[Action]], State | None]]


def _expanded(rows: _Rows) -> dict[tuple[State, str], Transition]:
    return {
        (state, event): Transition(handler, state if next_state is None else next_state)
        for states, events, handler, next_state in rows
        for state in states
        for event in events
    }


@dataclass(slots=True, eq=False)
class ClientSession:
    """State of one client. Each call takes the time and returns actions, to be executed in order."""

    client_id: int
    token: str  # 16 random bytes in hex, drawn once per process
    kept: InitVar[Sequence[PendingUpdate]] = ()  # unacknowledged ones of earlier processes, fewer than `HOLDING_MAX`
    _: KW_ONLY
    models: Models | None = None  # receiver of models in chunks; None refuses those
    chunk_bytes: InitVar[int] = limits.CHUNK_BYTES  # most bytes of an update's chunk
    offers: tuple[str, ...] | None = None  # names of the encodings that this client supports; None for float32 alone
    start: ProcessStart | None = None  # of this process; None where nothing is stored
    names: SettingNames = CONFIGURATION
    state: State = State.AWAY
    due_s: float | None = None  # time of the next call of `tick`; None for never
    _updates: PendingUpdates = field(init=False)
    _welcome: Welcome | None = None
    _task: Task | None = None
    _awaits_model: bool = False  # of the task, in chunks
    _model_beat: int = 0  # number of the first heartbeat after the latest message about that model
    _beats: int = 0
    _heard_beat: int | None = None
    _heard_s: float = 0.0
    _version: int = 0
    _newest_task_id: int = 0
    _has_newest: bool = False  # received, and not given back
    _warned: set[Reason] = field(default_factory=set)

    def __post_init__(self, kept: Sequence[PendingUpdate], chunk_bytes: int) -> None:
        assert len(kept) < limits.HOLDING_MAX
        self._updates = PendingUpdates(kept, chunk_bytes=chunk_bytes)

    # --- inputs ---

    def reachable(self, at_s: float) -> list[Action]:
        """A connection accepts messages."""
        return self._dispatch("reachable", at_s=at_s)

    def unreachable(self) -> None:
        """A message could not be sent: there is no connection."""
        self._dispatch("unreachable")

    def received(self, message: Message, parcel: Payload, at_s: float) -> list[Action]:
        self._heard_s = at_s
        return self._dispatch(_event_of(message), message, parcel, at_s)

    def tick(self, at_s: float) -> list[Action]:
        """The time `due_s` has come."""
        if self.due_s is None or at_s < self.due_s:
            return []
        lease_s = self._welcome.lease_s if self._welcome and self.state is State.IN else float("inf")
        is_silent = at_s - self._heard_s > lease_s
        return self._dispatch("server silent" if is_silent else "timer", at_s=at_s)

    def leave(self, reason: str) -> list[Action]:
        """The operator ends this client."""
        return self._dispatch("leave", Bye(reason=reason))

    def trained(self, run_id: str, update: Update, parcel: Payload) -> list[Action]:
        if not self.wants(run_id, update.task_id):
            return []
        assert self._task is not None
        pending = PendingUpdate(run_id=run_id, number=self._task.number, update=update, parcel=parcel)
        entry = self._updates.add(pending, beat=self._beats)
        self._drop_task()
        dropped = self._updates.drop_surplus()
        sends = self._updates.send([entry], beat=self._beats) if self.state is State.IN else []
        return [*dropped, *sends]

    def failed(
        self,
        run_id: str,
        task_id: int,
        message: str,
        reason: Reason = Reason.NON_FINITE,
        *,
        is_code_error: bool = False,
    ) -> list[Action]:
        """A task cannot be done, and goes back. Without a connection the next hello tells the server, because it does
        not name the task. reason: `unavailable` where the client skips the round. is_code_error: as in `Failed`.
        """
        if not self.wants(run_id, task_id):
            return []
        self._give_task_back()  # if the error is lost, the next heartbeat tells the server
        error = Error(reason=reason, message=message, task_id=task_id, code_error=is_code_error or None)
        return [] if self.state is State.AWAY else [Send(message=error)]

    def continue_download(self) -> list[Action]:
        """Request the model of the task, or start the training if the model is complete."""
        if self._task is None or not self._awaits_model:
            return []
        assert self.models is not None and self._welcome is not None
        self._model_beat = self._beats
        credit = self.models.ask(self.client_id) if self.state is State.IN else None
        actions: list[Action] = [] if credit is None else [Send(message=credit)]
        frames = self.models.frames(self.client_id)
        if frames is not None:
            self._awaits_model = False
            actions.append(Train(welcome=self._welcome, task=self._task, parcel=frames))
        return actions

    def wants(self, run_id: str, task_id: int) -> bool:
        """Whether this is the current task. Task ids restart with each run."""
        return self._task is not None and self._task.task_id == task_id and self.run_id == run_id

    @property
    def run_id(self) -> str | None:
        """The run of the latest welcome."""
        return None if self._welcome is None else self._welcome.run_id

    @property
    def unacknowledged(self) -> int:
        """Number of updates without an ack."""
        return len(self._updates)

    def _dispatch(
        self, event: str, message: Message | None = None, parcel: Payload = (), at_s: float = 0.0
    ) -> list[Action]:
        transition = self.TRANSITIONS.get((self.state, event))
        if transition is None:
            return []
        if transition.next_state is not self.state:
            self.state = transition.next_state
            if self.state is State.OVER:
                self._drop_task()
            if self.state in (State.AWAY, State.OVER):
                self.due_s = None
        return transition.handler(self, message, parcel, at_s)

    # --- handlers: message, payload, time ---

    def _ignore(self, _message: object, _parcel: Payload, _at_s: float) -> list[Action]:
        return []

    def _greet(self, _message: object, _parcel: Payload, at_s: float) -> list[Action]:
        self.due_s = at_s + GREETING_S
        holding = tuple(self._updates) if self._task is None else (*self._updates, self._task.task_id)
        hello = Hello(
            client_id=self.client_id, session=self.token, holding=holding, encodings=self.offers, start=self.start
        )
        return [Send(message=hello)]

    def _beat(self, _message: object, _parcel: Payload, at_s: float) -> list[Action]:
        assert self._welcome is not None
        self.due_s = at_s + self._welcome.heartbeat_s
        beat = Heartbeat(
            number=self._beats,
            version=self._version,
            newest_task=self._newest_task_id if self._has_newest else 0,
            heard=self._heard_beat,
        )
        self._beats += 1
        return [Send(message=beat)]

    def _enter(self, welcome: Welcome, parcel: Payload, at_s: float) -> list[Action]:
        dropped = self._store_welcome(welcome, parcel, at_s)
        self.due_s = at_s + welcome.heartbeat_s
        return [*dropped, *self._updates.send_all(beat=self._beats), *self.continue_download()]

    def _store_welcome(self, welcome: Welcome, _parcel: Payload, _at_s: float) -> list[Action]:
        """Drop the tasks and updates of other runs, which this run does not know."""
        dropped: list[Action] = []
        if welcome.run_id != self.run_id:
            dropped += self._updates.drop_other_runs(welcome.run_id)
            self._drop_task()
            self._newest_task_id = max(self._updates, default=0)
            self._has_newest = len(self._updates) > 0
            self._heard_beat = None
        self._welcome = welcome
        self._version = welcome.version
        self._warned.discard(Reason.QUARANTINED)
        return dropped

    def _on_task(self, task: Task, parcel: Payload, _at_s: float) -> list[Action]:
        welcome = self._welcome
        if welcome is None or task.run_id not in (None, welcome.run_id):
            return []  # the welcome was lost, and the server finds that this task was, too
        if task.task_id <= self._newest_task_id:
            return []  # a copy
        in_chunks = task.checksum is not None and not parcel and self.models is not None
        try:
            _check_model(task, None if in_chunks else parcel, welcome)
        except RemoteContractError as error:
            return [_refusal(error, task.task_id)]
        self._drop_task()
        self._task, self._newest_task_id, self._has_newest = task, task.task_id, True
        self._version = max(self._version, task.version)
        settled = self._updates.settle_by(task.accepted_task)
        if not in_chunks:
            return [*settled, Train(welcome=welcome, task=task, parcel=parcel)]
        assert self.models is not None and task.checksum is not None
        self._awaits_model = True
        key = ModelKey(
            run_id=welcome.run_id, version=task.version, checksum=task.checksum, payload_bytes=task.payload_bytes
        )
        self.models.want(self.client_id, task.task_id, key)
        return [*settled, *self.continue_download()]

    def _on_chunk(self, chunk: Chunk, frames: Payload, _at_s: float) -> list[Action]:
        if not self._awaits_model_of(chunk.task_id):
            return []
        assert self.models is not None
        self._model_beat = self._beats
        try:
            credit = self.models.take(self.client_id, chunk, frames)
        except RemoteContractError as error:
            if error.reason is not Reason.WRONG_CHECKSUM:
                return [Send(message=Error(reason=error.reason, message=str(error), refused=chunk.type))]
            self._give_task_back()
            return [_refusal(error, chunk.task_id)]
        if credit is not None:
            return [Send(message=credit)]
        return self.continue_download() if self.models.frames(self.client_id) is not None else []

    def _on_credit(self, credit: Credit, _parcel: Payload, _at_s: float) -> list[Action]:
        return [*self._updates.credited(credit, beat=self._beats)]

    def _on_ack(self, ack: Ack, _parcel: Payload, _at_s: float) -> list[Action]:
        if self._welcome is None:
            return []
        if ack.reason is Reason.UNKNOWN_TASK and ack.task_id == self._newest_task_id:
            # The id of the task was damaged on its way here, so the newest task is not known.
            self._newest_task_id, self._has_newest = 0, False
        entry = self._updates.acknowledge(ack.task_id)
        if entry is None:
            return []
        self._warned.discard(Reason.NOT_STORED)
        settle = entry.settled(accepted=ack.first_outcome == "accepted")
        if self.state is not State.IN:
            return [settle]
        return [settle, *self._updates.send_overtaken(entry, beat=self._beats)]

    def _on_heartbeat(self, beat: Heartbeat, _parcel: Payload, _at_s: float) -> list[Action]:
        if beat.number >= self._beats:
            return []  # never sent
        self._version = max(self._version, beat.version)
        self._heard_beat = max(beat.number, self._heard_beat or 0)
        sends = self._updates.send_unanswered(beat.number, beat=self._beats)
        return [*sends, *self._request_model_again(beat.number)]

    def _on_unexpected(self, message: Message, _parcel: Payload, _at_s: float) -> list[Action]:
        text = f"a client does not accept {message.type!r} messages"
        return [Send(message=Error(reason=Reason.UNEXPECTED_TYPE, message=text, refused=message.type))]

    def _on_task_expired(self, error: Error, _parcel: Payload, _at_s: float) -> list[Action]:
        if self._awaits_model_of(error.task_id):
            self._drop_task()
        return []

    def _pause(self, error: Error, parcel: Payload, at_s: float) -> list[Action]:
        self.due_s = at_s + GREETING_S
        return self._warn(error, parcel, at_s)

    def _warn(self, error: Error, _parcel: Payload, _at_s: float) -> list[Action]:
        """Warn once per incident. Nothing is lost: unacknowledged updates are sent again as usual."""
        if error.reason in self._warned:
            return []
        self._warned.add(error.reason)
        return [Warn(message=_WARNINGS[error.reason] + (f" ({_printable(error)})" if error.message else ""))]

    def _on_shutdown(self, _stop: Stop, _parcel: Payload, at_s: float) -> list[Action]:
        self.due_s = at_s + GREETING_S  # not now: the server is still closing
        return [Send(message=Bye(reason="the server shuts down"))]

    def _on_finished(self, stop: Stop, _parcel: Payload, _at_s: float) -> list[Action]:
        retire = Retire(reason="finished", message=f"the run is finished at version {stop.version}")
        return [retire, Send(message=Bye(reason="the run is finished"))]

    def _on_run_failed(self, stop: Stop, _parcel: Payload, _at_s: float) -> list[Action]:
        cause = f" ({stop.message})" if stop.message and stop.message.isprintable() else ""
        message = f"the server ended the run at version {stop.version} because of an error{cause}"
        return [Retire(reason="failed", message=message), Send(message=Bye(reason="the run has failed"))]

    def _on_superseded(self, _stop: Stop, _parcel: Payload, _at_s: float) -> list[Action]:
        message = f"another process took over client {self.client_id}; give each process {self.names.own_ids}"
        return [Retire(reason="superseded", message=message)]

    def _on_refused(self, error: Error, _parcel: Payload, _at_s: float) -> list[Action]:
        message = f"the server refuses client {self.client_id}: {_printable(error)}"
        return [Retire(reason="refused", message=message)]

    def _say_goodbye(self, bye: Bye, _parcel: Payload, _at_s: float) -> list[Action]:
        return [Send(message=bye)]

    # --- the task ---

    def _request_model_again(self, answered: int) -> list[Action]:
        """Chunks that were under way before heartbeat `answered` have arrived by now, or are lost."""
        return self.continue_download() if self._model_beat <= answered else []

    def _drop_task(self) -> None:
        self._task, self._awaits_model = None, False
        if self.models is not None:
            self.models.leave(self.client_id)

    def _give_task_back(self) -> None:
        self._drop_task()
        self._has_newest = False

    def _awaits_model_of(self, task_id: int | None) -> bool:
        return self._awaits_model and self._task is not None and self._task.task_id == task_id

    TRANSITIONS: ClassVar = _expanded(
        (
            # states, events, handler, next state; None keeps the state
            (_AWAY, ["reachable"], _greet, State.GREETING),
            (_LIVE, ["unreachable"], _ignore, State.AWAY),
            (_GREETING, ["timer"], _greet, None),
            (_GREETING, ["welcome"], _enter, State.IN),
            (_AWAY + _IN, ["welcome"], _store_welcome, None),
            (_IN, ["timer"], _beat, None),
            (_IN, ["server silent", "error hello-first"], _greet, State.GREETING),
            (_LIVE, ["task"], _on_task, None),
            (_LIVE, ["chunk"], _on_chunk, None),
            (_LIVE, ["ack"], _on_ack, None),
            (_IN, ["credit"], _on_credit, None),
            (_IN, ["heartbeat"], _on_heartbeat, None),
            (_LIVE, ["hello", "update", "bye"], _on_unexpected, None),
            (_LIVE, ["error expired-task"], _on_task_expired, None),
            (_LIVE, ["error not-stored", "error rate-limited"], _warn, None),
            (_AWAY, ["error quarantined"], _warn, None),
            (_GREETING + _IN, ["error quarantined"], _pause, State.GREETING),
            (_LIVE, ["stop shutdown"], _on_shutdown, State.GREETING),
            (_LIVE, ["stop finished"], _on_finished, State.OVER),
            (_LIVE, ["stop failed"], _on_run_failed, State.OVER),
            (_LIVE, ["stop superseded"], _on_superseded, State.OVER),
            (_LIVE, [f"error {reason}" for reason in _REFUSALS], _on_refused, State.OVER),
            (_IN, ["leave"], _say_goodbye, State.OVER),
            (_AWAY + _GREETING, ["leave"], _ignore, State.OVER),
        )
    )
    """By state and event: the type of a message, `stop` or `error` with its reason, a timer, or a change of the
    connection. A pair that is not here is ignored: a late answer, or a message of an earlier state."""


def _event_of(message: Message) -> str:
    if message.type not in ("stop", "error"):  # faster than isinstance
        return message.type
    if isinstance(message, Stop):
        return f"stop {'failed' if message.failed and message.reason == 'shutdown' else message.reason}"
    assert isinstance(message, Error)
    return f"error {message.reason}"


def _refusal(error: RemoteContractError, task_id: int) -> Send:
    return Send(message=Error(reason=error.reason, message=str(error), task_id=task_id))


def _printable(error: Error) -> str:
    return error.message if error.message.isprintable() else repr(error.message)


def _check_model(task: Task, parcel: Payload | None, welcome: Welcome) -> None:
    """Raise RemoteContractError for a model that does not fit the run. parcel: None for one that comes in chunks."""
    if task.signature != welcome.signature:
        raise RemoteContractError(Reason.WRONG_SIGNATURE, "the task's model has another signature than the welcome's")
    encoding = encodings.of_task(welcome, task)
    if parcel is not None:
        payload.check([len(frame) for frame in parcel], encoding.payload_bytes)
    elif task.payload_bytes != encoding.payload_bytes:
        raise RemoteContractError(
            Reason.WRONG_SIZE, f"the model is {task.payload_bytes} bytes, expected {encoding.payload_bytes}"
        )
