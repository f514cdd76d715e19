"""Why a round closed when it did: the trigger's rule, and what happened at that moment."""

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

_SAME_S = 1e-6  # times that differ by less are one: they were added up and subtracted


class CloseReason:
    """The end of one round. before: the round before it, None for the first. updates: of the round, as they came.

    A round is closed by the very event whose time is `closed_s`: an update, a timer, a client that left, or the version
    before it being made.
    """

    def __init__(
        self, run: RecordedRun, row: RoundRow, before: RoundRow | None, updates: Sequence[UpdateRow]
    ) -> None:
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
                return "sync closes when everyone who was asked has answered or is out"
            case "k-sync":
                return f"k-sync closes with the first {counted(k or 0)}"
            case "deadline":
                return f"deadline closes after {wait_s:g} s with what has come, or with the first update after that"
            case "async":
                return "async closes with every update"
            case _:
                return f"{name} closes with {counted(k or 0)}"

    def _cause(self) -> str:
        count, at = self._count, f"at {self._row.closed_s:.3f} s"
        enough = self._trigger.k or (1 if self._trigger_name == "async" else None)
        alone = ", and nobody was left to wait for" if enough is not None and count < enough else ""
        if self._is_due:
            return f"{count} had come by then, {at}"
        if self._came_last:
            if self._trigger_name == "sync":
                return f"the last of {counted(count)} came {at}"
            return f"{'it' if enough == 1 else f'the {_ordinal(count)}'} came {at}{alone}"
        if self._before is not None and self._row.closed_s == self._before.applied_s:
            return f"{count or 'none'} had come when it was opened, {at}{alone}"
        return f"{count or 'none'} had come, and nobody was left to wait for {at}{self._what_happened()}"

    @property
    def _came_last(self) -> bool:
        """Whether it was the arrival of an update that closed the round."""
        return any(update.at_s == self._row.closed_s for update in self._updates)

    @property
    def _is_due(self) -> bool:
        """Whether it was the deadline."""
        wait_s = self._trigger.wait_s
        if wait_s is None:
            return False
        if self._came_last and self._count == 1:
            return self._row.wait_s <= wait_s + _SAME_S
        return self._count > 0

    def _what_happened(self) -> str:
        """In brackets, the event that closed the round, where it is still kept."""
        closing = None
        for row in self._run.database.events_after(self._first_seq()):
            if row.at_s > self._row.closed_s:
                break
            if row.at_s == self._row.closed_s and not self._is_this_version(row):
                closing = row
        words = None if closing is None else _words(closing)
        return "" if words is None else f" ({words})"

    def _first_seq(self) -> int:
        """An event that is kept, from which on the closing one is to be found."""
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


def _words(row: EventRow) -> str | None:
    """What happened, in a few words; None for what needs none."""
    client = f"client {row.fields.get('client_id')}"
    silent = row.fields.get(SILENT)
    if row.fields.get("timer") == LEASE and silent:
        return f"nothing had been heard of client{'s' * (len(silent) > 1)} {', '.join(map(str, silent))} for a lease"
    return {
        events.ClientLeft.__name__: f"{client} left",
        events.ClientJoined.__name__: f"{client} came back",
        events.UpdateArrived.__name__: f"the update of {client} was refused",
        events.TaskFailed.__name__: f"{client} could not do its task",
        events.TaskDeclined.__name__: f"{client} declined its task",
        events.TaskExpired.__name__: f"the task of {client} expired",
    }.get(row.kind)


def _trigger(settings: Settings) -> Trigger:
    """As the coordinator was told. Neither scenario nor selector matter, and their files may be gone."""
    plain = settings.model_copy(update={"scenario": ScenarioSettings(), "selector": SelectorSettings()})
    return build.coordinator_settings(plain).trigger_part
