"""Feeds the trackers of a run, each in a thread of its own, so that none can stop a round."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.journal.rundir import RunDirectory
from unstale.trackers.reader import JournalReader, Point
from unstale.trackers.registry import tracker
from unstale.trackers.tracker import Round, Tracker

log = logging.getLogger("unstale.trackers")

POLL_S = 1.0  # between two looks at the journal
PAUSE_S_MAX = 60.0  # until a call that failed is repeated
END_S = 60.0  # that the end of a run waits for a tracker which takes nothing


def check_is_stored(settings: Settings) -> None:
    """Raise UserError for trackers of a run that has no journal."""
    if settings.trackers and settings.run.durability == "off":
        raise UserError("trackers are set, which read the journal of a run, but run.durability is off; leave one out")


def failure(name: str, error: Exception) -> str:
    """Words for an exception of a tracker."""
    return f"tracker {name!r} failed ({type(error).__name__}: {' '.join(str(error).split())})"


class Feed:
    """Gives a tracker every round and evaluation of a run."""

    def __init__(self, tracker: Tracker, path: Path, name: str) -> None:
        """path: of a run directory. name: of the run."""
        self._tracker, self._path, self._name = tracker, path, name
        self._reader: JournalReader | None = None
        self._is_started = False
        self._points = deque[Point]()  # that were read and not given
        self._is_flushed = True
        self.points = 0  # that were given

    def give(self, *, is_last: bool) -> None:
        """Give all that is new. After an exception of the tracker the next call repeats the call that failed.

        is_last: whether the run has stopped.
        """
        if self._reader is None:
            self._reader = JournalReader(self._path, self._name)
        if not self._is_started:
            self._tracker.on_start(self._reader.run)
            self._is_started = True
        while True:
            self._points = self._points or deque(self._reader.read(is_last=is_last))
            while self._points:
                self._give(self._points[0])
                self._points.popleft()
                self.points += 1
                self._is_flushed = False
            if self._is_flushed:
                break
            self._tracker.flush()
            self._is_flushed = True
        if is_last:
            self._tracker.on_finish(self._reader.finish())

    def _give(self, point: Point) -> None:
        if isinstance(point, Round):
            self._tracker.on_round(point)
        else:
            self._tracker.on_evaluation(point)


class _Thread(threading.Thread):
    """Calls one tracker. Its exceptions are logged once, and counted."""

    def __init__(self, tracker: str, feed: Feed, on_failure: Callable[[str], object]) -> None:
        super().__init__(name=f"tracker {tracker}", daemon=True)
        self.tracker = tracker
        self.stopped = threading.Event()  # the run has stopped
        self._feed, self._on_failure = feed, on_failure
        self._has_failed = False

    def run(self) -> None:
        pause_s, is_last = 0.0, False
        while not is_last:
            is_last = self.stopped.wait(pause_s)
            try:
                self._feed.give(is_last=is_last)
                pause_s = POLL_S
            except Exception as error:  # noqa: BLE001  (of code that must not stop the run)
                pause_s = min(PAUSE_S_MAX, max(POLL_S, 2 * pause_s))
                self._failed(error)

    def end(self) -> None:
        """Wait until the tracker has the rest of a run that has stopped, unless it takes nothing for a while."""
        points = -1
        while self.is_alive() and points < self._feed.points:
            points = self._feed.points
            self.join(END_S)
        if self.is_alive():
            log.warning(
                "tracker %r has taken nothing for %g s after the run; `unstale export RUN --to NAME` gives it the rest",
                self.tracker,
                END_S,
            )

    def _failed(self, error: Exception) -> None:
        self._on_failure(self.tracker)
        if not self._has_failed:
            self._has_failed = True
            log.warning("%s; the run continues, and failed calls are repeated", failure(self.tracker, error))


class Tracking:
    """The trackers of a run."""

    def __init__(
        self, chosen: Sequence[Mapping[str, Any]], on_failure: Callable[[str], object] = lambda _: None
    ) -> None:
        """Make the trackers.

        Args:
            chosen: Value of the key `trackers`.
            on_failure: Called for each call of a tracker that raised, with its name, in its thread.

        Raises:
            UserError: A tracker is not known, has another setting, or needs a library that is not installed.
        """
        self._trackers = {str(one["name"]): tracker(one) for one in chosen}
        self._on_failure = on_failure

    def __bool__(self) -> bool:
        return bool(self._trackers)

    @contextmanager
    def of(self, path: Path | None, name: str) -> Iterator[None]:
        """Feed the trackers with the run of the block. path: its directory, None for a run that is not stored.

        The end of the block waits for each tracker, but not for one that hangs.
        """
        threads = []
        if path is not None:
            threads = [
                _Thread(of_tracker, Feed(made, path, name), self._on_failure)
                for of_tracker, made in self._trackers.items()
            ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.stopped.set()
            for thread in threads:
                thread.end()


def export(path: Path, name: str) -> int:
    """Give a recorded run to a tracker, with the settings that the run has for it. Returns the number of points.

    path: of a run directory. name: of the tracker. Raises UserError.
    """
    chosen = [one for one in RunDirectory.look(path).settings.trackers if one["name"] == name]
    feed = Feed(tracker(chosen[0] if chosen else {"name": name}), path, path.resolve().name)
    try:
        feed.give(is_last=True)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{failure(name, error)}; repeat the command when its cause is removed") from error
    return feed.points
