"""Shows a run in Weights & Biases."""

import shutil
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from unstale.errors import UserError
from unstale.trackers.library import library
from unstale.trackers.tracker import Evaluation, Finish, Round, TrackedRun, Tracker


class WandbTracker(Tracker):
    """Writes a row for each round and each evaluation, with the version as the axis of the charts.

    A server that resumes the run continues the run of Weights & Biases with its id, after the last step there. Without
    a connection it writes all rows again, in place of the folder that is there.
    """

    def __init__(
        self,
        project: str = "unstale",
        entity: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        folder: str | None = None,
    ) -> None:
        """mode, folder: None for the default of wandb, which WANDB_MODE and WANDB_DIR change.

        Raises UserError without an API key for the mode online: wandb would ask the terminal of the server for one.
        """
        self._wandb = library("wandb", "wandb")
        chosen = mode or self._wandb.setup().settings.mode
        if chosen == "online" and not self._wandb.login(prompt=False, verify=False):
            raise UserError("tracker 'wandb' has no API key; run `wandb login`, or set its mode to offline")
        self._project, self._entity, self._mode, self._folder = project, entity, mode, folder
        self._run: Any = None
        self._next = 0  # the first step that is not there

    @override
    def on_start(self, run: TrackedRun) -> None:
        self._run = self._wandb.init(
            project=self._project,
            entity=self._entity,
            mode=self._mode,
            dir=self._folder,
            id=run.run_id,
            name=run.name,
            resume=None if run.run_id is None else "allow",
            config=dict(run.settings),
            reinit="create_new",
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric="version")
        self._next = self._run.step
        if self._run.offline and run.run_id is not None:
            own = Path(self._run.dir).parent
            for former in own.parent.glob(f"offline-run-*-{run.run_id}"):
                if former != own:
                    shutil.rmtree(former)

    @override
    def on_round(self, applied: Round) -> None:
        self._write(applied, 2 * applied.version)

    @override
    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._write(evaluation, 2 * evaluation.version + 1)

    def _write(self, point: Round | Evaluation, step: int) -> None:
        """step: ascending, one for each row, because W&B ignores a row whose step is not greater than the last one."""
        numbers = point.numbers
        if numbers and step >= self._next:
            self._run.log({"version": point.version, **numbers}, step=step)

    @override
    def on_finish(self, finish: Finish) -> None:
        self._run.finish()
