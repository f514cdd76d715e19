"""Why a round closed: the rule of its trigger, and the event at that moment."""

from collections.abc import Sequence

from unstale.config import build
from unstale.config.settings import ScenarioSettings, Settings
from unstale.coordinator import events
from unstale.coordinator.machine import LEASE
from unstale.coordinator.triggers import Trigger
from unstale.journal.journal import CHECKPOINTS_KEPT
from unstale.journal.records import SILENT
from unstale.journal.replay import RecordedRun
from unstale.journal.resumption import ROLLED_BACK
from unstale.journal.rows import EventRow, RoundRow, UpdateRow
from unstale.settings.learning import SelectorSettings

_SAME_S = 1e-6  # rounding error of times


class CloseReason:
    """The end of one round, by the event whose time is `closed_s`: an update, a timer, a client that left, or the
    previous version.
    """

    def __init__(self, run: RecordedRun, row: RoundRow, before: RoundRow | None, updates: Sequence[UpdateRow]) -> None:
        """before: the previous round. updates: of the round, in order of arrival."""
        self._run = run
        self._row = row
        self._before = before
        self._updates = updates
        self._trigger_name = run.settings.trigger.name
        self._trigger = _trigger(run.settings)
        self._count = len(updates)

    def sentence(self) -> str:
        """`k-async closes with 5 updates: the 5th came at 12.31 s`."""
        return f"{self._rule()}: {self._cause()}"

    def _rule(self) -> str:
        name, k, wait_s = self._trigger_name, self._trigger.k, self._trigger.wait_s
        match name:
            case "sync":
                return "sync closes when every participant has answered or is out"
            case "k-sync":
                return f"k-sync closes with the first {counted(k or 0)}"
            case "deadline":
                return f"deadline closes after {wait_s:g} s with all updates so far, or the first one after that"
            case "async":
                return "async closes with every update"
            case _:
                return f"{name} closes with {counted(k or 0)}"

    def _cause(self) -> str:
        count, at = self._count, f"at {self._row.closed_s:.3f} s"
        size = self._trigger.k or (1 if self._trigger_name == "async" else None)
        alone = ", and nobody was left to wait for" if count < (size or 0) else ""
        if self._is_due:
            return f"{count} had come by then, {at}"
        if self._is_by_update:
            return f"{self._last_update(size)} came {at}{alone}"
        if self._before is not None and self._row.closed_s == self._before.applied_s:
            return f"{count or 'none'} had come when it was opened, {at}{alone}"
        return f"{count or 'none'} had come, and nobody was left to wait for {at}{self._closing_event()}"

    def _last_update(self, size: int | None) -> str:
        if self._trigger_name == "sync":
            return f"the last of {counted(self._count)}"
        return "it" if size == 1 else f"the {_ordinal(self._count)}"

    @property
    def _is_by_update(self) -> bool:
        """Whether the arrival of an update closed the round."""
        return any(update.at_s == self._row.closed_s for update in self._updates)

    @property
    def _is_due(self) -> bool:
        """Whether the deadline closed the round."""
        wait_s = self._trigger.wait_s
        if wait_s is None:
            return False
        if self._is_by_update and self._count == 1:
            return self._row.wait_s <= wait_s + _SAME_S
        return self._count > 0

    def _closing_event(self) -> str:
        """In brackets, the event that closed the round, if it is stored."""
        closing = None
        for row in self._run.database.events_after(self._first_seq()):
            if row.at_s > self._row.closed_s:
                break
            if row.at_s == self._row.closed_s and not self._is_this_version(row):
                closing = row
        description = None if closing is None else _description(closing)
        return "" if description is None else f" ({description})"

    def _first_seq(self) -> int:
        """A stored event before the closing one."""
        checkpoints = self._run.database.checkpoints()
        is_cut = len(checkpoints) == CHECKPOINTS_KEPT or bool(self._run.database.meta(ROLLED_BACK))
        forgets = is_cut and not self._run.settings.run.keep_updates
        kept = checkpoints[-1].seq if forgets else 0
        return max(kept, max((update.seq - 1 for update in self._updates), default=0))

    def _is_this_version(self, row: EventRow) -> bool:
        return row.kind == events.RoundApplied.__name__ and row.fields["version"] == self._row.version


def counted(updates: int) -> str:
    """`1 update`, `5 updates`."""
    return "1 update" if updates == 1 else f"{updates} updates"


def _ordinal(number: int) -> str:
    """`1st`, `12th`, `22nd`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _description(row: EventRow) -> str | None:
    """A short description of an event; None for other kinds."""
    client = f"client {row.fields.get('client_id')}"
    silent = row.fields.get(SILENT)
    if row.fields.get("timer") == LEASE and silent:
        return f"the lease of client{'s' * (len(silent) > 1)} {', '.join(map(str, silent))} expired"
    return {
        events.ClientLeft.__name__: f"{client} left",
        events.ClientJoined.__name__: f"{client} joined again",
        events.UpdateArrived.__name__: f"the update of {client} was rejected",
        events.TaskFailed.__name__: f"{client} failed at its task",
        events.TaskDeclined.__name__: f"{client} declined its task",
        events.TaskExpired.__name__: f"the task of {client} expired",
    }.get(row.kind)


def _trigger(settings: Settings) -> Trigger:
    """The trigger. Scenario and selector do not matter, and their files may not exist any more."""
    plain = settings.model_copy(update={"scenario": ScenarioSettings(), "selector": SelectorSettings()})
    return build.coordinator_settings(plain).trigger_part
