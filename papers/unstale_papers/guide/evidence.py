"""The results of the policy guide's runs, and the ranking of policies by regret. Pure, but for `load`.

The regret of a run is how far it is behind the best policy of its task and condition with the same seed, in points:
percentage points of a share, and per cent of the best policy's mean for other numbers. The best policy is the one with
the best mean over seeds of those that have a number with every seed. It has regret 0; a run may be ahead of it, with a
regret below 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from unstale_papers.statistics import SIGNIFICANCE, Spread, TTest, over_seeds, t_test

FILE = Path(__file__).parent / "evidence.json"
DECIMALS = 9  # of a regret: further digits are rounding errors


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskMeasure(_Strict):
    """How a task is measured. is_share: whether values are shares in [0, 1]."""

    title: str
    measure: str
    better: Literal["higher", "lower"]
    is_share: bool


class Result(_Strict):
    """The runs of a policy on a task in a condition. condition: a label by axis. method: name in the guide. values: by
    seed; None for a run that diverged. rates: values of the keys that were searched.
    """

    task: str
    condition: dict[str, str]
    method: str
    values: tuple[float | None, ...]
    rates: dict[str, float]

    @property
    def lacking(self) -> int:
        """Number of runs without a number."""
        return self.values.count(None)

    @property
    def mean(self) -> float:
        """Over the seeds that have a number; not a number without any."""
        numbers = [value for value in self.values if value is not None]
        return fmean(numbers) if numbers else inf


class Evidence(_Strict):
    """All results. Every task has every method in every condition, with the same number of seeds.

    tasks: by name.
    """

    tasks: dict[str, TaskMeasure]
    results: tuple[Result, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        of_tasks = [
            sorted((*sorted(one.condition.items()), one.method) for one in self.results if one.task == task)
            for task in self.tasks
        ]
        if any(one != of_tasks[0] for one in of_tasks):
            raise ValueError("tasks differ in their conditions or methods, expected the same for all")
        if {one.task for one in self.results} != set(self.tasks):
            raise ValueError("results of other tasks than those that are named")
        if len({len(one.values) for one in self.results}) > 1:
            raise ValueError("results differ in their number of seeds, expected the same for all")
        return self

    @property
    def seeds(self) -> int:
        """Number of seeds of each result."""
        return len(self.results[0].values) if self.results else 0

    @property
    def axes(self) -> dict[str, list[str]]:
        """Labels of the conditions, by axis."""
        labels: dict[str, dict[str, None]] = {}
        for one in self.results:
            for axis, label in one.condition.items():
                labels.setdefault(axis, {})[label] = None
        return {axis: list(each) for axis, each in labels.items()}

    def matching(self, condition: Mapping[str, str], tasks: Iterable[str]) -> list[Result]:
        """The results of these tasks whose condition has these labels."""
        return [one for one in self.results if one.task in set(tasks) and condition.items() <= one.condition.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A policy among the others.

    regret: mean over tasks and conditions, by seed, in points; None if a run has no number, or no policy has one with
    every seed. rank: mean over tasks and conditions, 1 for the best. lacking: runs without a number, of `runs`. test:
    paired t-test over seeds of the regret against that of the first; None for the first, and where all pairs are equal
    or fewer than two.
    """

    method: str
    regret: Spread | None
    rank: float
    lacking: int
    runs: int
    test: TTest | None = None

    @property
    def is_behind(self) -> bool:
        """Whether it is behind the first by more than the seeds' spread, or has runs without a number."""
        return self.lacking > 0 or (self.test is not None and self.test.mean > 0 and self.test.p < SIGNIFICANCE)


@cache
def load(file: Path = FILE) -> Evidence:
    """Read the results that the package contains."""
    return Evidence.model_validate_json(file.read_text(encoding="utf-8"))


def standings(evidence: Evidence, condition: Mapping[str, str], tasks: Sequence[str]) -> list[Standing]:
    """The policies, best first: by the share of runs without a number, then by mean regret.

    condition: labels of some axes; the mean is over the others. tasks: names.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for one in evidence.matching(condition, tasks):
        groups.setdefault((one.task, *one.condition.values()), []).append(one)
    regrets: dict[str, list[list[float]]] = {}
    places: dict[str, list[int]] = {}
    lacking: dict[str, int] = {}
    for group in groups.values():
        measure = evidence.tasks[group[0].task]
        for one, place in zip(group, _ranks(group, measure), strict=True):
            places.setdefault(one.method, []).append(place)
            lacking[one.method] = lacking.get(one.method, 0) + one.lacking
        for method, by_seed in regrets_of(group, measure).items():
            regrets.setdefault(method, []).append(by_seed)
    by_method = {
        method: [fmean(of_seed) for of_seed in zip(*regrets[method], strict=True)]
        for method in places
        if len(regrets.get(method, ())) == len(groups)
    }
    order = sorted(places, key=lambda method: (lacking[method], _mean(by_method.get(method)), fmean(places[method])))
    first = by_method.get(order[0]) if order else None
    return [
        Standing(
            method=method,
            regret=over_seeds(by_method.get(method, ())),
            rank=fmean(places[method]),
            lacking=lacking[method],
            runs=len(groups) * evidence.seeds,
            test=_against(by_method.get(method), first) if method != order[0] else None,
        )
        for method in order
    ]


def regrets_of(group: Sequence[Result], measure: TaskMeasure) -> dict[str, list[float]]:
    """Regret by seed of the policies that have a number with every seed. group: of one task and condition."""
    complete = [one for one in group if not one.lacking]
    if not complete:
        return {}
    sign = 1 if measure.better == "higher" else -1
    best = max(complete, key=lambda one: sign * one.mean)
    scale = 100.0 if measure.is_share else 100.0 / abs(best.mean)
    return {
        one.method: [
            round(scale * sign * (top - value), DECIMALS) for top, value in zip(_known(best), _known(one), strict=True)
        ]
        for one in complete
    }


def _known(one: Result) -> list[float]:
    return [value for value in one.values if value is not None]


def _ranks(group: Sequence[Result], measure: TaskMeasure) -> list[int]:
    """From 1; policies with more runs without a number come later, tied ones share a rank."""
    sign = -1 if measure.better == "higher" else 1
    keys = [(float(one.lacking), sign * one.mean if one.mean < inf else inf) for one in group]
    return [1 + sum(other < key for other in keys) for key in keys]


def _mean(values: Sequence[float] | None) -> float:
    return fmean(values) if values else inf


def _against(regrets: Sequence[float] | None, first: Sequence[float] | None) -> TTest | None:
    if regrets is None or first is None:
        return None
    return t_test([round(own - best, DECIMALS) for own, best in zip(regrets, first, strict=True)])
