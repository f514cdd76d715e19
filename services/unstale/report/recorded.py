"""A run as its directory has it at one instant, as columns of numbers.

Legend: U updates that had a verdict, in order; R rounds; E evaluations; C classes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from math import inf, nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unstale.compensators import MeasuredError
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.journal.crash_recovery import ENDED, RUN_ID
from unstale.journal.database import Conservation, Database
from unstale.journal.replay import RecordedRun
from unstale.journal.rows import CompensationRow, OwnEvaluationRow, RoundRow
from unstale.journal.rundir import LOCK
from unstale.metrics.fairness import Fairness, OwnEvaluations

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class State(StrEnum):
    """How far a run is. BROKEN: its last server died. OPEN: goes on, or broke off; this system cannot tell which."""

    FINISHED = "finished"
    STOPPED = "stopped before its end"
    GOES_ON = "still going on"
    BROKEN = "broken off"
    OPEN = "still going on, or broken off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """reasons_U: why each was refused, "" for one that was accepted. version_U: that it went into, 0 for none.
    staleness_U: rounds, -1 without a version. weight_U: in the step. share_U: of the weights of its round, without
    their signs; both NaN without a version, and share_U where that is no number. elapsed_s_U: since the first task.
    """

    elapsed_s_U: Floats
    client_U: Integers
    num_examples_U: Integers
    loss_U: Floats
    reasons_U: Sequence[str]
    version_U: Integers
    staleness_U: Integers
    weight_U: Floats
    share_U: Floats

    @property
    def aggregated_U(self) -> NDArray[np.bool_]:
        return self.version_U > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """One a version, in order. Times in seconds, as in `RoundRow`; elapsed since the first task."""

    version_R: Integers
    closed_elapsed_s_R: Floats
    applied_elapsed_s_R: Floats
    wait_s_R: Floats
    compensate_s_R: Floats
    aggregate_s_R: Floats
    learning_rate_R: Floats
    rate_factor_R: Floats
    overflowed_R: NDArray[np.bool_]
    updates_R: Integers
    digests_R: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """accuracy_E: share of the test set. loss_E: nats. classes_EC: by class, NaN where the test set has none of it."""

    version_E: Integers
    elapsed_s_E: Floats
    accuracy_E: Floats
    loss_E: Floats
    classes_EC: Floats
    evaluate_s_E: Floats

    def __len__(self) -> int:
        return len(self.version_E)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensations:
    """Of a run with a compensator. errors: with the version whose round told them. methods: how many updates each round
    made of each, by version and method. fallbacks: by reason."""

    errors: Sequence[tuple[int, MeasuredError]]
    methods: Counter[tuple[int, str]]
    fallbacks: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What clients measured on their own test examples. answers: to what they were asked, in order. last: the last
    accuracy of each client. fairness: over those, as the server's metrics have it; None where nobody answered."""

    answers: Sequence[OwnEvaluationRow]
    last: Mapping[int, float]
    fairness: Fairness | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """name: that no other run of the report has. run_id: None for a simulated one, whose times are virtual. tasks: how
    many each client was given. rounds_wanted: with which it is finished. compensations: None without a compensator."""

    name: str
    path: Path
    settings: Settings
    state: State
    run_id: str | None
    tasks: Counter[int]
    updates: Updates
    rounds: Rounds
    evaluations: Evaluations
    compensations: Compensations | None
    own: Own
    conservation: Conservation

    @property
    def is_simulated(self) -> bool:
        return self.run_id is None

    @property
    def version(self) -> int:
        """The last that was made."""
        return int(self.rounds.version_R[-1]) if len(self.rounds.version_R) else 0

    @property
    def elapsed_s(self) -> float:
        """From the first task to the last thing that is known."""
        last = [*self.updates.elapsed_s_U[-1:], *self.rounds.applied_elapsed_s_R[-1:]]
        return max((float(at_s) for at_s in (*last, *self.evaluations.elapsed_s_E[-1:])), default=0.0)

    @property
    def clients(self) -> int:
        return self.settings.clients


def read(path: Path, name: str) -> Run:
    """Read all of a run. Raises UserError when it is none, is damaged, or has another format."""
    with RecordedRun(path) as recorded, recorded.database.snapshot():
        database = recorded.database
        started_s = database.started_s() or 0.0
        rounds = list(database.rounds())
        return Run(
            name=name,
            path=path,
            settings=recorded.settings,
            state=_state(path, database, len(rounds) >= recorded.settings.rounds),
            run_id=database.meta(RUN_ID),
            tasks=Counter(task.client_id for task in database.tasks()),
            updates=_updates(database, rounds, started_s),
            rounds=_rounds(rounds, started_s),
            evaluations=_evaluations(database, started_s),
            compensations=_compensations(rounds),
            own=_own(database, recorded.settings.evaluate_clients_every),
            conservation=database.conservation(),
        )


def names_of(paths: Sequence[Path]) -> list[str]:
    """What to call each run: the name of its directory, with as much of its path as tells it from the others.

    Raises UserError when one is named twice.
    """
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise UserError(f"{paths[place]} is named twice, expected every RUN once; leave one out")
    depth = 1
    while len({path.parts[-depth:] for path in resolved}) < len(resolved):
        depth += 1
    return [printable("/".join(path.parts[-depth:])) for path in resolved]


def printable(text: str) -> str:
    """With a mark in place of what no page can show, such as the bytes of a name that is not UTF-8."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def _state(path: Path, database: Database, is_finished: bool) -> State:
    if is_finished:
        return State.FINISHED
    if database.meta(ENDED):
        return State.STOPPED
    in_use = _is_in_use(path)
    if in_use is None:
        return State.OPEN
    return State.GOES_ON if in_use else State.BROKEN


def _is_in_use(path: Path) -> bool | None:
    """Whether a server has its lock, which is tried for no longer than that takes; None where that is not known."""
    with suppress(ImportError, FileNotFoundError, PermissionError):
        import fcntl

        with (path / LOCK).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:  # a file system without locks
                return None
            return False
    return None


def _updates(database: Database, rounds: Sequence[RoundRow], started_s: float) -> Updates:
    rows = list(database.updates_after(0))
    version_U, staleness_U = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
    weight_U, share_U = np.full(len(rows), nan), np.full(len(rows), nan)
    places = {row.handle: place for place, row in enumerate(rows) if row.handle is not None}
    for round_ in rounds:
        if not round_.members:
            continue
        at_K = [places[member.handle] for member in round_.members]
        version_U[at_K] = round_.version
        staleness_U[at_K] = [member.staleness for member in round_.members]
        weight_K = np.array([member.weight for member in round_.members])
        weight_U[at_K] = weight_K
        total = np.abs(weight_K).sum()
        share_U[at_K] = np.abs(weight_K) / total if 0 < total < inf else nan
    return Updates(
        elapsed_s_U=np.array([row.at_s for row in rows], np.float64) - started_s,
        client_U=np.array([row.client_id for row in rows], np.int64),
        num_examples_U=np.array([row.num_examples for row in rows], np.int64),
        loss_U=np.array([row.loss for row in rows], np.float64),
        reasons_U=[row.reason or "" for row in rows],
        version_U=version_U,
        staleness_U=staleness_U,
        weight_U=weight_U,
        share_U=share_U,
    )


def _rounds(rows: Sequence[RoundRow], started_s: float) -> Rounds:
    return Rounds(
        version_R=np.array([row.version for row in rows], np.int64),
        closed_elapsed_s_R=np.array([row.closed_s for row in rows], np.float64) - started_s,
        applied_elapsed_s_R=np.array([row.applied_s for row in rows], np.float64) - started_s,
        wait_s_R=np.array([row.wait_s for row in rows], np.float64),
        compensate_s_R=np.array([row.compensate_s for row in rows], np.float64),
        aggregate_s_R=np.array([row.aggregate_s for row in rows], np.float64),
        learning_rate_R=np.array([row.learning_rate for row in rows], np.float64),
        rate_factor_R=np.array([row.rate_factor for row in rows], np.float64),
        overflowed_R=np.array([row.overflowed for row in rows], np.bool_),
        updates_R=np.array([len(row.members) for row in rows], np.int64),
        digests_R=[row.digest for row in rows],
    )


def _evaluations(database: Database, started_s: float) -> Evaluations:
    rows = list(database.evaluations())
    classes = max((len(row.class_accuracy) for row in rows), default=0)
    classes_EC = np.full((len(rows), classes), nan)
    for place, row in enumerate(rows):
        classes_EC[place, : len(row.class_accuracy)] = [
            nan if share is None else share for share in row.class_accuracy
        ]
    return Evaluations(
        version_E=np.array([row.version for row in rows], np.int64),
        elapsed_s_E=np.array([row.at_s for row in rows], np.float64) - started_s,
        accuracy_E=np.array([row.accuracy for row in rows], np.float64),
        loss_E=np.array([row.loss for row in rows], np.float64),
        classes_EC=classes_EC,
        evaluate_s_E=np.array([row.evaluate_s for row in rows], np.float64),
    )


def _compensations(rounds: Sequence[RoundRow]) -> Compensations | None:
    rows: list[tuple[int, CompensationRow]] = [
        (row.version, row.compensation) for row in rounds if row.compensation is not None
    ]
    if not rows:
        return None
    fallbacks: Counter[str] = Counter()
    for _, row in rows:
        fallbacks.update(row.fallbacks)
    return Compensations(
        errors=[(version, error) for version, row in rows for error in row.errors],
        methods=Counter((version, update.method) for version, row in rows for update in row.updates),
        fallbacks=fallbacks,
    )


def _own(database: Database, every: int | None) -> Own:
    asked = OwnEvaluations(every)
    answers = []
    for row in database.own_evaluations():
        if asked.wanted(row.client_id, row.version):
            asked.answered(row.client_id, row.version, row.accuracy)
            answers.append(row)
    return Own(
        answers=answers, last={row.client_id: row.accuracy for row in answers}, fairness=asked.fairness
    )
