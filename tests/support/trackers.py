"""Trackers as a user writes them."""

from pathlib import Path

from unstale.trackers import Evaluation, Round, TrackedRun, Tracker


class Lines(Tracker):
    """Appends a line for each point to a file."""

    def __init__(self, file: str = "lines.txt") -> None:
        self._file = Path(file)

    def on_round(self, applied: Round) -> None:
        self._append(applied)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._append(evaluation)

    def _append(self, point: Round | Evaluation) -> None:
        with self._file.open("a") as file:
            file.write(f"{point!r}\n")


class Failing(Tracker):
    """Raises at the start."""

    def on_start(self, run: TrackedRun) -> None:
        raise RuntimeError("no")
