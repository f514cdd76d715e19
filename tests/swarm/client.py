"""Client processes: the real session, with simulated connections and training. They crash, leave and return."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from support.parts import PlayedPart
from swarm.hostile import HostileUpdates
from swarm.learning import NUMBERS
from swarm.network import NEAR, Dial, Frames, Link, Network
from swarm.world import World
from unstale.gateway.transport import Delivery
from unstale.server.state import TransferBounds
from unstale_client.actions import Action, PendingUpdate, Retire, Send, Settle, Train, Warn
from unstale_client.models import Models
from unstale_client.session import ClientSession, State
from unstale_proto import codec
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Ack, Error, Message, Task, Update, Welcome
from unstale_proto.transfer import checksum


def payload_of(numbers: Sequence[float]) -> list[memoryview]:
    return [memoryview(np.array(numbers, dtype="<f4").tobytes())]


def vector(client_id: int, task_id: int, base_version: int) -> list[memoryview]:
    """The payload of an update: its client, task and base version."""
    return payload_of([client_id, task_id, base_version])


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The behaviour of clients. Seconds: upper bounds. Shares: of tasks."""

    training_s: float
    reconnect_s: float
    failing: float
    non_finite: float


class Watcher(Protocol):
    """Observes the messages to clients, before they process them, and their updates."""

    def client_received(self, process: "Process", message: Message, frames: Frames) -> None: ...

    def client_trains(self, process: "Process", train: Train) -> None: ...

    def client_made(self, process: "Process", update: Update) -> None: ...

    def client_failed(self, process: "Process", task_id: int) -> None: ...


class Process:
    """One client's process, from its start until it ends.

    number: unique. kept: updates in its outbox at the start. malice: of a hostile one.
    """

    def __init__(
        self,
        client_id: int,
        number: int,
        *,
        world: World,
        network: Network,
        dial: Dial,
        behaviour: Behaviour,
        transfers: TransferBounds | None,
        watcher: Watcher,
        kept: Sequence[PendingUpdate] = (),
        malice: HostileUpdates | None = None,
    ) -> None:
        self.client_id = client_id
        self.is_hostile = malice is not None
        self.name = f"client {client_id}.{number}"
        self._announces = transfers is not None
        bounds = transfers or TransferBounds()
        self._models = Models(lambda _: PlayedPart(), PlayedPart, window_bytes=bounds.window_bytes)
        self.session = ClientSession(
            client_id, f"{number:032x}", kept, models=self._models, chunk_bytes=bounds.chunk_bytes
        )
        self.alive = True
        self.link: Link | None = None
        self._world = world
        self._network = network
        self._dial = dial
        self._manners = behaviour
        self._watcher = watcher
        self._malice = malice
        self._rng = world.draws(self.name)
        self._ticking_s: float | None = None
        world.after(self._up_to(behaviour.reconnect_s), self._connect)

    def crash(self) -> None:
        """End without a goodbye; the connection closes as by the operating system."""
        self._end("crashes")

    def leave(self) -> None:
        """End with a goodbye."""
        self._follow(self.session.leave("enough"))
        self._end("leaves")

    def say_hello_again(self) -> None:
        """Send a superfluous copy of the hello on the current connection."""
        self.session.state = State.GREETING
        self._follow(self.session._greet(None, (), self._world.now_s))

    @property
    def run_id(self) -> str | None:
        """The id of its run."""
        return self.session.run_id

    @property
    def unacknowledged(self) -> Sequence[int]:
        """The tasks of the stored updates."""
        return list(self.session._updates)

    @property
    def outbox(self) -> Sequence[PendingUpdate]:
        """The updates for the next process of this client."""
        return [entry.pending for entry in self.session._updates._entries.values()]

    def receive(self, link: Link, header: bytes, frames: Frames) -> None:
        if not self.alive or link is not self.link:
            return
        try:
            message = codec.decode(header)
        except RemoteContractError as error:
            self._say(Error(reason=error.reason, message=str(error)), ())
            return
        self._watcher.client_received(self, message, frames)
        self._world.note(self.name, f"hears {summary(message)}")
        self._follow(self.session.received(message, frames, self._world.now_s))

    def lost(self, link: Link) -> None:
        if self.alive and link is self.link:
            self.link = None
            self._world.after(self._up_to(self._manners.reconnect_s), self._connect)

    # --- the loop ---

    def _up_to(self, most_s: float) -> float:
        return most_s * float(self._rng.random())

    def _connect(self) -> None:
        if not self.alive or self.link is not None:
            return
        self.link = self._dial(self)
        if self.link is None:
            self._world.after(self._manners.reconnect_s, self._connect)
        elif self.session.state is State.AWAY:
            self._follow(self.session.reachable(self._world.now_s))

    def _end(self, how: str) -> None:
        self._world.note(self.name, how)
        self.alive = False
        if self.link is not None:
            self._network.close(self.link, NEAR)
            self.link = None

    def _follow(self, instructions: Sequence[Action]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(message=message, parcel=parcel):
                    if not self._say(message, parcel):
                        self.session.unreachable()
                        if self.link is not None:  # a full queue drains, and becomes writable
                            self._world.after(self._manners.reconnect_s, self._writable)
                        break
                case Train():
                    self._train(instruction)
                case Retire():
                    self._world.note(self.name, f"retires: {instruction.message}")
                case Settle() | Warn():
                    pass
        if self._models.woken() and self.alive:
            self._follow(self.session.continue_download())
        if self.session.state is State.OVER and self.alive:
            self._end("ends")
        self._plan_tick()

    def _writable(self) -> None:
        if self.alive and self.link is not None and self.session.state is State.AWAY:
            self._follow(self.session.reachable(self._world.now_s))

    def _say(self, message: Message, parcel: Frames) -> bool:
        """Whether a connection accepted it."""
        if self.link is None:
            return False
        self._world.note(self.name, f"says {summary(message)}")
        return self._network.send(self.link, NEAR, codec.encode(message), parcel) is Delivery.SENT

    def _plan_tick(self) -> None:
        due_s = self.session.due_s
        if due_s is None or not self.alive or (self._ticking_s is not None and self._ticking_s <= due_s):
            return
        self._ticking_s = due_s

        def tick() -> None:
            if self._ticking_s != due_s or not self.alive:
                return  # rescheduled since
            self._ticking_s = None
            self._follow(self.session.tick(self._world.now_s))

        self._world.at(due_s, tick)

    # --- training ---

    def _train(self, train: Train) -> None:
        self._watcher.client_trains(self, train)
        seconds = self._up_to(self._manners.training_s)
        fails, is_finite = (self._rng.random() >= self._manners.failing, self._rng.random() >= self._manners.non_finite)
        self._world.after(seconds, lambda: self._trained(train, fails=not fails, is_finite=is_finite))

    def _trained(self, train: Train, *, fails: bool, is_finite: bool) -> None:
        task, run_id = train.task, train.welcome.run_id
        if not self.alive or not self.session.wants(run_id, task.task_id):
            return
        if fails:
            self._world.seen["tasks failed"] += 1
            self._watcher.client_failed(self, task.task_id)
            self._follow(self.session.failed(run_id, task.task_id, "the training diverged"))
            return
        parcel: Frames = vector(self.client_id, task.task_id, task.version)
        if not is_finite:
            parcel = payload_of([np.nan] * NUMBERS)
        update = update_of(task)
        if self._announces:
            self._world.seen["updates announced"] += 1
            update = update.model_copy(update={"checksum": checksum(parcel)})
        if self._malice is not None:
            update, parcel = self._corrupted(self._malice, update, parcel)
        else:
            self._watcher.client_made(self, update)
        self._world.note(self.name, f"made the update of task {task.task_id}")
        self._follow(self.session.trained(run_id, update, parcel))

    def _corrupted(self, malice: HostileUpdates, update: Update, parcel: Frames) -> tuple[Update, Frames]:
        self._world.seen["bad updates"] += 1
        for header, frames in malice.rubbish(update, parcel):
            if self.link is not None:
                self._world.seen["rubbish"] += 1
                self._network.send(self.link, NEAR, header, frames)
        return malice.update(update, NUMBERS)


def update_of(task: Task) -> Update:
    """The header of a task's update."""
    return Update(
        task_id=task.task_id,
        base_version=task.version,
        kind="gradient",
        num_examples=1,
        steps=1,
        loss=1.0,
        learning_rate=task.learning_rate,
        signature=task.signature,
        payload_bytes=task.payload_bytes,
    )


def summary(message: Message) -> str:
    """A short text of a message for the transcript."""
    match message:
        case Task(task_id=task_id, version=version):
            return f"task {task_id} on version {version}"
        case Update(task_id=task_id):
            return f"update {task_id}"
        case Ack(task_id=task_id, outcome=outcome, reason=reason):
            return f"ack {task_id} {outcome}{f' ({reason.value})' if reason else ''}"
        case Welcome(version=version):
            return f"welcome at version {version}"
        case Error(reason=Reason() as reason, task_id=task_id):
            return f"error {reason.value}{f' of task {task_id}' if task_id else ''}"
        case _:
            fields = " ".join(f"{name}={value}" for name, value in vars(message).items() if value is not None)
            return f"{message.type} {fields}"
