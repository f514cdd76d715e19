"""A simulated run written down as a server writes down its own, for `unstale replay` and `unstale explain`.

It is not taken up again, so it keeps every update and writes no checkpoints; and what is written need not wait for a
turn, because nobody is told anything.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from unstale import translate
from unstale.config.settings import Settings
from unstale.coordinator import events
from unstale.coordinator.actions import Action
from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError
from unstale.journal.journal import Journal
from unstale.journal.recorder import Arriving, Recorder
from unstale.journal.rundir import RunDirectory
from unstale.learner.learner import RoundResult
from unstale.learner.row_checks import Norms
from unstale.learner.updates import StagedUpdate
from unstale.training.evaluate import Evaluation
from unstale_proto.messages import Update

EVENTS_A_COMMIT = 1000  # what may be lost of a simulation that is killed


class Recording:
    """Handles events as the coordinator does, and notes them.

    Raises UserError when something cannot be written.
    """

    def __init__(self, coordinator: Coordinator, journal: Journal) -> None:
        """journal: of a run that is new; it is closed by `close`."""
        self._coordinator = coordinator
        self._journal = journal
        self._recorder = Recorder(coordinator, journal)

    @classmethod
    def begin(cls, path: Path, settings: Settings, coordinator: Coordinator) -> Self:
        """Make the directory of a run. Raises UserError when there is one, or something else."""
        if settings.run.durability == "off":
            raise UserError(
                f"run.durability is off, so nothing would be recorded in {path}; leave it out, or --run"
            )
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise UserError(
                f"{path} holds something already, expected a new directory: a simulation is recorded from its start; "
                "name another one with --run"
            )
        of_it = settings.run.model_copy(update={"directory": str(path), "keep_updates": True})
        with ExitStack() as stack:
            directory = RunDirectory.open(path, settings.model_copy(update={"run": of_it}))
            stack.callback(directory.close)
            journal = Journal(
                directory, of_it, clock=lambda: 0.0
            )  # nobody is promised anything before it ends
            stack.pop_all()
        return cls(coordinator, journal)

    def handle(self, event: events.Event) -> list[Action]:
        """Any event but an update and a round."""
        return self._committed(self._recorder.handle(event))

    def update(
        self,
        event: events.UpdateArrived,
        update: Update | None,
        row: memoryview,
        norms: Norms | None = None,
        *,
        learning_rate: float,
    ) -> list[Action]:
        """An update came. update: what it says, None for one that was too late to be computed. row: its bytes as they
        are staged, empty when it is not. norms: of its vectors. learning_rate: of its task."""
        client_id = event.client_id
        staged = (
            StagedUpdate(
                client_id=client_id, num_examples=0, batch_examples=0, loss=0.0, local_rate=learning_rate
            )
            if update is None
            else translate.to_staged(update, client_id)
        )
        arriving = Arriving(
            staged=staged, row=row, evaluation=None if update is None else update.evaluation, norms=norms
        )
        return self._committed(self._recorder.update(event, arriving))

    def round_applied(self, event: events.RoundApplied, result: RoundResult) -> list[Action]:
        """A round was applied, at the very time at which it was closed."""
        opened_s = self._coordinator.round_started_s
        assert opened_s is not None
        made = None if result.compensation is None else result.compensation.made
        if made is not None:
            self._journal.keep_made(result.version, made)
        return self._committed(
            self._recorder.round_applied(
                event,
                result,
                digest=result.sent.digest,
                wait_s=event.at_s - opened_s,
                compensate_s=0.0,
                aggregate_s=0.0,
            )
        )

    def evaluated(self, version: int, at_s: float, evaluation: Evaluation) -> None:
        """A version was measured."""
        self._recorder.evaluated(version, at_s, evaluation, evaluate_s=0.0)

    def close(self) -> None:
        """Nothing more will happen."""
        try:
            self._recorder.commit()
        finally:
            self._journal.close()

    def _committed(self, following: list[Action]) -> list[Action]:
        batch = self._journal.batch
        if len(batch.events) + len(batch.updates) >= EVENTS_A_COMMIT:
            self._recorder.commit()
        return following
