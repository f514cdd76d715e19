"""A server that takes in what the bytes choose: over any connection, in any order, with any clock and any network.

The server protocol is the real one, on a wire, a clock and a computing thread that are played; messages come in through
the function that reads the socket. After each step its state is whole, nothing was counted that should not be, and a
refused message has changed nothing.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgpack
import numpy as np

from fuzz import headers
from fuzz.choices import Choices
from fuzz.chunks import BOUNDS, Transfers
from fuzz.extents import parts
from fuzz.journal import PlayedJournal
from fuzz.material import (
    ENCODINGS,
    PAUSES_S,
    PAYLOADS,
    SESSIONS,
    SETUPS,
    PlayedSocket,
    configuration,
    key_of,
    update_fields,
)
from support import coordinator_invariants as invariants
from support.played import PlayedServer
from unstale.coordinator import actions, divergence, events
from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError
from unstale.journal.recorder import IncomingUpdate
from unstale.metrics import catalogue
from unstale.server.client_limits import ClientLimits
from unstale.server.commands import ApplyCommand, CheckpointCommand, Saved, StopNow
from unstale.server.executor import ActionExecutor
from unstale.server.sessions import Sessions
from unstale.server.state import TransferBounds
from unstale.server.transport import Delivery
from unstale.server.update_decoder import UpdateDecoder
from unstale_client.net import sockets
from unstale_proto import encodings
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Chunk, Credit, Error, Stop, Task, Update, Welcome
from unstale_proto.transfer import checksum

Note = Callable[[Hashable], None]

STEPS_MAX = 48
ROUTES = 6
TURN_GOES_ON = 208  # of 256 steps, those behind which nothing is said yet


class Play:
    """One run of a server, and what is known of it."""

    def __init__(self, choices: Choices, note: Note) -> None:
        self.choices = choices
        self.note = note
        first, kind = choices.number(256), choices.number(256)
        self.starts_joined = first >= 64
        self.transfers = Transfers(self)
        self.in_chunks = bool(kind & 16)
        self.bounds = BOUNDS if self.in_chunks else TransferBounds()
        self.encoding = encodings.of_updates(ENCODINGS[kind >> 5], 2)
        self.journal = PlayedJournal() if kind % 2 else None
        configured = configuration(kind // 2)
        self.client_limits: ClientLimits = configured["client_limits"]
        self.server = PlayedServer(
            **SETUPS[first % len(SETUPS)],
            transfers=self.bounds,
            partial_files=self.transfers.parts,  # type: ignore[arg-type]  (they keep to the interface, as the journal does)
            journal=self.journal,  # type: ignore[arg-type]
            encoding=ENCODINGS[kind >> 5],
            **configured,
        )
        self.protocol = self.server.protocol
        self.executor, self.sessions, decoder = parts(self.protocol, ActionExecutor, Sessions, UpdateDecoder)
        self._stage = decoder.stage
        decoder.stage = self.stage
        self.coordinator = self.server.coordinator
        self.clients = self.coordinator.settings.clients
        self.given: dict[int, actions.SendTask] = {}
        self.accepted: set[int] = set()
        self.answered: set[int] = set()  # tasks whose update has a verdict
        self.disk_is_full = False
        self.events = self.events_checked = 0
        self.signs_of_life = 0
        self.before: Hashable = None
        self.task_of: dict[bytes, Task] = {}  # that a connection has heard of last
        self.shut_out: set[bytes] = set()  # connections whose last word from the server was an error
        self.beats = 0
        self.turn_goes_on = self.was_stopped = False
        self._handle, self._send = self.coordinator.handle, self.server.wire.send
        self.coordinator.handle = self.handle  # type: ignore[method-assign]
        self.server.wire.send = self.send  # type: ignore[method-assign]
        self.steps = (
            self.say_update, self.say_hello, self.say_heartbeat, self.compute, self.pass_time, self.say_error,
            self.say_changed, self.say_bytes, self.say_bye, self.trouble, self.stop,
            self.transfers.say_announcement, self.transfers.say_chunk, self.transfers.say_credit,
        )  # fmt: skip

    @property
    def is_over(self) -> bool:
        return self.protocol.is_over

    def play(self) -> None:
        try:
            self.play_steps()
            self.settle()
        except UserError:
            why = divergence.reason(self.coordinator)
            assert why is not None, "a run is given up, and there is hope"
            self.note("hopeless")
        else:
            self.check_at_the_end()

    def play_steps(self) -> None:
        if self.starts_joined:
            for client_id in range(self.clients):
                self.say_hello_on(b"%d" % client_id, client_id)
        for _ in range(STEPS_MAX):
            if self.choices.are_over or self.is_over:
                break
            step = self.choices.number(256)
            self.turn_goes_on = step >= TURN_GOES_ON
            self.steps[step % len(self.steps)]()
        self.turn_goes_on = False

    def check_at_the_end(self) -> None:
        if self.journal is not None and not self.was_stopped:
            self.journal.check(self.coordinator, lambda: Coordinator(self.coordinator.settings))

    # --- what the coordinator is told ---

    def handle(self, event: events.Event) -> list[actions.Action]:
        """As the coordinator does, looked at."""
        phase = self.coordinator.phase
        following = self._handle(event)
        self.events += 1
        self.signs_of_life += isinstance(event, events.HeartbeatReceived)
        self.note((phase, self.before, type(event).__name__))
        self.before = type(event).__name__
        self.note(self.before)
        for action in following:
            if isinstance(action, actions.SendTask):
                assert action.task_id not in self.given, f"{action} is given twice"
                self.given[action.task_id] = action
            elif isinstance(action, actions.Acknowledge):
                self.note(action.reason)
                self.note((phase, action.outcome, action.first_outcome, action.reason))
                if action.outcome is actions.Outcome.ACCEPTED:
                    assert isinstance(event, events.UpdateArrived)
                    self.check_accepted(event)
            else:
                self.note((self.before, type(action).__name__))
        return following

    def check_accepted(self, update: events.UpdateArrived) -> None:
        """It answers a task that was given to this client with this version, for the first time, and is what was
        announced if it was. (Of a delta over another learning rate the row is not the payload.)"""
        task = self.given[update.task_id]
        assert (task.client_id, task.version) == (update.client_id, update.base_version), (task, update)
        assert update.task_id not in self.accepted, f"{update} counts twice"
        self.accepted.add(update.task_id)
        said = self.staged_last
        row_d = self.server.staging.row_written[:2]
        assert said.kind == "gradient" or bool(row_d.any()), f"{said} is a delta of nothing but zeros"
        is_payload = said.kind == "gradient" or said.learning_rate == 1.0
        if said.checksum is not None and is_payload and said.encoding is None:
            row = memoryview(self.server.staging.row_written.numpy().tobytes())
            assert checksum([row]) == said.checksum, f"{said} is not what was announced"

    def stage(self, client_id: int, update: Update, *rest: Any) -> IncomingUpdate:
        """As the decoder does, with a look at the header."""
        self.staged_last = update
        return self._stage(client_id, update, *rest)

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        """As the wire does, looked at: a task and the news that an update counts were stored before."""
        delivery = self._send(route, header, frames)
        if delivery is Delivery.SENT:
            message = self.server.wire.sent[route][-1][0]
            self.note(("said", message.type))
            if isinstance(message, Chunk):
                self.transfers.sent(message, frames, self.given[message.task_id].version)
            if isinstance(message, Task | Ack) and self.journal is not None:
                self.journal.check_said(message)
        return delivery

    # --- what comes in ---

    def take_in(self, route: bytes, *frames: bytes) -> None:
        """A message of these frames, and unless the turn goes on all that follows from it but time."""
        self.hear()
        observed_before, changes_before = len(self.server.observed), self.events - self.signs_of_life
        sessions_before = repr(self.sessions)
        socket: Any = PlayedSocket(route, *frames)
        received = sockets.receive_routed(socket, payload_bytes_max=self.protocol.payload_bytes_max)
        assert received is not None
        header, payload = received.header, received.frames
        kept_bytes = sum(len(frame) for frame in payload[:-1])
        assert kept_bytes <= self.protocol.payload_bytes_max(route), "more is kept than may be sent"
        self.protocol.on_message(route, header, [frame.buffer for frame in payload], key=key_of(route))
        refused = [
            seen.labels[0]
            for seen in self.server.observed[observed_before:]
            if seen.metric is catalogue.MESSAGES_REFUSED
        ]
        heard = self.hear()
        if refused:
            self.note(("refused", *refused))
            self.note(refused[0])
            assert self.events - self.signs_of_life == changes_before, (
                f"refused for {refused}, and it changed something"
            )
            if route not in self.server.wire.gone and route not in self.server.wire.full:
                assert repr(self.sessions) == sessions_before
                self.check_answered(header, refused, heard.get(route, []))
        self.settle()

    def check_answered(self, header: bytes, refused: list[str], heard: list[Any]) -> None:
        """A refusal is answered with its reason, but for errors, for what comes too fast, and for what was damaged on
        its way and is asked for again."""
        answers = [message.reason for message in heard if isinstance(message, Error)]
        unanswered = refused[0] in (Reason.RATE_LIMITED, Reason.WRONG_CHECKSUM) or b"error" in header
        assert answers == refused or (unanswered and not answers), (refused, heard)

    def settle(self, seconds: float = 0.0) -> None:
        """The turn ends, unless it goes on: what is due happens, and the state is whole."""
        if self.turn_goes_on:
            self.server.now_s += seconds
            return
        if not self.is_over:
            self.server.pass_time(seconds)
        self.hear()
        assert not self.executor.after_commit
        self.transfers.check(self.note, self.bounds)
        if self.events != self.events_checked:
            self.events_checked = self.events
            invariants.check(self.coordinator)
            self.check_rows()

    def check_rows(self) -> None:
        """There is a row for each update that was accepted, and each can be aggregated."""
        waiting = list(self.server.staging.kept.values())
        assert len(waiting) == len(self.coordinator.pending)
        assert self.coordinator.accepted == len(self.accepted)
        rounds = [command for command in self.server.commands if isinstance(command, ApplyCommand)]
        for rows_KD in [*(row_D[None] for row_D in waiting), *(command.round.rows for command in rounds)]:
            rows = rows_KD.numpy()
            assert np.isfinite(rows).all(), rows
        for command in rounds:
            assert len(command.updates) == len(command.round.rows)
            assert all(update.staleness >= 0 for update in command.updates)

    def hear(self) -> dict[bytes, list[Any]]:
        """What was said to each connection since it last heard."""
        heard = {route: [message for message, _ in sent] for route, sent in self.server.wire.sent.items()}
        self.server.wire.sent.clear()
        for route, messages in heard.items():
            for message in messages:
                if isinstance(message, Task):
                    assert message.task_id in self.given
                    self.task_of[route] = message
                    self.answered.discard(message.task_id)  # of an update that came before its task
                elif isinstance(message, Ack):
                    self.answered.add(message.task_id)
                elif isinstance(message, Credit):
                    self.transfers.credit_of[route] = message
                elif isinstance(message, Error):
                    self.shut_out.add(route)
                elif isinstance(message, Welcome):
                    self.shut_out.discard(route)
                elif isinstance(message, Stop):
                    self.note(("stop", message.reason))
        return heard

    def route(self) -> bytes:
        return b"%d" % self.choices.number(ROUTES)

    def say(self, route: bytes, type_: str, frames: Sequence[bytes] = (), **fields: Any) -> None:
        self.take_in(route, msgpack.packb({"protocol": 1, "type": type_, **fields}), *frames)

    def say_hello_on(self, route: bytes, client_id: int) -> None:
        self.say(route, "hello", client_id=client_id, session=f"{client_id:032x}")

    # --- the steps ---

    def say_update(self) -> None:
        """Of the last task that the connection heard of, mostly as it should be."""
        route = self.route()
        task = self.task_of.get(route)
        fields = update_fields(task)
        wrong, payload = self.choices.number(64), self.choices.number(64)
        if wrong & 1:
            fields["kind"] = "gradient"
        if wrong & 2:
            fields["learning_rate"] = self.choices.of((1e-30, 1e6, 5e-324))
        if wrong & 4:
            fields["evaluation"] = {"accuracy": 0.5, "loss": 1.0, "examples": 3}
        frames = PAYLOADS[payload] if payload < len(PAYLOADS) else PAYLOADS[0]
        if payload == len(PAYLOADS):
            frames = (self.choices.taken(8),)
        elif payload >= 60:
            fields["encoding"] = self.encoding.name if payload < 63 else "int8"
            fields["payload_bytes"] = self.encoding.payload_bytes
            frames = (self.choices.taken(self.encoding.payload_bytes),)
        if wrong >= 48:
            self.take_in(route, headers.changed(fields, self.choices), *frames)
            return
        if wrong & 24 == 8:
            fields["task_id"] = self.choices.number(40)
        elif wrong & 24 == 16:
            fields["base_version"] = self.choices.number(6)
        elif wrong & 24 == 24:
            fields["payload_bytes"] = 4 * self.choices.number(2**16)
            fields["signature"] = "01"[self.choices.number(2)] * 64
        self.take_in(route, headers.packed(fields), *frames)

    def say_hello(self) -> None:
        """client_id: also one that is none. holding: some of what the client may have been given."""
        route, client_id = self.route(), self.choices.number(self.clients + 1)
        session = self.choices.of(SESSIONS)
        held = self.task_of.get(route)
        holding = {
            0: (), 1: () if held is None else (held.task_id,), 2: tuple(self.given)[-3:], 3: (2**63 - 1,),
        }[self.choices.number(4)]  # fmt: skip
        self.say(route, "hello", client_id=client_id, session=session, holding=holding)

    def say_heartbeat(self) -> None:
        """Numbers that count on, mostly."""
        route, kind = self.route(), self.choices.number(8)
        task = self.task_of.get(route)
        number = self.choices.number(2**64) % 2**63 if kind == 7 else self.beats
        self.beats += 1
        said: dict[str, Any] = {}
        if kind & 1:
            said["newest_task"] = task.task_id if kind & 4 and task else 0
        if kind & 2:
            said["heard"] = self.choices.of((number, max(0, number - 1), 0, 2**63 - 1))
        self.say(route, "heartbeat", number=number, version=self.choices.number(4), **said)

    def say_error(self) -> None:
        """A task is given back, or one that nobody has."""
        route, kind = self.route(), self.choices.number(8)
        task = self.task_of.get(route)
        reason = "unavailable" if kind & 1 else "non-finite"
        said = {} if kind & 6 == 6 else {"task_id": self.choices.number(40) + 1}
        if task is not None and not kind & 2:
            said = {"task_id": task.task_id}
        self.say(route, "error", reason=reason, message="\u2028" * kind, **said)

    def say_changed(self) -> None:
        """A golden header with changes, of any type; now and then with damage too."""
        route, header = self.route(), headers.changed(headers.golden(self.choices), self.choices)
        if self.choices.number(4) == 3:
            header = headers.damaged(header, self.choices)
        self.take_in(route, header, *self.choices.of(PAYLOADS))

    def say_bytes(self) -> None:
        """No frame at all behind the route, or a few of any bytes."""
        route = self.route()
        self.take_in(route, *(self.choices.taken(self.choices.number(24)) for _ in range(self.choices.number(4))))

    def say_bye(self) -> None:
        self.say(self.route(), "bye", reason="x" * self.choices.number(4))

    def compute(self) -> None:
        """Everything that was commanded is done."""
        while self.server.commands:
            command = self.server.commands.pop(0)
            if isinstance(command, CheckpointCommand):
                self.protocol.on_result(
                    Saved(version=command.version, seq=command.seq, file="", size_bytes=0, checkpoint_s=0.0)
                )
            else:
                result = self.server.carry_out(command)
                if result is not None:
                    self.protocol.on_result(result)
            self.settle()

    def pass_time(self) -> None:
        self.settle(self.choices.of(PAUSES_S))

    def trouble(self) -> None:
        """Nothing can be sent to a connection any more, or now it can; the disk is full, or no longer."""
        if self.choices.number(4) == 3:
            self.fill_disk(not self.disk_is_full)
            return
        route, wire = self.route(), self.server.wire
        wire.gone.discard(route)
        wire.full.discard(route)
        kind = self.choices.number(3)
        if kind:
            (wire.gone if kind == 1 else wire.full).add(route)

    def fill_disk(self, is_full: bool) -> None:
        self.disk_is_full = is_full
        self.transfers.parts.be_full(is_full)
        if self.journal is not None:
            self.journal.is_full = is_full

    def stop(self) -> None:
        """The operator has had enough: once in a while, or runs would be short."""
        if self.choices.number(8) == 7:
            self.was_stopped = True
            self.protocol.on_result(StopNow())
            self.settle()
