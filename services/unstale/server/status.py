"""The content of the status page as plain values for JSON. Pure.

One thread records facts, others read, and none waits: a value is replaced or copied in one step and never changed
while a thread reads it. All sizes are bounded.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean
from typing import Any, NamedTuple

from unstale.compensators import Compensated, MeasuredError
from unstale.compensators.compensator import UNCHANGED
from unstale.coordinator.phase import Phase
from unstale.metrics.named import CENTRAL, TRAINING, direction, two_of
from unstale.training.measured import MainMetric

POINTS_MAX = 500  # of a curve
ROUNDS_KEPT = 50  # that are listed
UPDATES_SHOWN = 40  # of a listed round; of the others only the number is shown
STALENESS_MAX = 1000  # rounds; larger staleness counts as this

Sections = dict[str, Any]
"""JSON values by section; every number is finite. The values of a section change together."""


class Point(NamedTuple):
    """An evaluation of a version."""

    version: int
    at_s: float  # seconds after the first task
    main: float  # value of the main metric, or of the first that there is
    second: float  # value of the loss, or of the next metric; nan without one


class Curve:
    """A curve of bounded length: every point, or every second, fourth, ... point, and always the last one."""

    def __init__(
        self,
        names: tuple[str, ...],
        splits: tuple[str, ...],
        *,
        is_higher_better: bool | None,
        points_max: int = POINTS_MAX,
    ) -> None:
        """names, splits: one or two metrics, and where each is measured. is_higher_better: for the first, if known."""
        self.names = names
        self.splits = splits
        self.is_higher_better = is_higher_better
        self.best: Point | None = None
        self._points_max = points_max
        self._kept: tuple[Point, ...] = ()
        self._every = 1
        self._seen = 0
        self.last: Point | None = None

    def add(self, point: Point) -> None:
        """Add an evaluation of a later version."""
        if self._seen % self._every == 0:
            kept = (*self._kept, point)
            if len(kept) > self._points_max:
                kept, self._every = kept[::2], 2 * self._every
            self._kept = kept
        self._seen += 1
        self.last = point
        if self.best is None or self._is_better(point.main, self.best.main):
            self.best = None if self.is_higher_better is None else point

    @property
    def points(self) -> tuple[Point, ...]:
        """The stored points in order, at most `points_max` + 1."""
        kept, last = self._kept, self.last
        return kept if last is None or (kept and kept[-1] is last) else (*kept, last)

    def _is_better(self, value: float, other: float) -> bool:
        return value > other if self.is_higher_better else value < other


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The present state of the coordinator."""

    at_s: float  # on the clock of the run
    phase: Phase
    version: int
    clients: Mapping[str, int]  # number by state
    updates: Mapping[str, int]  # number by outcome
    pending: int  # accepted updates in no round yet
    alarm: str | None = None  # a problem that needs the operator


class Status:
    """The state and history of a run. Rejections are counted since the process started."""

    def __init__(
        self, about: Mapping[str, str | int] | None = None, *, clock: Callable[[], float], main: MainMetric
    ) -> None:
        """about: Constant facts, which contain `rounds`. clock: Seconds of the run. main: The metric shown first."""
        self._about = dict(about or {})
        self._clock = clock
        self._started_s: float | None = None
        self._ended_s: float | None = None
        self._digest: str | None = None
        self._is_target_reached = False
        self._main = main
        self._curve = self._new_curve(two_of([main.name, "loss"]), (CENTRAL, CENTRAL))
        self._metrics: Callable[[], Mapping[str, Mapping[str, float]]] = dict
        self._rounds: tuple[dict[str, Any], ...] = ()  # as they are listed
        self._staleness: list[int] = []  # how many updates, by staleness
        self._rejected: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._given_back: Counter[str] = Counter()
        self._quarantines = 0
        self._methods: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._compensates = False

    # --- what happens ---

    def started(self, at_s: float | None = None) -> None:
        """Record the first task, now or at `at_s`; a repetition has no effect."""
        if self._started_s is None:
            self._started_s = self._clock() if at_s is None else at_s

    def applied(
        self,
        version: int,
        staleness: Sequence[int],
        weights: Sequence[float],
        *,
        wait_s: float,
        compensate_s: float,
        aggregate_s: float,
        overflowed: bool,
        at_s: float | None = None,
    ) -> None:
        """Record a round, now or at `at_s`. staleness, weights: Of its updates, in order of arrival."""
        greatest = max(staleness, default=0)
        counts = self._staleness
        if len(counts) <= min(greatest, STALENESS_MAX):
            counts.extend([0] * (min(greatest, STALENESS_MAX) + 1 - len(counts)))
        for rounds in staleness:
            counts[min(rounds, STALENESS_MAX)] += 1
        phases_s = {"wait": wait_s, "compensate": compensate_s, "aggregate": aggregate_s}
        shown = {
            "version": version,
            "at_s": self._since_start_s(at_s),
            "updates": len(staleness),
            "staleness": tuple(staleness[:UPDATES_SHOWN]),
            "weights": list(weights[:UPDATES_SHOWN]),
            "staleness_mean": fmean(staleness) if staleness else nan,
            "staleness_max": greatest,
            "overflowed": overflowed,
            "phases_s": {**phases_s, "evaluate": None, "checkpoint": None},
            "errors": {},
        }
        self._rounds = (*self._rounds[1 - ROUNDS_KEPT :], shown)

    def compensated(
        self,
        version: int,
        updates: Sequence[Compensated],
        errors: Sequence[MeasuredError],
        fallbacks: Mapping[str, int],
    ) -> None:
        """Record the compensation of the round of a version."""
        self._compensates = True
        self._methods.update(update.method for update in updates if update.method != UNCHANGED)
        self._fallbacks.update(fallbacks)
        by_method: dict[str, list[MeasuredError]] = {}
        for error in errors:
            by_method.setdefault(error.method, []).append(error)
        means = {
            method: {"l1": fmean(error.l1 for error in measured), "cosine": fmean(error.cosine for error in measured)}
            for method, measured in by_method.items()
        }
        self._amend(version, "errors", means)

    def evaluated(
        self,
        version: int,
        metrics: Mapping[str, float],
        split: str,
        *,
        training_loss: float | None = None,
        evaluate_s: float,
        at_s: float | None = None,
    ) -> None:
        """Record an evaluation, now or at `at_s`; the repeated one of a resumed run has no effect.

        metrics: The main one first. split: Where they were measured; another one begins a new curve. training_loss: Is
        shown beside a single metric.
        """
        self._amend(version, "phases_s", {"evaluate": evaluate_s})
        last, names = self._curve.last, two_of(metrics)
        if not names or (last is not None and version <= last.version):
            return
        values, splits = [metrics[name] for name in names], (split,) * len(names)
        if training_loss is not None:
            names, splits, values = (*names, "loss"), (*splits, TRAINING), [*values, training_loss]
        if (names, splits) != (self._curve.names, self._curve.splits):
            self._curve = self._new_curve(names, splits)
        self._curve.add(Point(version, self._since_start_s(at_s), values[0], values[1] if values[1:] else nan))

    def follow(self, metrics: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        """Ask for the latest metrics by split whenever the status is read, from the thread that reads it."""
        self._metrics = metrics

    def saved(self, version: int, checkpoint_s: float) -> None:
        """Record a checkpoint of a version."""
        self._amend(version, "phases_s", {"checkpoint": checkpoint_s})

    def rejected(self, reason: str) -> None:
        """Count a rejected update."""
        self._rejected[reason] += 1

    def refused(self, reason: str) -> None:
        """Count a refused message."""
        self._refused[reason] += 1

    def given_back(self, cause: str) -> None:
        """Count a task that its client failed at and gave back."""
        self._given_back[cause] += 1

    def quarantined(self) -> None:
        """Count a quarantine."""
        self._quarantines += 1

    def target_reached(self) -> None:
        """Record that a metric has reached the value that ends the run."""
        self._is_target_reached = True

    def ended(self, digest: str, at_s: float) -> None:
        """Record the end of the run. digest: Of the last version."""
        self._digest, self._ended_s = digest, at_s

    # --- how it stands ---

    def elapsed_s(self, live: Live) -> float | None:
        """Seconds from the first task until now, or to the end of the run; None before the first task."""
        if self._started_s is None:
            return None
        elapsed_s = live.at_s - self._started_s
        if live.phase is Phase.FINISHED and self._ended_s is not None:
            elapsed_s = self._ended_s - self._started_s
        elif live.phase is Phase.FINISHED:
            last = self._curve.last
            ends_s = [shown["at_s"] for shown in self._rounds[-1:]] + ([] if last is None else [last.at_s])
            elapsed_s = max(ends_s, default=elapsed_s)
        return _number(elapsed_s)

    def sections(self, live: Live) -> Sections:
        """All sections, without the time."""
        compensation = {"methods": dict(self._methods), "fallbacks": dict(self._fallbacks)}
        curve, counts = self._curve, self._staleness.copy()
        updates = sum(counts)
        sections: Sections = _finite(
            {
                "run": self._about,
                "state": self._state(live),
                "clients": dict(live.clients),
                "updates": {**live.updates, "pending": live.pending},
                "curve": {
                    "splits": list(curve.splits),
                    "names": list(curve.names),
                    "higher_is_better": curve.is_higher_better,
                    "points": [list(point) for point in curve.points],
                    "best": None if curve.best is None else list(curve.best),
                },
                "metrics": {split: dict(metrics) for split, metrics in self._metrics().items() if metrics},
                "staleness": {
                    "counts": counts,
                    "mean": sum(rounds * count for rounds, count in enumerate(counts)) / updates if updates else None,
                    "bounded_at": STALENESS_MAX,
                },
                "rounds": list(self._rounds),
                "rejections": {
                    "updates": dict(self._rejected),
                    "messages": dict(self._refused),
                    "tasks": dict(self._given_back),
                    "quarantines": self._quarantines,
                },
                "compensation": compensation if self._compensates else None,
            }
        )
        return sections

    def _new_curve(self, names: tuple[str, ...], splits: tuple[str, ...]) -> Curve:
        return Curve(names, splits, is_higher_better=direction(names[0], self._main))

    def _state(self, live: Live) -> dict[str, Any]:
        rounds = int(self._about.get("rounds", 0))
        match live.phase:
            case Phase.FINISHED:
                early = "reached" if self._is_target_reached else "stopped"
                standing = "finished" if live.version >= rounds else early
            case Phase.OPEN | Phase.MAKING:  # one becomes the other hundreds of times a second
                standing = "running"
            case phase:
                standing = phase.value
        times_s = [shown["at_s"] for shown in self._rounds]
        round_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else None
        left_s = None if round_s is None or standing != "running" else round_s * (rounds - live.version)
        return {
            "standing": standing,
            "version": live.version,
            "round_s": round_s,
            "left_s": left_s,
            "digest": self._digest,
            "alarm": live.alarm,
        }

    def _since_start_s(self, at_s: float | None) -> float:
        now_s = self._clock() if at_s is None else at_s
        return now_s - (now_s if self._started_s is None else self._started_s)

    def _amend(self, version: int, key: str, facts: Mapping[str, Any]) -> None:
        """Add facts to a stored round; the search starts at the end, because they follow soon after the round."""
        for index in range(len(self._rounds) - 1, -1, -1):
            shown = self._rounds[index]
            if shown["version"] == version:
                amended = {**shown, key: {**shown[key], **facts}}
                self._rounds = (*self._rounds[:index], amended, *self._rounds[index + 1 :])
                return


def _number(value: float | None) -> float | None:
    """Round to six digits; None for numbers that JSON does not have."""
    return float(f"{value:.6g}") if value is not None and isfinite(value) else None


def _finite(value: Any) -> Any:
    """Plain values with `_number` of every float in them."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return _number(value) if isinstance(value, float) else value
