"""A simulated run, recorded in the directory of a run."""

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from typing_extensions import override

from unstale.compensators import Made
from unstale.config.settings import Settings
from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError
from unstale.journal.journal import Journal
from unstale.journal.recorder import Recorder
from unstale.journal.rundir import RunDirectory

EVENTS_PER_COMMIT = 1000  # the most that is lost of a simulation that is killed


class SimulationRecorder(Recorder):
    """Records a simulated run, for `unstale replay` and `unstale explain`.

    The run is never resumed, so every update is kept and no checkpoint is written. No message waits for a commit, so
    many events are committed together.
    """

    def __init__(self, coordinator: Coordinator, journal: Journal) -> None:
        """journal: Of a new run; closed by `close`."""
        super().__init__(coordinator, journal)
        self._recorded = journal

    @classmethod
    def begin(cls, path: Path, settings: Settings, coordinator: Coordinator) -> Self:
        """Make the directory of a run. Raises UserError when there is one, or something else."""
        if settings.run.durability == "off":
            raise UserError(f"run.durability is off, so nothing would be recorded in {path}; leave it out, or --run")
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise UserError(
                f"{path} holds something already, expected a new directory: a simulation is recorded from its start; "
                "name another one with --run"
            )
        run = settings.run.model_copy(update={"directory": str(path), "keep_updates": True})
        with ExitStack() as stack:
            directory = RunDirectory.open(path, settings.model_copy(update={"run": run}))
            stack.callback(directory.close)
            journal = Journal(directory, run, clock=lambda: 0.0)
            stack.pop_all()
        return cls(coordinator, journal)

    @override
    def commit(self, *, durable: bool = False) -> None:
        batch = self._recorded.batch
        if len(batch.events) + len(batch.updates) >= EVENTS_PER_COMMIT:
            super().commit()

    @override
    def give_up(self, why: str) -> str:
        return why  # there is nothing to resume or to roll back

    def keep_made(self, version: int, made: Made) -> None:
        """Keep the results of a compensator that a round cannot be computed again without."""
        self._recorded.keep_made(version, made)

    def close(self) -> None:
        """Commit the remaining events, and close the journal."""
        try:
            super().commit()
        finally:
            self._recorded.close()
