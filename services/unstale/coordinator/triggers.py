"""Triggers decide when a round closes. Plug-ins: docs/plugins.md.

Source: docs/methods/rounds.md#triggers

Legend: pending, number of accepted updates that are in no round; outstanding, number of open tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from unstale.plugins import Registry
from unstale.settings.learning import TriggerSettings


class Trigger(ABC):
    """Decides, without state, whether a round closes. The coordinator calls `take` after every event of an open round.

    A round that has stalled (`OpenRound.stalled`) does not close; after a pause, tasks are given again. If clients
    have declined, who get tasks only with a new version, it closes without updates instead where `take` permits it.
    """

    in_rounds: ClassVar[bool] = False
    """If True, participants are chosen when a round starts, and again after it has stalled; another client replaces one
    that declines. The round closes without updates if all participants have left, expired or declined and none failed
    or sent a rejected update, or if no client is active. If False, an idle client gets a task as soon as the selector
    permits it, and a round has at least one update, unless it would wait only for clients that declined."""
    cuts_off: ClassVar[bool] = False
    """Closing a round also closes its open tasks."""
    frees_sender: ClassVar[bool] = False
    """A client is idle once its update is accepted, before the round is applied. No tasks are given while a full round
    is pending behind the round that is being applied or is about to be, which bounds the number of pending updates."""

    @classmethod
    def keeps_sender(cls) -> bool:
        """Whether a client waits for the round of its update, and rounds have no participants (K-asynchronous loop)."""
        return not (cls.in_rounds or cls.frees_sender)

    k: int | None = None
    """Number of updates that close a round; None for a trigger without this setting."""
    wait_s: float | None = None
    """Minimum duration of a round in seconds; None for a trigger without this setting."""

    @abstractmethod
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        """Return how many pending updates form the round; None if it stays open. due: the round has lasted `wait_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(Trigger):
    """Closes when no task is open, with all pending updates; not without updates if a participant failed."""

    in_rounds: ClassVar[bool] = True

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return pending if outstanding == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KSync(Trigger):
    """Closes with the first k updates, or with fewer when no task is open (without updates as `Sync`)."""

    k: int

    in_rounds: ClassVar[bool] = True
    cuts_off: ClassVar[bool] = True

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return min(self.k, pending) if pending >= self.k or outstanding == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KAsync(Trigger):
    """Closes with the first k updates, or with fewer when no task is open; the other clients continue."""

    k: int

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        if pending >= self.k:
            return self.k
        return pending if pending > 0 and outstanding == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Async(Trigger):
    """Closes with every update: `KAsync` with k = 1."""

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return 1 if pending > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered(KAsync):
    """Closes as `KAsync`, but a sender gets a new task at once, on the current version (FedBuff)."""

    frees_sender: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline(Trigger):
    """Closes after `wait_s` with all pending updates, at least one (without updates as `Sync`). Open tasks continue."""

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
"""Built-in triggers by their names in the configuration."""

REGISTRY = Registry(kind="trigger", base=Trigger, where="unstale.coordinator.triggers", built_in=TRIGGERS)


def create(settings: TriggerSettings) -> Trigger:
    """Return the trigger of these settings. Raises UserError."""
    return REGISTRY.make(settings)
