"""Explains a version: its updates, their weights, and why its round closed."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from unstale.compensators import Compensated, MeasuredError
from unstale.config import build
from unstale.coordinator import events
from unstale.coordinator.machine import LEASE
from unstale.coordinator.triggers import TRIGGERS, Trigger, create
from unstale.errors import UserError
from unstale.journal.history import Shown, history
from unstale.journal.journal import CHECKPOINTS_KEPT
from unstale.journal.records import SILENT
from unstale.journal.replay import RecordedRun
from unstale.journal.resumption import ROLLED_BACK
from unstale.journal.rows import EventRow, RoundRow, UpdateRow
from unstale.learner.bounds import NormBounds
from unstale.metrics.named import CENTRAL

_SAME_S = 1e-6  # rounding error of times


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExplained:
    """An update in a round."""

    client_id: int
    task_id: int
    base_version: int
    staleness: int  # rounds
    weight: float  # in the step
    share: float | None  # |weight| / sum of all |weights|; None where that is not a number
    loss: float  # nats
    num_examples: int
    arrived_s: float  # run time
    into_round_s: float  # since the round was opened, < 0 for an earlier update
    norm: float | None  # L2, None where it was not measured
    # on the norm, by recorded norms and the first `server.norm_max`; None without one, and for the bound of the first
    # updates, which needs the initial model
    bound: float | None
    metrics: Mapping[str, float]  # that the client reports of its training, by name
    compensation: Compensated | None  # replacement of the update before the step; None without a compensator


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundExplained:
    """A round. Other fields as in `RoundRow`."""

    version: int
    last_version: int  # of the run
    why: str  # it closed
    opened_s: float
    closed_s: float
    applied_s: float
    compensate_s: float
    aggregate_s: float
    learning_rate: float
    rate_factor: float
    overflowed: bool
    digest: str
    errors: tuple[MeasuredError, ...]  # of earlier estimates, measured by these updates
    members: tuple[MemberExplained, ...]
    rejected: Mapping[str, int]  # number of rejected updates since the round before was closed, by reason
    split: str  # where `metrics` were measured: `central`, `clients` or `training`
    metrics: Mapping[str, float]  # of the version, the main one first; empty without an evaluation
    policy_metrics: Mapping[str, float]  # that policy and compensator report of themselves


_OF_THE_ROW = (
    *("version", "closed_s", "applied_s", "compensate_s", "aggregate_s"),
    *("learning_rate", "rate_factor", "overflowed", "digest"),
)


def explain(run: RecordedRun, version: int | None = None) -> RoundExplained:
    """Explain a version, by default the last one. Raises UserError if no round made it."""
    database = run.database
    last = database.last_version()
    version = last if version is None else version
    _check_version(version, last)
    row = next(database.rounds(version - 1))
    before = next(database.rounds(version - 2)) if version > 1 else None
    updates = list(database.updates_of(version))
    evaluations = history(database, run.main_metric, every=run.settings.evaluate_clients_every)
    shown = next((shown for one, shown in evaluations if one.version == version), Shown(CENTRAL, {}))
    return RoundExplained(
        **{name: getattr(row, name) for name in _OF_THE_ROW},
        last_version=last,
        why=_CloseReason(run, row, before, updates, _trigger(run)).sentence(),
        opened_s=row.closed_s - row.wait_s,
        errors=() if row.compensation is None else row.compensation.errors,
        members=_members(row, updates, _bounds_then(run, updates)),
        rejected=dict(Counter(update.reason or "" for update in _refused(run, row, before))),
        split=shown.split,
        metrics=shown.metrics,
        policy_metrics=row.metrics,
    )


def _check_version(version: int, last: int) -> None:
    if last == 0:
        raise UserError("the run has no rounds yet; repeat the command after the first round")
    if version == 0:
        raise UserError(f"ROUND is 0, the initial model, which no round made; expected 1 to {last}")
    if not 1 <= version <= last:
        raise UserError(f"ROUND is {version}, expected 1 to {last}, the last version")


def _bounds_then(run: RecordedRun, updates: Sequence[UpdateRow]) -> Mapping[int, float]:
    """Bound on the norm of each update at its arrival, by seq."""
    seqs = {update.seq for update in updates if update.norms is not None}
    if not seqs:
        return {}
    # The bound of the first updates needs the initial model, which is not loaded here.
    bounds = NormBounds(
        run.settings.server.norm_max, clients=run.settings.clients, model_norm=math.inf, buffers_norm=math.inf
    )
    bound_of: dict[int, float] = {}
    for update in run.database.updates_after(0):
        if update.seq > max(seqs):
            break
        if update.seq in seqs:
            bound_of[update.seq] = bounds.bounds(update.staged.local_rate).update
        bounds.replay(update.staged.client_id, update.staged.base_version, update.norms, update.reason)
    return {seq: bound for seq, bound in bound_of.items() if bound < math.inf}


def _members(row: RoundRow, updates: Sequence[UpdateRow], bounds: Mapping[int, float]) -> tuple[MemberExplained, ...]:
    total = math.fsum(abs(member.weight) for member in row.members)
    return tuple(
        MemberExplained(
            client_id=update.staged.client_id,
            task_id=update.staged.task_id,
            base_version=update.staged.base_version,
            staleness=member.staleness,
            weight=member.weight,
            share=abs(member.weight) / total if total > 0 else None,
            loss=update.staged.loss,
            num_examples=update.staged.num_examples,
            arrived_s=update.at_s,
            into_round_s=update.at_s - (row.closed_s - row.wait_s),
            norm=None if update.norms is None else update.norms.update,
            bound=bounds.get(update.seq),
            metrics=update.staged.metrics,
            compensation=None if row.compensation is None else row.compensation.updates[index],
        )
        for index, (update, member) in enumerate(zip(updates, row.members, strict=True))
    )


def _refused(run: RecordedRun, row: RoundRow, before: RoundRow | None) -> Iterator[UpdateRow]:
    """Updates that were rejected between the ends of the round before and of this one."""
    since_s, seq = -math.inf, 0
    if before is not None:
        since_s = before.closed_s
        seq = max((update.seq for update in run.database.updates_of(before.version)), default=0)
    for update in run.database.updates_after(seq):
        if update.at_s > row.closed_s:
            return
        if update.reason is not None and update.at_s > since_s:
            yield update


# --- why a round closed ---


@dataclass(frozen=True, slots=True)
class _CloseReason:
    """The end of one round, by the event whose time is `closed_s`: an update, a timer, a client that left, or the
    previous version.
    """

    run: RecordedRun
    row: RoundRow
    before: RoundRow | None  # the previous round
    updates: Sequence[UpdateRow]  # of the round, in order of arrival
    trigger: Trigger

    def sentence(self) -> str:
        """`k-async closes with 5 updates: the 5th came at 12.31 s`."""
        return f"{self._rule()}: {self._cause()}"

    @property
    def _name(self) -> str:
        return self.run.settings.trigger.name

    def _rule(self) -> str:
        k, wait_s = self.trigger.k, self.trigger.wait_s
        match self._name:
            case "sync":
                return "sync closes when every participant has answered or is out"
            case "k-sync":
                return f"k-sync closes with the first {_counted(k or 0)}"
            case "deadline":
                return f"deadline closes after {wait_s:g} s with all updates so far, or the first one after that"
            case "async":
                return "async closes with every update"
            case name if k is None:
                return f"{name} decides when a round closes"
            case name:
                return f"{name} closes with {_counted(k or 0)}"

    def _cause(self) -> str:
        count, at = len(self.updates), f"at {self.row.closed_s:.3f} s"
        size = self.trigger.k or (1 if self._name == "async" else None)
        alone = ", and nobody was left to wait for" if count < (size or 0) else ""
        if self._is_due:
            return f"{count} had come by then, {at}"
        if self._is_by_update:
            return f"{self._last_update(size)} came {at}{alone}"
        if self.before is not None and self.row.closed_s == self.before.applied_s:
            return f"{count or 'none'} had come when it was opened, {at}{alone}"
        return f"{count or 'none'} had come, and nobody was left to wait for {at}{self._closing_event()}"

    def _last_update(self, size: int | None) -> str:
        if self._name == "sync":
            return f"the last of {_counted(len(self.updates))}"
        return "it" if size == 1 else f"the {_ordinal(len(self.updates))}"

    @property
    def _is_by_update(self) -> bool:
        """Whether the arrival of an update closed the round."""
        return any(update.at_s == self.row.closed_s for update in self.updates)

    @property
    def _is_due(self) -> bool:
        """Whether the deadline closed the round."""
        wait_s = self.trigger.wait_s
        if wait_s is None:
            return False
        if self._is_by_update and len(self.updates) == 1:
            return self.row.wait_s <= wait_s + _SAME_S
        return len(self.updates) > 0

    def _closing_event(self) -> str:
        """In brackets, the event that closed the round, if it is stored."""
        closing = None
        for row in self.run.database.events_after(self._first_seq()):
            if row.at_s > self.row.closed_s:
                break
            is_this_version = row.kind == events.RoundApplied.__name__ and row.fields["version"] == self.row.version
            if row.at_s == self.row.closed_s and not is_this_version:
                closing = row
        description = None if closing is None else _description(closing)
        return "" if description is None else f" ({description})"

    def _first_seq(self) -> int:
        """A stored event before the closing one."""
        checkpoints = self.run.database.checkpoints()
        is_cut = len(checkpoints) == CHECKPOINTS_KEPT or bool(self.run.database.meta(ROLLED_BACK))
        forgets = is_cut and not self.run.settings.run.keep_updates
        kept = checkpoints[-1].seq if forgets else 0
        return max(kept, max((update.seq - 1 for update in self.updates), default=0))


class _Unknown(Trigger):
    """A trigger whose code is not imported: a recorded run may name any."""

    @override
    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return None


def _trigger(run: RecordedRun) -> Trigger:
    """The trigger, alone: other parts do not matter, and their files may not exist any more."""
    if run.settings.trigger.name not in TRIGGERS:
        return _Unknown()
    return create(build.trigger_settings(run.settings))


def _counted(updates: int) -> str:
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
        events.TaskRaised.__name__: f"the code of {client} raised in its task",
        events.TaskDeclined.__name__: f"{client} declined its task",
        events.TaskExpired.__name__: f"the task of {client} expired",
    }.get(row.kind)
