"""Records a simulated run in a run directory."""

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from typing_extensions import override

from unstale.compensators import Made
from unstale.config.settings import Settings
from unstale.coordinator.actions import Action
from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError
from unstale.journal import main_metric
from unstale.journal.journal import Journal
from unstale.journal.recorder import IncomingUpdate, Recorder
from unstale.journal.rundir import RunDirectory
from unstale.training.measured import MainMetric

EVENTS_PER_COMMIT = 1000  # a killed simulation loses at most so many


class SimulationRecorder(Recorder):
    """Records a simulated run, for `unstale replay` and `unstale explain`.

    No run resumes from this record, so the journal keeps every update, or none, and has no checkpoints. No message
    waits for a commit, so a commit stores many events.
    """

    def __init__(self, coordinator: Coordinator, journal: Journal) -> None:
        """journal: of a new run; `close` closes it."""
        super().__init__(coordinator, journal)
        self._recorded = journal

    @classmethod
    def begin(
        cls, path: Path, settings: Settings, coordinator: Coordinator, main: MainMetric, *, keep_updates: bool = True
    ) -> Self:
        """Create the run directory. Raises UserError if the path is a file or a folder with content."""
        if settings.run.durability == "off":
            raise UserError(f"run.durability is off, so nothing would be recorded in {path}; leave one of them out")
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise UserError(
                f"{path} is a file or not empty, expected a new directory: a simulation is recorded from its start; "
                "choose another one"
            )
        run = settings.run.model_copy(update={"directory": str(path), "keep_updates": keep_updates})
        with ExitStack() as stack:
            directory = RunDirectory.open(path, settings.model_copy(update={"run": run}))
            stack.callback(directory.close)
            journal = Journal(directory, run, clock=lambda: 0.0)
            main_metric.record(journal.database, settings, main)
            stack.pop_all()
        return cls(coordinator, journal)

    @override
    def update(self, incoming: IncomingUpdate) -> list[Action]:
        keeps = self._recorded.settings.keep_updates
        return super().update(incoming if keeps else incoming._replace(row=memoryview(b"")))

    @override
    def commit(self, *, durable: bool = False) -> None:
        batch = self._recorded.batch
        if len(batch.events) + len(batch.updates) >= EVENTS_PER_COMMIT:
            super().commit()

    @override
    def give_up(self, why: str) -> str:
        return why  # no run resumes from this record, so it needs no reason

    def keep_made(self, version: int, made: Made) -> None:
        """Store the results of a compensator, without which replay cannot recompute the round."""
        self._recorded.keep_made(version, made)

    def close(self) -> None:
        """Commit the remaining events, and close the journal."""
        try:
            super().commit()
        finally:
            self._recorded.close()
