"""Shows a run in TensorBoard."""

from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from unstale.trackers.library import library
from unstale.trackers.tracker import Evaluation, Finish, Round, TrackedRun, Tracker

FILES = "events.out.tfevents.*"


class TensorBoardTracker(Tracker):
    """Writes an event file in a folder of the run. Its wall times are seconds of the run.

    A server that resumes the run writes all points again, in place of the files that are there.
    """

    def __init__(self, folder: str = "tensorboard") -> None:
        """folder: for `tensorboard --logdir`, with a folder for each run."""
        self._folder = Path(folder)
        self._make_writer = library("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer: Any = None

    @override
    def on_start(self, run: TrackedRun) -> None:
        if run.run_id is None:
            folder = _unused(self._folder / run.name)
        else:
            folder = self._folder / f"{run.name}-{run.run_id}"
            for file in folder.glob(FILES):
                file.unlink()
        # A TensorBoard that has the page open drops the points that it has read from the former files.
        self._writer = self._make_writer(str(folder), purge_step=0)
        settings = yaml.safe_dump(dict(run.settings), allow_unicode=True)
        self._writer.add_text("settings", f"```\n{settings}```", 0, 0.0)

    @override
    def on_round(self, applied: Round) -> None:
        self._write(applied)

    @override
    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._write(evaluation)

    @override
    def flush(self) -> None:
        self._writer.flush()

    @override
    def on_finish(self, finish: Finish) -> None:
        self._writer.close()

    def _write(self, point: Round | Evaluation) -> None:
        for name, value in point.numbers.items():
            # As float32: TensorBoard's fast reader shows no scalars of another type.
            self._writer.add_scalar(name, value, point.version, point.elapsed_s)


def _unused(folder: Path) -> Path:
    """A folder that does not exist: this one, or one with a number."""
    number = 1
    while (candidate := folder if number == 1 else folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return candidate
