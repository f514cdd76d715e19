"""A client on the other side of a network that toxics trouble, and what the network has to do with both sides."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from unstale.client.session import ClientSession
from unstale.coordinator import events
from unstale.toxics.corrupt import Corrupt
from unstale.toxics.dropout import Dropout
from unstale.toxics.in_flight import Direction, InFlightMessage
from unstale.toxics.toxic import Toxic
from unstale_proto.messages import Message, Task

M = TypeVar("M", bound=Message)


class Relay(Protocol):
    """What a message goes through on its way to the other side."""

    def __call__(self, message: M) -> M: ...


def as_it_is(message: M) -> M:
    return message


class ServerSide(Protocol):
    """What is behind the network: the server, and what clients do beside talking."""

    def handle(self, event: events.Event) -> None:
        """Tell the coordinator."""

    def take_update(self, client_id: int, task: Task, damaged: InFlightMessage | None = None) -> None:
        """The update of a task came in. damaged: how it came, if it was. Raises RemoteContractError when it cannot be
        read."""

    def is_active(self, client_id: int) -> bool:
        """As the coordinator says."""

    def awaits(self, client_id: int, task_id: int) -> bool:
        """As the coordinator says."""

    @property
    def version(self) -> int:
        """The current one."""

    def duration_s(self, client_id: int, number: int) -> float:
        """How long a task of this number takes on a client's device."""

    def got_damaged(self, client_id: int, task: Task, damaged: InFlightMessage) -> None:
        """A client works on a model that came like this."""

    def settle(self, client_id: int, number: int, *, accepted: bool) -> None:
        """A client knows what became of the update of its task."""


@dataclass(slots=True)
class Traffic:
    """What became of the messages of clients in a scenario.

    sent: all that went on their way. lost: copies count, and so does what was on a connection that broke, or what
    nobody could read. copied: copies made. declined: tasks. cuts: connections that broke. resent: updates sent again.
    tasks_lost: tasks that were found never to have reached their clients.
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
    """A task, when it was sent first, and how often its update was."""

    task: Task
    began_s: float
    updates: int = 0


@dataclass(slots=True, eq=False)
class SimulatedClient:
    """A client behind the network.

    beats: whether its heartbeats are played. line: which connection it is on, counted from 0. is_open: whether there
    is one. is_named: whether a hello has entered on it, from where on the toxics know whose it is. is_known: whether
    one has come out, from where on the server knows. ticks_s: when its session is called next.
    """

    session: ClientSession
    beats: bool
    line: int = 0
    is_open: bool = True
    is_named: bool = False
    is_known: bool = False
    ticks_s: float | None = None
    counts: Counter[tuple[Direction, str]] = field(default_factory=Counter)
    given: OrderedDict[int, Given] = field(default_factory=OrderedDict)


def may_lose(toxic: Toxic) -> bool:
    """Whether something may be lost for which it takes a heartbeat to find out."""
    if isinstance(toxic, Dropout):
        return not toxic.by_rounds
    return toxic.destroys or isinstance(toxic, Corrupt)
