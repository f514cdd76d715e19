"""Explains a version: its updates, their weights, and why its round closed."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from unstale.compensators import Compensated, MeasuredError
from unstale.errors import UserError
from unstale.journal.close_reason import CloseReason
from unstale.journal.replay import RecordedRun
from unstale.journal.rows import RoundRow, UpdateRow
from unstale.learner.bounds import NormBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExplained:
    """An update in a round.

    Attributes:
        staleness: Rounds.
        weight: In the step.
        share: |weight| / sum of all |weights|; None where that is not a number.
        loss: Nats.
        arrived_s: Run time.
        into_round_s: Seconds since the round was opened, < 0 for an earlier update.
        norm: L2 norm of the update, None where it was not measured.
        bound: Bound on the norm, by recorded norms and the first `server.norm_max`; None without one, and for the bound
            of the first updates, which needs the initial model.
        compensation: Replacement of the update before the step; None without a compensator.
    """

    client_id: int
    task_id: int
    base_version: int
    staleness: int
    weight: float
    share: float | None
    loss: float
    num_examples: int
    arrived_s: float
    into_round_s: float
    norm: float | None
    bound: float | None
    compensation: Compensated | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundExplained:
    """A round. Other fields as in `RoundRow`.

    Attributes:
        version: That it made.
        last_version: Of the run.
        why: Reason why it closed.
        opened_s, closed_s, applied_s: Run time.
        errors: Of earlier estimates, measured by these updates.
        rejected: Number of rejected updates since the round before was closed, by reason.
        accuracy, loss: Of the version, None without an evaluation.
    """

    version: int
    last_version: int
    why: str
    opened_s: float
    closed_s: float
    applied_s: float
    compensate_s: float
    aggregate_s: float
    learning_rate: float
    rate_factor: float
    overflowed: bool
    digest: str
    errors: tuple[MeasuredError, ...]
    members: tuple[MemberExplained, ...]
    rejected: Mapping[str, int]
    accuracy: float | None
    loss: float | None


def explain(run: RecordedRun, version: int | None = None) -> RoundExplained:
    """Explain a version, by default the last one. Raises UserError if no round made it."""
    database = run.database
    evaluations = {row.version: row for row in database.evaluations()}
    last = database.last_version()
    version = last if version is None else version
    _check_was_made(version, last)
    row = next(database.rounds(version - 1))
    before = next(database.rounds(version - 2)) if version > 1 else None
    updates = list(database.updates_of(version))
    evaluation = evaluations.get(version)
    return RoundExplained(
        version=version,
        last_version=last,
        why=CloseReason(run, row, before, updates).sentence(),
        opened_s=row.closed_s - row.wait_s,
        closed_s=row.closed_s,
        applied_s=row.applied_s,
        compensate_s=row.compensate_s,
        aggregate_s=row.aggregate_s,
        learning_rate=row.learning_rate,
        rate_factor=row.rate_factor,
        overflowed=row.overflowed,
        digest=row.digest,
        errors=() if row.compensation is None else row.compensation.errors,
        members=_members(row, updates, _bounds_then(run, updates)),
        rejected=dict(Counter(update.reason or "" for update in _refused(run, row, before))),
        accuracy=None if evaluation is None else evaluation.accuracy,
        loss=None if evaluation is None else evaluation.loss,
    )


def _check_was_made(version: int, last: int) -> None:
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
