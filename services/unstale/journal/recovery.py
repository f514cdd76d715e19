"""Taking up a run: from the last checkpoint, and the records behind it, to where the server stood when it died."""

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
from unstale.journal.disk import DamagedError
from unstale.journal.journal import Journal
from unstale.journal.recorder import evaluation_row, task_row
from unstale.journal.resumption import ROLLED_BACK
from unstale.journal.rounds import RecordedRounds, staged
from unstale.journal.rows import EventRow, RoundRow
from unstale.journal.spill import Spill
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.learner.versions import Version
from unstale.training.evaluate import Evaluation

log = logging.getLogger("unstale.journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Where the run stands.

    at_s: run time of the last record. events: how many were played again. rounds: how many were computed again.
    checkpoint_seq: the event up to which a checkpoint covers all, 0 without one. admission: state of the admission
    there; None where no checkpoint has one.
    """

    at_s: float
    events: int
    rounds: int
    checkpoint_seq: int
    admission: Mapping[str, Any] | None


class Recovery:
    """Brings a coordinator, a learner and a staging that have just been made to where the journal's were.

    evaluate: measures a version; for evaluations that a crash has cost.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        coordinator: Coordinator,
        learner: Learner,
        staging: Staging,
        evaluate: Callable[[Version], Evaluation],
    ) -> None:
        self._journal = journal
        self._coordinator = coordinator
        self._learner = learner
        self._staging = staging
        self._evaluate = evaluate
        self._recorded = RecordedRounds(
            journal.database, journal.segments, journal.directory.compensations, learner.row_numbers
        )
        self._round_of = {row.version: row for row in journal.database.rounds()}
        self._measured = {row.version for row in journal.database.evaluations()}
        self._admission: Mapping[str, Any] | None = None
        self._checkpoint_seq = 0
        self._rounds = 0
        self._at_s = 0.0

    def run(self) -> Recovered:
        """Do it. Raises UserError for what is damaged or missing, and when a version comes out otherwise."""
        played = self.run_to()
        self._restage()
        return Recovered(
            at_s=self._at_s,
            events=played,
            rounds=self._rounds,
            checkpoint_seq=self._checkpoint_seq,
            admission=self._admission,
        )

    def run_to(self, last_seq: float = math.inf) -> int:
        """Bring coordinator and learner to the state behind an event; updates that wait are not put back.

        Args:
            last_seq: Of the event; infinity for the last one.

        Returns:
            Number of events that were played.

        Raises:
            UserError: Something is damaged or missing, or a version comes out otherwise.
        """
        played = 0
        for row in self._journal.database.events_after(self._start(last_seq)):
            if row.seq > last_seq:
                break
            self._play(row)
            played += 1
        return played

    def _start(self, last_seq: float) -> int:
        """Load the newest checkpoint that is whole and covers no later event; the seq that it covers, 0 without one."""
        database = self._journal.database
        damaged: dict[int, DamagedError] = {}
        first = int(database.meta(ROLLED_BACK) or 0)  # events before it are not played again
        for row in database.checkpoints():
            if row.seq > last_seq or row.version < first:
                continue
            try:
                state = checkpoints.read_at(self._journal.directory.checkpoints / row.file, row.seq)
            except DamagedError as error:
                damaged[row.version] = error
                log.warning("%s; going on from an older checkpoint", error)
                continue
            for version in damaged:  # it would count as one of those that are kept
                database.forget_checkpoint(version)
            self._load(state)
            self._checkpoint_seq = row.seq
            return self._checkpoint_seq
        if damaged and (first or not self._journal.settings.keep_updates):
            raise damaged[min(damaged)]
        return 0

    def _load(self, state: dict[str, Any]) -> None:
        coordinator, learner = self._coordinator, self._learner
        snapshot.restore(coordinator, state["coordinator"])
        learner.load_state_dict(state["learner"])
        self._admission = state.get("admission")  # older checkpoints have none
        learner.keep_only(coordinator.references.needed)
        self._at_s = coordinator.now_s
        settings, version = coordinator.settings, coordinator.version
        if version and (version == settings.rounds or version % settings.evaluate_every == 0):
            self._measure_unless_known(version)

    def _play(self, row: EventRow) -> None:
        self._at_s = row.at_s
        if row.kind == events.RoundApplied.__name__:
            self._apply(self._round_of[row.fields["version"]])
        for action in records.play(row, self._coordinator):
            if isinstance(action, actions.ForgetVersion):
                self._learner.forget(action.version)
            elif isinstance(action, actions.Evaluate):
                self._measure_unless_known(action.version)
            elif isinstance(action, actions.SendTask):
                self._check_task(action, row)

    def _check_task(self, action: actions.SendTask, row: EventRow) -> None:
        """Compare a task that is given again with the one that is stored; one that is missing is stored."""
        database = self._journal.database
        given = task_row(action, row.at_s)
        task = database.task(action.task_id)
        if task is None:  # deleted with the events of the same moment, when lost ones were forgotten
            self._journal.batch.tasks.append(given)
        elif task[:-1] != given[:-1]:
            raise self._contradicts(f"tasks task_id {action.task_id} is another task than was given")

    def _apply(self, row: RoundRow) -> None:
        updates, told = self._recorded.members(row)
        if isinstance(self._staging, Spill):  # rows lie on disk in this run
            stored = self._recorded.stored(updates)
            result = self._learner.apply_round(stored, told)
            stored.close()
        else:
            made = self._recorded.made(row)
            result = self._learner.apply_round(self._recorded.matrix(updates), told, made)
        self._rounds += 1
        if result.sent.digest != row.digest:
            raise UserError(
                f"version {row.version}, computed again from {self._journal.directory.path}, is not the one that was "
                "made there: its bits depend on device, threads and the version of PyTorch; go on where the run was "
                "begun, or begin another one with --run"
            )

    def _measure_unless_known(self, version: int) -> None:
        if version in self._measured:
            return
        assert version == self._learner.version
        row = evaluation_row(version, self._at_s, self._evaluate(self._learner.sent), 0.0)
        self._journal.batch.evaluations.append(row)
        self._measured.add(version)

    def _restage(self) -> None:
        """Put the rows back that no round was made of yet."""
        coordinator = self._coordinator
        waiting = {update.handle for update in (*coordinator.pending, *(coordinator.making or ()))}
        rows = []
        for update in self._journal.database.pending():
            assert update.handle is not None
            assert update.place is not None
            if update.handle not in waiting:
                raise self._contradicts(f"updates seq {update.seq} waits for a round")
            waiting.remove(update.handle)
            self._journal.placed(update.handle, update.place)
            rows.append((update.handle, staged(update), partial(self._recorded.fill, update)))
        if waiting:
            raise self._contradicts(f"updates handle {min(waiting)} does not wait for a round")
        making = self._coordinator.making
        self._staging.restore(
            rows, self._journal.database.last_handle() + 1, closed=making[-1].handle if making else None
        )

    def _contradicts(self, what: str) -> DamagedError:
        return DamagedError(
            f"{self._journal.database.path} is damaged ({what}, which the events contradict); put it back "
            "from a copy, or start anew in another --run directory"
        )
