"""The content of the status page as plain values for JSON. Pure.

One thread records facts, any other thread reads, and none waits: a value is replaced or copied in one step and never
changed while a thread reads it. All sizes are bounded.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from statistics import fmean
from typing import Any, NamedTuple

from unstale.compensators import Compensated, MeasuredError
from unstale.compensators.compensator import UNCHANGED
from unstale.coordinator.phase import Phase

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
    accuracy: float  # in [0, 1]
    loss: float  # nats


class Curve:
    """A curve of bounded length: every point, or every second, fourth, ... point, and always the last one."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
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

    @property
    def points(self) -> tuple[Point, ...]:
        """The stored points in order, at most `points_max` + 1."""
        kept, last = self._kept, self.last
        return kept if last is None or (kept and kept[-1] is last) else (*kept, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShown:
    """A listed round. Durations are those of `journal.rows.RoundRow` and `EvaluationRow`; None if unknown."""

    version: int
    at_s: float
    updates: int  # number of its updates
    staleness: tuple[int, ...]  # rounds; of the first updates, in order of arrival
    weights: tuple[float, ...]  # of the same updates
    staleness_mean: float
    staleness_max: int
    overflowed: bool
    wait_s: float
    compensate_s: float
    aggregate_s: float
    evaluate_s: float | None = None
    checkpoint_s: float | None = None
    errors: Mapping[str, tuple[float, float]] | None = None  # mean L1 and cosine distance, by method

    @property
    def values(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "version": self.version,
            "at_s": _number(self.at_s),
            "updates": self.updates,
            "staleness": self.staleness,
            "weights": [_number(weight) for weight in self.weights],
            "staleness_mean": _number(self.staleness_mean),
            "staleness_max": self.staleness_max,
            "overflowed": self.overflowed,
            "phases_s": {
                "wait": _number(self.wait_s),
                "compensate": _number(self.compensate_s),
                "aggregate": _number(self.aggregate_s),
                "evaluate": _number(self.evaluate_s),
                "checkpoint": _number(self.checkpoint_s),
            },
            "errors": {
                method: {"l1": _number(l1), "cosine": _number(cosine)}
                for method, (l1, cosine) in (self.errors or {}).items()
            },
        }


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
    """The state and history of a run. Rejections are counted since the process started, everything else since the run
    did.
    """

    def __init__(self, about: Mapping[str, str | int] | None = None, *, clock: Callable[[], float]) -> None:
        """about: Constant facts, which contain `rounds`. clock: Seconds of the run."""
        self._about = dict(about or {})
        self._clock = clock
        self._started_s: float | None = None
        self._ended_s: float | None = None
        self._digest: str | None = None
        self._curve = Curve()
        self._best: Point | None = None
        self._rounds: tuple[RoundShown, ...] = ()
        self._staleness: list[int] = []  # how many updates, by staleness
        self._rejected: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
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
        shown = RoundShown(
            version=version,
            at_s=self._since_start_s(at_s),
            updates=len(staleness),
            staleness=tuple(staleness[:UPDATES_SHOWN]),
            weights=tuple(weights[:UPDATES_SHOWN]),
            staleness_mean=fmean(staleness) if staleness else nan,
            staleness_max=greatest,
            overflowed=overflowed,
            wait_s=wait_s,
            compensate_s=compensate_s,
            aggregate_s=aggregate_s,
        )
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
            method: (fmean(error.l1 for error in measured), fmean(error.cosine for error in measured))
            for method, measured in by_method.items()
        }
        self._amend(version, errors=means)

    def evaluated(
        self, version: int, accuracy: float, loss: float, *, evaluate_s: float, at_s: float | None = None
    ) -> None:
        """Record an evaluation, now or at `at_s`; the repeated one of a resumed run has no effect."""
        self._amend(version, evaluate_s=evaluate_s)
        last = self._curve.last
        if last is not None and version <= last.version:
            return
        point = Point(version, self._since_start_s(at_s), accuracy, loss)
        if self._best is None or accuracy > self._best.accuracy:
            self._best = point
        self._curve.add(point)

    def saved(self, version: int, checkpoint_s: float) -> None:
        """Record a checkpoint of a version."""
        self._amend(version, checkpoint_s=checkpoint_s)

    def rejected(self, reason: str) -> None:
        """Count a rejected update."""
        self._rejected[reason] += 1

    def refused(self, reason: str) -> None:
        """Count a refused message."""
        self._refused[reason] += 1

    def quarantined(self) -> None:
        """Count a quarantine."""
        self._quarantines += 1

    def ended(self, digest: str, at_s: float) -> None:
        """Record the end of the run. digest: Of the last version."""
        self._digest, self._ended_s = digest, at_s

    # --- how it stands ---

    def elapsed_s(self, live: Live) -> float | None:
        """Seconds from the first task until now, or to the end of the run; None before the first task."""
        started_s = self._started_s
        if started_s is None:
            return None
        if live.phase is not Phase.FINISHED:
            return _number(live.at_s - started_s)
        if self._ended_s is not None:
            return _number(self._ended_s - started_s)
        last = [event.at_s for event in (*self._rounds[-1:], self._curve.last) if event is not None]
        return _number(max(last, default=live.at_s - started_s))

    def sections(self, live: Live) -> Sections:
        """All sections, without the time."""
        return {
            "run": self._about,
            "state": self._state(live),
            "clients": dict(live.clients),
            "updates": {**live.updates, "pending": live.pending},
            "curve": self._curve_values(),
            "staleness": self._staleness_values(),
            "rounds": [shown.values for shown in self._rounds],
            "rejections": {
                "updates": dict(self._rejected),
                "messages": dict(self._refused),
                "quarantines": self._quarantines,
            },
            "compensation": {"methods": dict(self._methods), "fallbacks": dict(self._fallbacks)}
            if self._compensates
            else None,
        }

    def _state(self, live: Live) -> dict[str, Any]:
        rounds = int(self._about.get("rounds", 0))
        match live.phase:
            case Phase.FINISHED:
                standing = "finished" if live.version >= rounds else "stopped"
            case Phase.OPEN | Phase.MAKING:  # one becomes the other hundreds of times a second
                standing = "running"
            case phase:
                standing = phase.value
        round_s = _mean_round_s(self._rounds)
        return {
            "standing": standing,
            "version": live.version,
            "round_s": _number(round_s),
            "left_s": _number(round_s * (rounds - live.version)) if standing == "running" else None,
            "digest": self._digest,
            "alarm": live.alarm,
        }

    def _curve_values(self) -> dict[str, Any]:
        best = self._best
        return {
            "points": [[point.version, *map(_number, point[1:])] for point in self._curve.points],
            "best": None if best is None else [best.version, *map(_number, best[1:])],
        }

    def _staleness_values(self) -> dict[str, Any]:
        counts = self._staleness.copy()
        updates = sum(counts)
        return {
            "counts": counts,
            "mean": _number(sum(rounds * count for rounds, count in enumerate(counts)) / updates) if updates else None,
            "bounded_at": STALENESS_MAX,
        }

    def _since_start_s(self, at_s: float | None) -> float:
        now_s = self._clock() if at_s is None else at_s
        return now_s - (now_s if self._started_s is None else self._started_s)

    def _amend(self, version: int, **facts: Any) -> None:
        """Add facts to a stored round; the search starts at the end, because they follow soon after the round."""
        for index in range(len(self._rounds) - 1, -1, -1):
            if self._rounds[index].version == version:
                amended = replace(self._rounds[index], **facts)
                self._rounds = (*self._rounds[:index], amended, *self._rounds[index + 1 :])
                return


def _mean_round_s(rounds: Sequence[RoundShown]) -> float:
    """Mean seconds between stored versions; nan with fewer than two."""
    if len(rounds) < 2:
        return nan
    return (rounds[-1].at_s - rounds[0].at_s) / (len(rounds) - 1)


def _number(value: float | None) -> float | None:
    """Round to six digits; None for numbers that JSON does not have."""
    return float(f"{value:.6g}") if value is not None and isfinite(value) else None
