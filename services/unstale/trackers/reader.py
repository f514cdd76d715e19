"""Reads the points of a tracker from the journal of a run, while a server may write to it."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from math import nan
from operator import attrgetter
from pathlib import Path
from statistics import fmean

from unstale.config.keys import KEYS
from unstale.errors import UserError
from unstale.journal.database import Database
from unstale.journal.history import History, training_reports
from unstale.journal.main_metric import main_metric
from unstale.journal.resumption import RUN_ID
from unstale.journal.rows import RoundRow
from unstale.journal.rundir import RunDirectory, decides
from unstale.metrics.spread import report_means
from unstale.trackers.tracker import Evaluation, Finish, Round, TrackedRun

ROUNDS_MAX = 1000  # that one call of `read` returns: bounds memory, and the time of the read transaction

Point = Round | Evaluation


class JournalReader:
    """Returns each round and each evaluation of a run once, in the same order at each start.

    The database is open during calls only, so that a slow tracker does not keep old pages in its log.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Open the directory of a run that has begun. Raises UserError."""
        directory = RunDirectory.look(path)
        self._database, self._settings = directory.database, directory.settings
        with self._open() as database:
            main = main_metric(database, self._settings)
            run_id = database.meta(RUN_ID)
        fixed = {key: attrgetter(key)(self._settings) for key in KEYS if decides(key)}
        self.run = TrackedRun(
            name=name,
            run_id=run_id or None,
            main=main,
            settings={key: value for key, value in fixed.items() if value not in (None, {})},
        )
        self._history = History(main, every=self._settings.evaluate_clients_every)
        self._version = 0  # the last round that was read
        self._elapsed_s = 0.0  # of the newest point

    def read(self, *, is_last: bool) -> list[Point]:
        """The next points, by version; none if there are no more. is_last: whether the run has stopped."""
        with self._open() as database, database.snapshot():
            started_s = database.started_s()
            if started_s is None and not is_last:
                return []  # times count from the first task
            points = list(self._points(database, started_s or 0.0, is_last=is_last))
        self._elapsed_s = max([self._elapsed_s, *(point.elapsed_s for point in points)])
        return sorted(points, key=lambda point: (point.version, isinstance(point, Evaluation)))

    def finish(self) -> Finish:
        """The end, after the last point."""
        with self._open() as database:
            is_reached = database.is_target_reached()
        is_finished = self._version >= self._settings.rounds
        reason = "reached" if is_reached else "finished" if is_finished else "shutdown"
        return Finish(version=self._version, elapsed_s=self._elapsed_s, reason=reason)

    def _open(self) -> closing[Database]:
        try:
            return closing(Database(self._database, read_only=True))
        except UserError:  # its writer closed it, and deleted the log, while it was opened
            return closing(Database(self._database, read_only=True))

    def _points(self, database: Database, started_s: float, *, is_last: bool) -> Iterator[Point]:
        rounds = list(islice(database.rounds(self._version), ROUNDS_MAX))
        up_to = rounds[-1].version if rounds else self._version
        is_complete = is_last and len(rounds) < ROUNDS_MAX
        for row, of in self._history.read(database, up_to=up_to, is_complete=is_complete):
            if of.metrics:
                elapsed_s = row.at_s - started_s
                yield Evaluation(version=row.version, elapsed_s=elapsed_s, split=of.split, metrics=of.metrics)
        for round_row in rounds:
            if self._history.waits_at is not None and round_row.version > self._history.waits_at:
                return
            self._version = round_row.version
            yield self._round(database, round_row, started_s)

    def _round(self, database: Database, row: RoundRow, started_s: float) -> Round:
        staleness = [member.staleness for member in row.members]
        reports = training_reports(update.staged for update in database.updates_of(row.version))
        return Round(
            version=row.version,
            elapsed_s=row.applied_s - started_s,
            updates=len(row.members),
            staleness_mean_rounds=fmean(staleness) if staleness else nan,
            staleness_max_rounds=max(staleness, default=0),
            wait_s=row.wait_s,
            compensate_s=row.compensate_s,
            aggregate_s=row.aggregate_s,
            learning_rate=row.learning_rate,
            rate_factor=row.rate_factor,
            overflowed=row.overflowed,
            digest=row.digest,
            training=report_means(reports, self.run.main),
            policy=row.metrics,
        )
