"""State of a simulated client behind toxics, and the interfaces between network, server and tests."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from unstale.server.executor import ActionExecutor
from unstale.toxics.corrupt import Corrupt
from unstale.toxics.dropout import Dropout
from unstale.toxics.in_flight import Direction, InFlightMessage
from unstale.toxics.toxic import Toxic
from unstale_client.session import ClientSession
from unstale_proto.messages import Message, Task

M = TypeVar("M", bound=Message)


class Relay(Protocol):
    """Applied to every message on its way."""

    def __call__(self, message: M) -> M: ...


class ServerSide(Protocol):
    """The simulated server, as its clients need it."""

    executor: ActionExecutor

    def take_update(self, client_id: int, task: Task, damaged: InFlightMessage | None = None) -> None:
        """Receive the update of a task. Raises RemoteContractError when it cannot be read."""

    def quarantine(self, client_id: int) -> None:
        """Exclude a client for a while."""

    def duration_s(self, client_id: int, number: int) -> float:
        """Time that a task of this number takes on a client's device."""

    def on_model_damaged(self, client_id: int, task: Task, damaged: InFlightMessage) -> None:
        """The model of a task arrived damaged, as in this message."""

    def settle(self, client_id: int, number: int, *, accepted: bool) -> None:
        """A client knows the verdict on the update of its task."""


@dataclass(slots=True)
class Traffic:
    """Counts of the messages that pass toxics.

    Attributes:
        sent: Messages sent.
        lost: Messages and copies lost, also on connections that broke, and those that could not be read.
        copied: Copies made.
        declined: Tasks declined.
        cuts: Connections that broke.
        resent: Updates sent again.
        tasks_lost: Tasks that were proven lost.
    """

    sent: int = 0
    lost: int = 0
    copied: int = 0
    declined: int = 0
    cuts: int = 0
    resent: int = 0
    tasks_lost: int = 0


@dataclass(slots=True)
class Given:
    """A task, the time when it was sent, and the number of times that its update was."""

    task: Task
    began_s: float
    updates: int = 0


@dataclass(slots=True, eq=False)
class SimulatedClient:
    """A client behind the network.

    Attributes:
        session: The client's protocol.
        has_heartbeats: Its heartbeats are simulated.
        connection: Number of its connection, from 0.
        is_open: The connection is open.
        is_named: A hello was sent on it: the toxics know its client.
        is_known: A hello arrived on it: the server knows its client.
        ticks_s: Time of the next call of the session; None for none.
        counts: Messages by direction and type.
        given: Tasks by id, oldest first.
    """

    session: ClientSession
    has_heartbeats: bool
    connection: int = 0
    is_open: bool = True
    is_named: bool = False
    is_known: bool = False
    ticks_s: float | None = None
    counts: Counter[tuple[Direction, str]] = field(default_factory=Counter)
    given: OrderedDict[int, Given] = field(default_factory=OrderedDict)


def may_lose(toxic: Toxic) -> bool:
    """Whether a toxic may lose something that only a heartbeat detects."""
    if isinstance(toxic, Dropout):
        return not toxic.by_rounds
    return toxic.destroys or isinstance(toxic, Corrupt)
