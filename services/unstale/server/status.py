"""What the status page shows, as plain values for JSON. Pure.

One thread tells it what happens, any other may ask how it stands, and neither waits: what is asked for is replaced
whole or copied in one step, never changed while somebody reads it. Everything in it is bounded, however long the run.
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

POINTS_MAX = 500  # of a curve: more than a page has room for
ROUNDS_KEPT = 50  # that is shown one by one
UPDATES_SHOWN = 40  # of such a round; more are told as a number
STALENESS_MAX = 1000  # rounds; what is staler is counted here

Sections = dict[str, Any]
"""By name, what changes together: values of JSON, no number of which is nan or infinite."""


class Point(NamedTuple):
    """A version was measured, at_s seconds after the first task. accuracy: in [0, 1]. loss: nats."""

    version: int
    at_s: float
    accuracy: float
    loss: float


class Curve:
    """Every point while they are few, then every second one, every fourth and so on; and always the last one."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._kept: tuple[Point, ...] = ()
        self._every = 1
        self._seen = 0
        self.last: Point | None = None

    def add(self, point: Point) -> None:
        """A measurement of a later version than the last one."""
        if self._seen % self._every == 0:
            kept = (*self._kept, point)
            if len(kept) > self._points_max:
                kept, self._every = kept[::2], 2 * self._every
            self._kept = kept
        self._seen += 1
        self.last = point

    @property
    def points(self) -> tuple[Point, ...]:
        """Those that are kept, in order; at most one more than `points_max`."""
        kept, last = self._kept, self.last
        return kept if last is None or (kept and kept[-1] is last) else (*kept, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShown:
    """A round that made a version. updates: how many. staleness (rounds), weights: of the first of them, in order of
    arrival. The other fields as in `journal.rows.RoundRow` and `journal.rows.EvaluationRow`; None for what has not been
    done, or was done by an earlier process that did not write down for how long. errors: by method, the mean L1 and
    cosine distance of what was measured in this round.
    """

    version: int
    at_s: float
    updates: int
    staleness: tuple[int, ...]
    weights: tuple[float, ...]
    staleness_mean: float
    staleness_max: int
    overflowed: bool
    wait_s: float
    compensate_s: float
    aggregate_s: float
    evaluate_s: float | None = None
    checkpoint_s: float | None = None
    errors: Mapping[str, tuple[float, float]] | None = None

    @property
    def values(self) -> dict[str, Any]:
        """For JSON."""
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
    """What the coordinator stands at now. at_s: on the clock of the run. clients: number by state. updates: number by
    outcome. pending: accepted updates that are in no round yet. alarm: what the operator must do something about, None
    for nothing.
    """

    at_s: float
    phase: Phase
    version: int
    clients: Mapping[str, int]
    updates: Mapping[str, int]
    pending: int
    alarm: str | None = None


class Status:
    """How a run stands and how it came there. about: what does not change, shown as it is; `rounds` among it.

    clock: of the run, seconds. What was rejected is counted since this process began; all else since the run did.
    """

    def __init__(self, about: Mapping[str, str | int] | None = None, *, clock: Callable[[], float]) -> None:
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
        """The first task goes out, now unless `at_s` says when; told again, nothing changes."""
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
        """A round became a version, now unless `at_s` says when. staleness, weights: by update, in order of arrival."""
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
        """What became of the updates of the round that made this version, before the step."""
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
        """A version was measured, now unless `at_s` says when. A run that is taken up measures one again: that says
        nothing new.
        """
        self._amend(version, evaluate_s=evaluate_s)
        last = self._curve.last
        if last is not None and version <= last.version:
            return
        point = Point(version, self._since_start_s(at_s), accuracy, loss)
        if self._best is None or accuracy > self._best.accuracy:
            self._best = point
        self._curve.add(point)

    def saved(self, version: int, checkpoint_s: float) -> None:
        """A checkpoint of a version is on disk."""
        self._amend(version, checkpoint_s=checkpoint_s)

    def rejected(self, reason: str) -> None:
        """An update was rejected."""
        self._rejected[reason] += 1

    def refused(self, reason: str) -> None:
        """A message was refused."""
        self._refused[reason] += 1

    def quarantined(self) -> None:
        """A client is kept out for a while."""
        self._quarantines += 1

    def ended(self, digest: str, at_s: float) -> None:
        """The run is over since `at_s`. digest: of the last version."""
        self._digest, self._ended_s = digest, at_s

    # --- how it stands ---

    def elapsed_s(self, live: Live) -> float | None:
        """From the first task until now or, of a run that is over, to its end; None before the first task."""
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
        """Everything that is shown, but the time."""
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
            "mean": _number(sum(rounds * count for rounds, count in enumerate(counts)) / updates)
            if updates
            else None,
            "bounded_at": STALENESS_MAX,
        }

    def _since_start_s(self, at_s: float | None) -> float:
        now_s = self._clock() if at_s is None else at_s
        return now_s - (now_s if self._started_s is None else self._started_s)

    def _amend(self, version: int, **facts: Any) -> None:
        """Add to a round that is kept. What is told of comes soon after its round, so near the end."""
        for index in range(len(self._rounds) - 1, -1, -1):
            if self._rounds[index].version == version:
                amended = replace(self._rounds[index], **facts)
                self._rounds = (*self._rounds[:index], amended, *self._rounds[index + 1 :])
                return


def _mean_round_s(rounds: Sequence[RoundShown]) -> float:
    """From one version to the next, over those that are kept; nan while there is one at most."""
    if len(rounds) < 2:
        return nan
    return (rounds[-1].at_s - rounds[0].at_s) / (len(rounds) - 1)


def _number(value: float | None) -> float | None:
    """With six digits; None for what JSON has no number for."""
    return float(f"{value:.6g}") if value is not None and isfinite(value) else None
