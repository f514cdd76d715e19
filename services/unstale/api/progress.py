"""The progress bar of a run, in terminals and notebooks."""

import sys
from collections.abc import Sequence
from html import escape
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from unstale.coordinator.actions import Action, SendTask
from unstale.coordinator.events import Event, RoundApplied
from unstale.journal.history import shown
from unstale.metrics import progress
from unstale.metrics.named import formatted
from unstale.metrics.spread import means
from unstale.training.measured import MainMetric

UPDATES_MAX = 200  # of a bar in a notebook, which keeps no more


class Bar:
    """Shows rounds, main metric and time of one run. A context manager."""

    def __init__(self, label: str, rounds: int, main: MainMetric, *, visible: bool | None, clock: str = "s") -> None:
        """visible: None for a bar in terminals and notebooks only. clock: name of the unit of time."""
        self._label, self._main, self._clock = label, main, clock
        self.first = label  # text until the first round
        self._version, self._elapsed_s, self._metric = 0, 0.0, ""
        self._started_s: float | None = None
        self._view: _Terminal | _Notebook | None = None
        if visible or (visible is None and (_is_notebook() or sys.stdout.isatty())):
            self._view = (_Notebook if _is_notebook() else _Terminal)(rounds)

    def __enter__(self) -> Self:
        if self._view is not None:
            self._view.start(self.first)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._view is not None:
            self._view.stop()

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        """Follow the rounds: an observer of the coordinator."""
        if self._started_s is None and any(isinstance(action, SendTask) for action in actions):
            self._started_s = event.at_s
        if isinstance(event, RoundApplied):
            self._version, self._elapsed_s = event.version, event.at_s - (self._started_s or 0.0)
            self._show()

    def evaluated(self, now: progress.Progress) -> None:
        """Show the main metric of an evaluation."""
        metrics = shown(now.metrics, means(now.client_metrics), means(now.training_metrics), self._main).metrics
        for name, value in list(metrics.items())[:1]:
            self._metric = f"{name} {formatted(value, '.4f')}  "
            self._show()

    def _show(self) -> None:
        if self._view is not None:
            text = f"{self._label}{self._metric}{self._elapsed_s:,.1f} {self._clock}"
            self._view.show(self._version, text)


class _Terminal:
    def __init__(self, rounds: int) -> None:
        counted = "round {task.completed:.0f}/{task.total:.0f}"
        columns = TextColumn(counted), BarColumn(bar_width=32), TextColumn("{task.description}", markup=False)
        self._progress = Progress(*columns, console=Console(file=sys.stdout))
        self._task = self._progress.add_task("", total=rounds)

    def start(self, text: str) -> None:
        self._progress.update(self._task, description=text)
        self._progress.start()

    def show(self, version: int, text: str) -> None:
        self._progress.update(self._task, completed=version, description=text)

    def stop(self) -> None:
        self._progress.stop()


class _Notebook:
    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._version, self._text = 0, ""
        self._shown = 0  # version of the last update
        self._handle: Any = None

    def start(self, text: str) -> None:
        from IPython.display import display

        self._text = text
        self._handle = display(self, display_id=True)

    def show(self, version: int, text: str) -> None:
        self._version, self._text = version, text
        if (version - self._shown) * UPDATES_MAX >= self._rounds:
            self._shown = version
            self._handle.update(self)

    def stop(self) -> None:
        self._handle.update(self)

    def __repr__(self) -> str:
        return f"round {self._version}/{self._rounds}  {self._text}"

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self._version}" max="{self._rounds}"></progress>'
        return f"<div>round {self._version}/{self._rounds} {bar} {escape(self._text)}</div>"


def _is_notebook() -> bool:
    """Whether a Jupyter kernel runs this code."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None
