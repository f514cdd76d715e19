"""When a round closes: one class a trigger.

Source: docs/methods/rounds.md#triggers

Legend: pending, accepted updates that no round holds yet; outstanding, open tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from unstale.settings.learning import TriggerSettings
from unstale.settings.part import part


class Trigger(ABC):
    """The interface. A trigger keeps no state: it is asked after every event of an open round that has not stalled.

    A round has stalled when everyone at work in it has failed or been refused. Then tasks are given again after a
    pause; or, where clients have declined and only a new version asks them again, it closes without updates if it can.
    """

    in_rounds: ClassVar[bool] = False
    """Participants are chosen once, when a round starts, and again only when it has stalled; the place of one that
    declines goes to another. A round closes with no update when those at work in it have left, been lost or declined,
    and none failed or was refused, or nobody is there. Otherwise an idle client gets a task as soon as the selector has
    a place, and a round holds at least one update, or none when it could only wait for clients that declined."""
    cuts_off: ClassVar[bool] = False
    """Closing a round takes back the tasks that are still open."""
    frees_sender: ClassVar[bool] = False
    """A client is idle once its update is accepted, before the round is applied. Tasks are held back while a whole
    round waits behind the one that is in the making, or is about to be, so that updates do not pile up."""

    @classmethod
    def keeps_sender(cls) -> bool:
        """Whether it is the K-async loop: a client waits for the round of its update, and rounds choose nobody."""
        return not (cls.in_rounds or cls.frees_sender)

    k: int | None = None
    """The updates that close a round; None where their number does not."""
    wait_s: float | None = None
    """How long a round lasts at least, in seconds; None: no time counts."""

    @abstractmethod
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        """Number of pending updates in the round that closes now; None: it stays open. due: `wait_s` has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(Trigger):
    """When every participant has answered or is out, with what came; not with none when one failed or was refused."""

    in_rounds: ClassVar[bool] = True

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return pending if outstanding == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KSync(Trigger):
    """With the first k; the others have worked for nothing. With fewer when nobody is left, and with none as Sync."""

    k: int

    in_rounds: ClassVar[bool] = True
    cuts_off: ClassVar[bool] = True

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return min(self.k, pending) if pending >= self.k or outstanding == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KAsync(Trigger):
    """With the first k updates; the other clients continue. With fewer if no client can send another one."""

    k: int

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        if pending >= self.k:
            return self.k
        return pending if pending > 0 and outstanding == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Async(Trigger):
    """With every update: K-async, k = 1."""

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return 1 if pending > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered(KAsync):
    """As K-async, but who has sent an update gets a new task at once, on the current version (FedBuff)."""

    frees_sender: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline(Trigger):
    """After wait_s, with what has come, or then with the first that comes; with none as Sync. Stragglers work on."""

    wait_s: float

    in_rounds: ClassVar[bool] = True

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return pending if due and (pending > 0 or outstanding == 0) else None


TRIGGERS: Mapping[str, type[Trigger]] = {
    "sync": Sync,
    "k-sync": KSync,
    "k-async": KAsync,
    "async": Async,
    "buffered": Buffered,
    "deadline": Deadline,
}
"""Every trigger by its name in the configuration."""


def create(settings: TriggerSettings) -> Trigger:
    """The trigger that these settings choose. Raises UserError."""
    return part(settings, "trigger", TRIGGERS)
