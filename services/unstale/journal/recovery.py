"""Resumes a run: loads the last checkpoint and replays later records."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from unstale.coordinator import actions, events, snapshot
from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError
from unstale.journal import checkpoints, records
from unstale.journal.journal import Journal
from unstale.journal.recorder import evaluation_row, task_row
from unstale.journal.resumption import ROLLED_BACK
from unstale.journal.rounds import RecordedRounds, Spill
from unstale.journal.rows import EventRow, RoundRow
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.learner.versions import Version
from unstale.training.measured import Measured
from unstale_client.disk import DamagedError

log = logging.getLogger("unstale.journal")


@dataclass(slots=True)
class Recovered:
    """State of a resumed run."""

    at_s: float = 0.0  # run time of the last record
    events: int = 0  # that were replayed
    rounds: int = 0  # that were computed again
    checkpoint_seq: int = 0  # last event that the checkpoint covers, 0 without one
    admission: Mapping[str, Any] | None = None  # state of the admission in the checkpoint; None without one


class Recovery:
    """Restores a new coordinator, learner and staging from a journal."""

    def __init__(
        self,
        journal: Journal,
        *,
        coordinator: Coordinator,
        learner: Learner,
        staging: Staging,
        evaluate: Callable[[Version], Measured],
    ) -> None:
        """evaluate: for evaluations that were lost in a crash."""
        self._journal = journal
        self._coordinator = coordinator
        self._learner = learner
        self._staging = staging
        self._evaluate = evaluate
        self._recorded = RecordedRounds(
            journal.database, journal.segments, journal.directory.compensations, learner.row_numbers
        )
        self._round_of = {row.version: row for row in journal.database.rounds()}
        self._evaluated = {row.version for row in journal.database.evaluations()}
        self._recovered = Recovered()

    def run(self) -> Recovered:
        """Restore all. Raises UserError for damaged or missing files, and for a version that differs."""
        self.run_to()
        self._restage()
        return self._recovered

    def run_to(self, last_seq: float = math.inf) -> None:
        """Restore coordinator and learner up to an event, without staging."""
        for row in self._journal.database.events_after(self._start(last_seq)):
            if row.seq > last_seq:
                break
            self._replay(row)
            self._recovered.events += 1

    def _start(self, last_seq: float) -> int:
        """Load the newest intact checkpoint up to an event; returns the event that it covers, 0 without one."""
        database = self._journal.database
        damaged: dict[int, DamagedError] = {}
        first = int(database.meta(ROLLED_BACK) or 0)  # earlier events are not replayed
        for row in database.checkpoints():
            if row.seq > last_seq or row.version < first:
                continue
            try:
                file = self._journal.directory.checkpoints / row.file
                state, covered_seq = checkpoints.read_at(file, row.seq, database.last_seq())
            except DamagedError as error:
                damaged[row.version] = error
                log.warning("%s; resuming from an older checkpoint", error)
                continue
            if covered_seq > last_seq:
                continue
            for version in damaged:  # or it would count towards `CHECKPOINTS_KEPT`
                database.forget_checkpoint(version)
            self._load(state)
            self._recovered.checkpoint_seq = covered_seq
            return covered_seq
        if damaged and (first or not self._journal.settings.keep_updates):
            raise damaged[min(damaged)]
        return 0

    def _load(self, state: dict[str, Any]) -> None:
        coordinator, learner = self._coordinator, self._learner
        snapshot.restore(coordinator, state["coordinator"])
        learner.load_state_dict(state["learner"])
        self._recovered.admission = state.get("admission")  # older checkpoints have none
        learner.keep_only(coordinator.references.needed)
        self._recovered.at_s = coordinator.now_s
        settings, version = coordinator.settings, coordinator.version
        if version and (version == settings.rounds or version % settings.evaluate_every == 0):
            self._evaluate_missing(version)

    def _replay(self, row: EventRow) -> None:
        self._recovered.at_s = row.at_s
        if row.kind == events.RoundApplied.__name__:
            self._apply(self._round_of[row.fields["version"]])
        for action in records.replay(row, self._coordinator):
            if isinstance(action, actions.ForgetVersion):
                self._learner.forget(action.version)
            elif isinstance(action, actions.Evaluate):
                self._evaluate_missing(action.version)
            elif isinstance(action, actions.SendTask):
                self._check_task(action, row)

    def _check_task(self, action: actions.SendTask, row: EventRow) -> None:
        """Compare a replayed task with the recorded one, or record it if it is missing."""
        database = self._journal.database
        task = task_row(action, row.at_s)
        recorded = database.task(action.task_id)
        if recorded is None:  # deleted with the events of the same moment by `drop_lost_events`
            self._journal.batch.tasks.append(task)
        elif recorded[:-1] != task[:-1]:
            raise self._contradicts(f"tasks task_id {action.task_id} has other values")

    def _apply(self, row: RoundRow) -> None:
        updates, members = self._recorded.members(row)
        if isinstance(self._staging, Spill):  # rows are on disk in this run
            stored = self._recorded.stored(updates)
            result = self._learner.apply_round(stored, members)
            stored.close()
        else:
            made = self._recorded.made(row)
            result = self._learner.apply_round(self._recorded.matrix(updates), members, made)
        self._recovered.rounds += 1
        if result.sent.digest != row.digest:
            raise UserError(
                f"version {row.version}, computed again from {self._journal.directory.path}, differs from the recorded "
                "one: its bits depend on device, policy.memory, threads and the version of PyTorch; resume on the "
                "machine where the run began, or start a new run with --run"
            )

    def _evaluate_missing(self, version: int) -> None:
        if version in self._evaluated:
            return
        assert version == self._learner.version
        row = evaluation_row(version, self._recovered.at_s, self._evaluate(self._learner.sent), 0.0)
        self._journal.batch.evaluations.append(row)
        self._evaluated.add(version)

    def _restage(self) -> None:
        """Stage the pending updates again."""
        coordinator = self._coordinator
        pending = {update.handle for update in (*coordinator.pending, *(coordinator.making or ()))}
        rows = []
        for update in self._journal.database.pending():
            assert update.handle is not None
            assert update.location is not None
            if update.handle not in pending:
                raise self._contradicts(f"updates seq {update.seq} waits for a round")
            pending.remove(update.handle)
            self._journal.note_location(update.handle, update.location)
            rows.append((update.handle, update.staged, partial(self._recorded.fill, update)))
        if pending:
            raise self._contradicts(f"updates handle {min(pending)} does not wait for a round")
        making = self._coordinator.making
        self._staging.restore(
            rows, self._journal.database.last_handle() + 1, closed=making[-1].handle if making else None
        )

    def _contradicts(self, damage: str) -> DamagedError:
        return self._journal.database.damaged(f"{damage}, which the events contradict")
