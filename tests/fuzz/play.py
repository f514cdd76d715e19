"""A server that receives messages chosen by the bytes: over any connection, in any order, with any clock and network.

The server protocol is the real one, on a simulated wire, clock and computing thread; messages enter through
the function that reads the socket. After each step its state is consistent, no invalid update was counted, and a
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
from unstale.gateway.transport import Delivery
from unstale.journal.recorder import IncomingUpdate
from unstale.metrics import catalogue
from unstale.server.client_limits import ClientLimits
from unstale.server.commands import ApplyCommand, CheckpointCommand, Saved, StopNow
from unstale.server.executor import ActionExecutor
from unstale.server.sessions import Sessions
from unstale.server.state import TransferBounds
from unstale.server.update_decoder import UpdateDecoder
from unstale_client.net import sockets
from unstale_proto import encodings
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Chunk, Credit, Error, Stop, Task, Update, Welcome
from unstale_proto.transfer import checksum

Note = Callable[[Hashable], None]

STEPS_MAX = 48
ROUTES = 6
TURN_GOES_ON = 208  # of 256 steps, those before the end of a turn


class Play:
    """One run of a server, and its expected state."""

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
        self.task_of: dict[bytes, Task] = {}  # the last one sent to a connection
        self.shut_out: set[bytes] = set()  # connections whose last message from the server was an error
        self.kept_back: set[bytes] = set()  # connections whose messages from the server are buffered
        self.beats = 0
        self.turn_goes_on = self.was_stopped = False
        self._handle, self._send = self.coordinator.handle, self.server.wire.send
        self.coordinator.handle = self.handle  # type: ignore[method-assign]
        self.server.wire.send = self.send  # type: ignore[method-assign]
        self.steps = (
            self.say_update, self.say_hello, self.say_heartbeat, self.compute, self.pass_time, self.say_error,
            self.say_changed, self.say_bytes, self.say_bye, self.disturb, self.stop,
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
            assert why is not None, "a run diverges although a client can still train"
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

    # --- events of the coordinator ---

    def handle(self, event: events.Event) -> list[actions.Action]:
        """Handle an event as the coordinator does, with checks."""
        phase = self.coordinator.phase
        following = self._handle(event)
        self.events += 1
        self.signs_of_life += isinstance(event, events.HeartbeatReceived)
        self.note((phase, self.before, type(event).__name__))
        self.before = type(event).__name__
        self.note(self.before)
        for action in following:
            if isinstance(action, actions.SendTask):
                assert action.task_id not in self.given, f"{action} is assigned twice"
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
        """It is the first answer to a task of this client on this version, and matches its
        announcement, if any. (The row of a delta over another learning rate differs from the payload.)"""
        task = self.given[update.task_id]
        assert (task.client_id, task.version) == (update.client_id, update.base_version), (task, update)
        assert update.task_id not in self.accepted, f"{update} counts twice"
        self.accepted.add(update.task_id)
        staged = self.staged_last
        row_d = self.server.staging.row_written[:2]
        assert staged.kind == "gradient" or bool(row_d.any()), f"{staged} is a delta of zeros"
        is_payload = staged.kind == "gradient" or staged.learning_rate == 1.0
        if staged.checksum is not None and is_payload and staged.encoding is None:
            row = memoryview(self.server.staging.row_written.numpy().tobytes())
            assert checksum([row]) == staged.checksum, f"{staged} differs from its announcement"

    def stage(self, client_id: int, update: Update, *rest: Any) -> IncomingUpdate:
        """Stage as the decoder does, and record the header."""
        self.staged_last = update
        return self._stage(client_id, update, *rest)

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        """Send as the wire does, with checks: tasks and acceptances are stored before."""
        delivery = self._send(route, header, frames)
        if delivery is Delivery.FULL:
            self.kept_back.add(route)
        else:
            self.kept_back.discard(route)
        if delivery is Delivery.SENT:
            message = self.server.wire.sent[route][-1][0]
            self.note(("said", message.type))
            if isinstance(message, Chunk):
                self.transfers.sent(message, frames, self.given[message.task_id].version)
            if isinstance(message, Task | Ack) and self.journal is not None:
                self.journal.check_sent(message)
        return delivery

    # --- incoming messages ---

    def take_in(self, route: bytes, *frames: bytes) -> None:
        """Receive a message of these frames, and end the turn unless it continues."""
        self.hear()
        observed_before, changes_before = len(self.server.observed), self.events - self.signs_of_life
        sessions_before = repr(self.sessions)
        socket: Any = PlayedSocket(route, *frames)
        received = sockets.receive_routed(socket, payload_bytes_max=self.protocol.payload_bytes_max)
        assert received is not None
        header, payload = received.header, received.frames
        kept_bytes = sum(len(frame) for frame in payload[:-1])
        assert kept_bytes <= self.protocol.payload_bytes_max(route), "more frames are stored than may be sent"
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
            assert self.events - self.signs_of_life == changes_before, f"refused for {refused}, and the state changed"
            if route not in self.server.wire.gone and route not in self.kept_back:
                assert repr(self.sessions) == sessions_before
                self.check_answered(header, refused, heard.get(route, []))
        self.settle()

    def check_answered(self, header: bytes, refused: list[str], heard: list[Any]) -> None:
        """A refusal is answered with its reason, except errors, messages over the rate limit, and messages damaged in
        transit and requested again."""
        answers = [message.reason for message in heard if isinstance(message, Error)]
        unanswered = refused[0] in (Reason.RATE_LIMITED, Reason.WRONG_CHECKSUM) or b"error" in header
        assert answers == refused or (unanswered and not answers), (refused, heard)

    def settle(self, seconds: float = 0.0) -> None:
        """End the turn, unless it continues: run due timers, and check the state."""
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
        """Every accepted update has a row, and each can be aggregated."""
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
        """Read the messages to each connection since the last call."""
        heard = {route: [message for message, _ in sent] for route, sent in self.server.wire.sent.items()}
        self.server.wire.sent.clear()
        for route, messages in heard.items():
            for message in messages:
                if isinstance(message, Task):
                    assert message.task_id in self.given
                    self.task_of[route] = message
                    self.answered.discard(message.task_id)  # of an update before its task
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
        """An update of the last task of the connection, mostly valid."""
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
        """client_id: also invalid ones. holding: some tasks of the client."""
        route, client_id = self.route(), self.choices.number(self.clients + 1)
        session = self.choices.of(SESSIONS)
        held = self.task_of.get(route)
        holding = {
            0: (), 1: () if held is None else (held.task_id,), 2: tuple(self.given)[-3:], 3: (2**63 - 1,),
        }[self.choices.number(4)]  # fmt: skip
        self.say(route, "hello", client_id=client_id, session=session, holding=holding)

    def say_heartbeat(self) -> None:
        """A heartbeat, mostly with the next number."""
        route, kind = self.route(), self.choices.number(8)
        task = self.task_of.get(route)
        number = self.choices.number(2**64) % 2**63 if kind == 7 else self.beats
        self.beats += 1
        fields: dict[str, Any] = {}
        if kind & 1:
            fields["newest_task"] = task.task_id if kind & 4 and task else 0
        if kind & 2:
            fields["heard"] = self.choices.of((number, max(0, number - 1), 0, 2**63 - 1))
        self.say(route, "heartbeat", number=number, version=self.choices.number(4), **fields)

    def say_error(self) -> None:
        """Return a task, or one that is not assigned."""
        route, kind = self.route(), self.choices.number(8)
        task = self.task_of.get(route)
        reason = "unavailable" if kind & 1 else "non-finite"
        fields = {} if kind & 6 == 6 else {"task_id": self.choices.number(40) + 1}
        if task is not None and not kind & 2:
            fields = {"task_id": task.task_id}
        if kind & 4:
            fields["code_error"] = True
        self.say(route, "error", reason=reason, message="\u2028" * kind, **fields)

    def say_changed(self) -> None:
        """A golden header with changes, of any type; sometimes with damage."""
        route, header = self.route(), headers.changed(headers.golden(self.choices), self.choices)
        if self.choices.number(4) == 3:
            header = headers.damaged(header, self.choices)
        self.take_in(route, header, *self.choices.of(PAYLOADS))

    def say_bytes(self) -> None:
        """No frame after the route, or a few with arbitrary bytes."""
        route = self.route()
        self.take_in(route, *(self.choices.taken(self.choices.number(24)) for _ in range(self.choices.number(4))))

    def say_bye(self) -> None:
        self.say(self.route(), "bye", reason="x" * self.choices.number(4))

    def compute(self) -> None:
        """Execute all commands."""
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

    def disturb(self) -> None:
        """Block or unblock a connection, or fill or empty the disk."""
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
        """The operator stops the run: rarely, or runs would be short."""
        if self.choices.number(8) == 7:
            self.was_stopped = True
            self.protocol.on_result(StopNow())
            self.settle()
