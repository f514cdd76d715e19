"""Reads a run directory into data frames, in one snapshot of its database."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from math import inf, nan
from pathlib import Path
from typing import Any

import pandas as pd

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.journal.database import Conservation, Database
from unstale.journal.history import Shown, history
from unstale.journal.replay import RecordedRun
from unstale.journal.resumption import ENDED, RUN_ID
from unstale.journal.rows import EvaluationRow, RoundRow
from unstale.journal.rundir import LOCK
from unstale.learner.updates import StagedUpdate
from unstale.metrics.fairness import Fairness, OwnEvaluations
from unstale.metrics.named import CENTRAL, common_names, two_of
from unstale.metrics.spread import Spread, spreads
from unstale.training.measured import MainMetric

_STAGED = tuple(field.name for field in fields(StagedUpdate) if field.name != "metrics")


class State(StrEnum):
    """Progress of a run. BROKEN: its last server died. UNKNOWN: this system cannot tell RUNNING from BROKEN."""

    FINISHED = "finished"
    STOPPED = "stopped before its end"
    RUNNING = "still going on"
    BROKEN = "broken off"
    UNKNOWN = "still going on, or broken off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recorded run. Data frames have the columns of the CSV files; times count from the first task."""

    name: str  # unique in the report
    settings: Settings
    state: State
    run_id: str | None  # None for a simulated run, whose times are virtual
    tasks: Mapping[int, int]  # number of tasks by client id
    updates: pd.DataFrame  # accepted and rejected updates, in order; NaN or NA for missing values
    rounds: pd.DataFrame  # a row for each version from 1
    main: MainMetric
    split: str  # where the metrics of the evaluated versions were measured, of `metrics.named`
    metrics: tuple[str, ...]  # names of metrics of the evaluated versions, the main one first; two without any
    evaluations: pd.DataFrame  # a row for each evaluated version, with a column for each metric
    class_accuracy: pd.DataFrame  # by version (rows) and class (columns); NaN for a class without test examples
    is_compensated: bool  # whether a round had a compensator
    compensations: pd.DataFrame  # method of each replaced update
    fallbacks: pd.DataFrame  # numbers of updates by reason
    errors: pd.DataFrame  # measured errors of compensation
    client_metrics: Mapping[str, Spread]  # of the last own evaluation of each client
    own_metrics: tuple[str, ...]  # names of metrics of the own evaluations, as `metrics`
    own_evaluations: pd.DataFrame  # evaluations by clients on their own test examples
    fairness: Fairness | None  # over the last own evaluation of each client; None without any
    conservation: Conservation

    @property
    def is_simulated(self) -> bool:
        return self.run_id is None

    @property
    def is_evaluated(self) -> bool:
        return len(self.evaluations) > 0

    @property
    def version(self) -> int:
        """The newest version."""
        return int(self.rounds.version.iloc[-1]) if len(self.rounds) else 0

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first task to the last stored event."""
        columns = (self.updates.elapsed_s, self.rounds.applied_elapsed_s, self.evaluations.elapsed_s)
        return max((float(elapsed_s.iloc[-1]) for elapsed_s in columns if len(elapsed_s)), default=0.0)


def read(path: Path, name: str) -> Run:
    """Read a run directory. Raises UserError if the path is no such directory, is damaged, or has another format."""
    with RecordedRun(path) as recorded, recorded.database.snapshot():
        database, settings = recorded.database, recorded.settings
        started_s = database.started_s() or 0.0
        rounds = list(database.rounds())
        main = recorded.main_metric
        evaluated = history(database, main, every=settings.evaluate_clients_every)
        shown = [(row, of) for row, of in evaluated if of.metrics]
        split = shown[-1][1].split if shown else CENTRAL
        metrics = _names((of for _, of in shown if of.split == split), main)
        return Run(
            name=name,
            settings=settings,
            state=_state(path, database, is_finished=len(rounds) >= settings.rounds or database.is_target_reached()),
            run_id=database.meta(RUN_ID),
            tasks=pd.Series([task.client_id for task in database.tasks()], dtype=int).value_counts().to_dict(),
            updates=_updates(database, rounds, started_s),
            rounds=_rounds(rounds, started_s),
            main=main,
            split=split,
            metrics=metrics,
            evaluations=_evaluations(shown, split, metrics, started_s),
            class_accuracy=_class_accuracy(shown),
            **_compensation(rounds),
            **_own_evaluations(database, settings.evaluate_clients_every, main),
            conservation=database.conservation(),
        )


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return a unique name of each directory, with parents if necessary. Raises UserError for duplicates."""
    resolved = [path.resolve() for path in paths]
    for index, path in enumerate(resolved):
        if path in resolved[:index]:
            raise UserError(f"RUN {paths[index]} is named twice, expected different directories; leave one out")
    depth = 1
    while len({path.parts[-depth:] for path in resolved}) < len(resolved):
        depth += 1
    names = [printable("/".join(path.parts[-depth:])) for path in resolved]
    times = Counter(names)
    return [f"{name} ({number})" if times[name] > 1 else name for number, name in enumerate(names, start=1)]


def printable(text: str) -> str:
    """Replace characters that are not printable, such as bytes of a name that is not UTF-8."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def _state(path: Path, database: Database, *, is_finished: bool) -> State:
    if is_finished:
        return State.FINISHED
    if database.meta(ENDED):
        return State.STOPPED
    return {True: State.RUNNING, False: State.BROKEN, None: State.UNKNOWN}[_is_in_use(path)]


def _is_in_use(path: Path) -> bool | None:
    """Whether a server holds the lock of the directory; None if this system cannot tell."""
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


_COLUMN_TYPES = {
    **{field.name: "int64" for field in fields(StagedUpdate) if field.type is int},
    **dict.fromkeys(("version", "updates", "staleness_rounds"), "int64"),
    **dict.fromkeys(("reason", "method", "digest"), "object"),
    "handle": "Int64",
    "overflowed": "bool",
}
"""Types of columns; the others are floats."""

_OTHER_COLUMNS = (
    *("elapsed_s", "evaluate_s", "split", "run", "group", "client_id", "tasks", "received", "aggregated", "rejected"),
    *("weight_share_ratio", "staleness_mean_rounds", "last_update_s", "accuracy_ratio", "loss_nats"),
)
"""Columns of the tables that have columns for metrics, too, without those of `_COLUMN_TYPES`."""

_PREFIX = "metric_"


def _frame(columns: str, rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    """Return a data frame. columns: names, separated by spaces."""
    names = columns.split()
    return pd.DataFrame(list(rows), columns=names).astype({name: _COLUMN_TYPES.get(name, "float64") for name in names})


def _updates(database: Database, rounds: Sequence[RoundRow], started_s: float) -> pd.DataFrame:
    updates = _frame(
        " ".join(("handle elapsed_s reason", *_STAGED)),
        (
            (row.handle, row.at_s - started_s, row.reason, *[getattr(row.staged, name) for name in _STAGED])
            for row in database.updates_after(0)
        ),
    ).rename(columns={"loss": "loss_nats"})
    members = _frame("handle version staleness_rounds weight weight_share_ratio", _members(rounds))
    # An update in no round has no version and no staleness.
    return updates.merge(members.astype({"version": "Int64", "staleness_rounds": "Int64"}), on="handle", how="left")


def _members(rounds: Sequence[RoundRow]) -> Iterator[tuple[int, int, int, float, float]]:
    """Yield handle, version, staleness, weight and share of each update in a round.

    The share is of the sum of absolute weights in the round; NaN if this sum is 0 or not finite.
    """
    for row in rounds:
        total = sum(abs(member.weight) for member in row.members)
        for member in row.members:
            share = abs(member.weight) / total if 0 < total < inf else nan
            yield member.handle, row.version, member.staleness, member.weight, share


def _compensation(rounds: Sequence[RoundRow]) -> dict[str, Any]:
    """Return the fields of `Run` on compensation."""
    rows = [(row.version, row.compensation) for row in rounds if row.compensation is not None]
    return {
        "is_compensated": bool(rows),
        "compensations": _frame("method", ((update.method,) for _, row in rows for update in row.updates)),
        "fallbacks": _frame("reason updates", (item for _, row in rows for item in row.fallbacks.items())),
        "errors": _frame(
            "version client_id method staleness_rounds l1 cosine",
            (
                (version, error.client_id, error.method, error.staleness, error.l1, error.cosine)
                for version, row in rows
                for error in row.errors
            ),
        ),
    }


def _rounds(rounds: Sequence[RoundRow], started_s: float) -> pd.DataFrame:
    return _frame(
        "version closed_elapsed_s applied_elapsed_s wait_s compensate_s aggregate_s updates learning_rate rate_factor "
        "overflowed digest",
        (
            (
                *(row.version, row.closed_s - started_s, row.applied_s - started_s),
                *(row.wait_s, row.compensate_s, row.aggregate_s, len(row.members)),
                *(row.learning_rate, row.rate_factor, row.overflowed, row.digest),
            )
            for row in rounds
        ),
    )


def _class_accuracy(shown: Sequence[tuple[EvaluationRow, Shown]]) -> pd.DataFrame:
    return pd.DataFrame(
        [row.class_accuracy for row, _ in shown],
        index=pd.Index([row.version for row, _ in shown], name="version"),
        dtype=float,
    ).rename_axis(columns="class")


def _evaluations(
    shown: Sequence[tuple[EvaluationRow, Shown]], split: str, metrics: Sequence[str], started_s: float
) -> pd.DataFrame:
    return _frame(
        " ".join(("version elapsed_s", *(column_of(name, metrics) for name in metrics), "evaluate_s")),
        (
            (row.version, row.at_s - started_s, *(of.metrics.get(name, nan) for name in metrics), row.evaluate_s)
            for row, of in shown
            if of.split == split
        ),
    )


def column_of(name: str, metrics: Collection[str]) -> str:
    """The column of a metric, with its unit where it is known: the loss of a classification is in nats."""
    units = {"accuracy": "accuracy_ratio", "loss": "loss_nats"} if "accuracy" in metrics else {}
    return units.get(name, plain_column_of(name))


def plain_column_of(name: str) -> str:
    """The column of a metric without a unit: its name, with a prefix where it is that of another column."""
    is_taken = name in _COLUMN_TYPES or name in _OTHER_COLUMNS or name.startswith(_PREFIX)
    return _PREFIX + name if is_taken else name


def _names(shown: Iterable[Shown], main: MainMetric) -> tuple[str, ...]:
    """Return the names of all metrics, the main one first."""
    names = dict.fromkeys(name for of in shown for name in of.metrics)
    return tuple(names) or two_of([main.name, "loss"])


def _own_evaluations(database: Database, every: int | None, main: MainMetric) -> dict[str, Any]:
    """Return the fields of `Run` on the evaluations that the server requested of clients."""
    answers = OwnEvaluations(every)
    rows = []
    for row in database.own_evaluations():
        if answers.is_wanted(row.client_id, row.version):
            answers.answered(row.client_id, row.version, row.metrics, row.examples)
            rows.append(row)
    by_client: dict[int, dict[str, float]] = {}
    for row in rows:
        by_client.setdefault(row.client_id, {}).update(row.metrics)
    names = tuple(common_names(by_client.values(), main)) or two_of([main.name, "loss"])
    columns = " ".join(("client_id version", *(column_of(name, names) for name in names), "num_examples"))
    values = (
        (row.client_id, row.version, *(row.metrics.get(name, nan) for name in names), row.examples) for row in rows
    )
    return {
        "own_metrics": names,
        "own_evaluations": _frame(columns, values),
        "client_metrics": spreads(answers.reports, main),
        "fairness": answers.fairness,
    }
