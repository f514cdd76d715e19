"""The scripted server: a ROUTER on a loopback port and the process of the examined client."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import zmq

from unstale.client_conformance import run
from unstale.client_conformance.rules import BrokenRuleError
from unstale.errors import UserError
from unstale_client.net.clock import RunClock
from unstale_client.net.keys import Identity
from unstale_proto import codec
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Ack, Bye, Error, Heartbeat, Hello, Message, Stop, Task, Update, Welcome

LIMIT_S = 45.0  # longest wait for one message: a client may pause for 30 s between two hellos (4.8)
END_S = 15.0  # longest wait for the end of the process
PLACEHOLDERS = ("address", "client_id", "folder", "key", "train_s")


class Received(NamedTuple):
    """A message of the client."""

    message: Message
    header: bytes
    frames: list[bytes]

    @property
    def payload(self) -> bytes:
        return b"".join(self.frames)


Match = Callable[[Received], bool]


@dataclass(eq=False)
class Peer:
    """One server and one client process, for one check. Use it as a context manager."""

    command: str
    folder: Path
    identity: Identity | None = None  # of the server, with keys
    key: str = ""
    client_id: int = 3
    limit_s: float = LIMIT_S
    answers_heartbeats: bool = True
    welcome: Welcome = field(default_factory=run.welcome)
    seen: list[Received] = field(default_factory=list)
    _clock: RunClock = field(default_factory=RunClock)
    _context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=zmq.Context)
    _socket: zmq.Socket[bytes] | None = None
    _port: int = 0
    _route: bytes = b""
    _process: "subprocess.Popen[bytes] | None" = None

    def __enter__(self) -> "Peer":
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.close()
        self._context.term()

    # --- the process ---

    def start(self) -> None:
        """Start the client."""
        values = {
            "address": f"tcp://127.0.0.1:{self._port}",
            "client_id": str(self.client_id),
            "folder": str(self.folder),
            "key": self.key,
            "train_s": str((self.welcome.settings or {}).get(run.TRAIN_SETTING, 0.0)),
        }
        words = [_filled(word, values) for word in shlex.split(self.command)]
        try:
            with (self.folder.parent / "output.txt").open("ab") as output:
                self._process = subprocess.Popen(  # noqa: S603  (the command of the user)
                    words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        except OSError as error:
            raise UserError(
                f"--client is {self.command!r}, expected a command that starts: {error.strerror}; correct its path"
            ) from error

    def kill(self) -> None:
        """SIGKILL to the client and its children."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def ended(self) -> int:
        """Wait for the end of the client, and return its exit code. Heartbeats are still answered."""
        assert self._process is not None
        limit_s = min(END_S, self.limit_s)
        until_s = self._clock() + limit_s
        while self._clock() < until_s:
            if self._process.poll() is not None:
                return self._process.returncode
            self.receive(0.05)
        raise BrokenRuleError(f"expected the end of the client within {limit_s:g} s, got a client that still runs")

    def output(self) -> str:
        """The last line that the client printed."""
        file = self.folder.parent / "output.txt"
        lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
        return lines[-1][:200] if lines else ""

    # --- the socket ---

    def open(self) -> None:
        socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        if self.identity is not None:
            socket.curve_server = True
            socket.curve_secretkey = self.identity.secret.encode()
        if self._port:
            _bind_again(socket, f"tcp://127.0.0.1:{self._port}", self._clock)
        else:
            self._port = socket.bind_to_random_port("tcp://127.0.0.1")
        self._socket = socket

    def close(self) -> None:
        """Close the socket with all connections. Unread messages are lost."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        self._route = b""

    def reopen(self) -> None:
        """Break all connections."""
        self.close()
        self.open()

    # --- messages ---

    def send(self, message: Message, payload: Sequence[bytes] = (), *, to: bytes = b"") -> None:
        self.send_bytes(codec.encode(message), payload, to=to)

    def send_bytes(self, header: bytes, payload: Sequence[bytes] = (), *, to: bytes = b"") -> None:
        assert self._socket is not None
        self._socket.send_multipart([to or self._route, header, *payload])

    def send_with(self, message: Message, payload: Sequence[bytes] = (), **unknown: Any) -> None:
        """Send a message with further fields."""
        fields = msgpack.unpackb(codec.encode(message)) | unknown
        self.send_bytes(msgpack.packb(fields), payload)

    def receive(self, within_s: float) -> Received | None:
        """The next message of the client; None if none comes in time."""
        assert self._socket is not None
        if not self._socket.poll(max(0, int(within_s * 1000))):
            return None
        route, header, *frames = self._socket.recv_multipart()
        try:
            message = codec.decode(header)
        except RemoteContractError as error:
            raise BrokenRuleError(
                f"expected a header by sections 2 and 3, got one that is refused as {error.reason}: {error}"
            ) from error
        received = Received(message, header, frames)
        self._route = route
        self.seen.append(received)
        if isinstance(message, Heartbeat) and self.answers_heartbeats:
            self.answer(message)
        return received

    def answer(self, beat: Heartbeat) -> None:
        self.send(Heartbeat(number=beat.number, version=run.VERSION))

    def next(self, kind: type[Message], matches: Match = lambda _: True) -> Received:
        """Read until a message of this type comes, and fail after the limit."""
        until_s = self._clock() + self.limit_s
        others: dict[str, int] = {}
        while (left_s := until_s - self._clock()) > 0:
            received = self.receive(min(left_s, 0.2))
            if received is None:
                self._check_runs(kind, others)
            elif isinstance(received.message, kind) and matches(received):
                return received
            else:
                others[received.message.type] = others.get(received.message.type, 0) + 1
        raise BrokenRuleError(f"expected {kind.type!r} within {self.limit_s:g} s, got {_counts(others)}")

    def beats(self, number: int) -> list[Received]:
        """All messages until so many heartbeats came."""
        first = len(self.seen)
        for _ in range(number):
            self.next(Heartbeat)
        return self.seen[first:]

    def join(self) -> Hello:
        """Start the client, wait for its hello and welcome it."""
        self.start()
        return self.greet()

    def greet(self) -> Hello:
        """Wait for a hello, refusing other messages with hello-first, and welcome it."""
        answers_heartbeats, self.answers_heartbeats = self.answers_heartbeats, False
        while True:
            message = self.next(Message).message
            if isinstance(message, Hello):
                break
            if not isinstance(message, Bye | Error):
                self.send(Error(reason=Reason.HELLO_FIRST))
        if message.client_id != self.client_id:
            raise BrokenRuleError(f"expected client_id {self.client_id} in hello, got {message.client_id}")
        self.answers_heartbeats = answers_heartbeats
        self.send(self.welcome)
        return message

    def give(self, task: Task, payload: Sequence[bytes] | None = None) -> None:
        self.send(task, run.model_frames() if payload is None else payload)

    def update_of(self, task: Task) -> Received:
        """The next update; it has to be of this task."""
        received = self.next(Update)
        assert isinstance(received.message, Update)
        if received.message.task_id != task.task_id:
            raise BrokenRuleError(
                f"expected the update of task {task.task_id}, got the one of task {received.message.task_id}"
            )
        return received

    def trained(self, task_id: int) -> tuple[Task, Received]:
        """One task and its update, without ack."""
        task = run.task(task_id, self.welcome)
        self.give(task)
        return task, self.update_of(task)

    def accept(self, task: Task) -> None:
        self.send(Ack(task_id=task.task_id, outcome="accepted", first_outcome="accepted"))

    def round(self, task_id: int) -> Received:
        """One task, its update and its ack."""
        task, update = self.trained(task_id)
        self.accept(task)
        return update

    def no_update(self, beats: int, why: str) -> None:
        """Fail if an update comes before so many heartbeats."""
        updates = [received for received in self.beats(beats) if isinstance(received.message, Update)]
        if updates:
            raise BrokenRuleError(f"expected no update {why}, got {_named(updates[0])}")

    def stop(self, reason: str, *, failed: bool | None = None) -> None:
        self.send(Stop.model_validate({"reason": reason, "version": run.VERSION, "failed": failed}))

    def _check_runs(self, kind: type[Message], others: dict[str, int]) -> None:
        if self._process is not None and self._process.poll() is not None:
            line = self.output()
            raise BrokenRuleError(
                f"expected {kind.type if kind is not Message else 'a message'!r}, got {_counts(others)} and the end of "
                f"the client with exit code {self._process.returncode}" + (f"; it printed: {line}" if line else "")
            )


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


def _counts(others: dict[str, int]) -> str:
    return ", ".join(f"{number} {name!r}" for name, number in others.items()) or "nothing"


def _named(received: Received) -> str:
    assert isinstance(received.message, Update)
    return f"the update of task {received.message.task_id}"


def _bind_again(socket: zmq.Socket[bytes], address: str, clock: RunClock) -> None:
    until_s = clock() + 5
    while True:
        try:
            socket.bind(address)
        except zmq.ZMQError:
            if clock() > until_s:
                raise
            time.sleep(0.01)
        else:
            return
