"""The ranking of a search's candidates, and its confidence. Pure.

A group is the cells over which candidates are compared: one, or all together. A run is one candidate in one cell with
one seed. It lacks the measured number when it failed, diverged or ended before its target.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, inf, log
from statistics import fmean
from typing import Literal

from unstale.config import Settings
from unstale.config.metrics import ACCURACY, main_metric
from unstale.errors import UserError
from unstale.settings.learning import ObjectiveSettings
from unstale.training.measured import MainMetric
from unstale_papers.comparison import Comparison
from unstale_papers.jobs import Job
from unstale_papers.preset import Cell
from unstale_papers.search import Candidate, Search, Trial
from unstale_papers.statistics import DECIMALS, SIGNIFICANCE, Spread, TTest, over_seeds, t_test
from unstale_papers.table_metrics import Measure, measure, of_main

PUBLISHED: Literal["published"] = "published"

RULE = """\
Candidates are sorted by the share of their runs without a number, the smallest first, then by the mean over seeds. A
run has no number if it missed the target, diverged or failed. The second candidate differs from the best one if it is
behind by more than the spread of the seeds (paired t-test over seeds, p < 0.05)."""
"""Explanation of the order of candidates, for readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The goal of a search. toward: a number like the measure's values, or `published` for that of each cell; None for
    the best one. Distances of rounds are ratios, others are differences.
    """

    measure: Measure
    toward: float | Literal["published"] | None = None

    def target(self, cell: Cell) -> float | None:
        """The target of a cell."""
        if self.toward == PUBLISHED:
            return cell.published[self.measure.name].value
        return self.toward

    def off(self, value: float, target: float) -> float:
        """Distance to the target, at least 0: the logarithm of a ratio for rounds."""
        if self.measure.counts_rounds:
            return abs(_log(value) - _log(target))
        return abs(value - target)

    def off_text(self, off: float) -> str:
        """`1.09 times`, `+0.42 points` without its sign."""
        if self.measure.counts_rounds:
            return f"{exp(off):.2f} times"
        return self.measure.difference(off).removeprefix("+")


def _log(rounds: float) -> float:
    return log(max(rounds, 1))  # a target may be reached before the first one


def goal(name: str | None, toward: str | None, found: Search) -> Goal:
    """The goal of the options. name: of a measure, None for the main metric of the runs. toward: a number in the
    measure's displayed unit, or `published`.

    Raises UserError for a goal that the cells do not support.
    """
    of = _measure(name, found)
    name = of.name
    _check(of, found)
    if toward is None:
        return Goal(measure=of)
    if toward == PUBLISHED:
        for cell in found.cells:
            if name not in cell.published:
                there = ", ".join(cell.published) or "no number at all"
                raise UserError(
                    f"--toward is published, but of {cell.name} there is no {name!r} in print, only {there}; choose "
                    "cells with --cells, another --measure, or say a number"
                )
        return Goal(measure=of, toward=PUBLISHED)
    try:
        number = float(toward)
    except ValueError:
        number = inf
    if not abs(number) < inf:  # also false for nan
        unit = f" in {of.unit}" if of.unit else ""
        raise UserError(f"--toward is {toward!r}, expected a number{unit}, or published")
    if of.counts_rounds and number < 1:
        raise UserError(f"--toward is {toward}, expected one round at least")
    return Goal(measure=of, toward=number / 100 if of.unit == "%" else number)


def _measure(name: str | None, found: Search) -> Measure:
    """The measure of a name; None is the main metric of the runs, which all runs must have."""
    runs = [trial.cell.settings for trial in found.trials if trial.cell.measurement == "run"]
    mains = list(dict.fromkeys(map(_main, runs))) or [ACCURACY]
    of_mains = {measure.name: measure for measure in map(of_main, mains)}
    if name is None and len(mains) > 1:
        raise UserError(f"the runs have several main metrics, expected --measure, one of {', '.join(of_mains)}")
    if name is None:
        return next(iter(of_mains.values()))
    return of_mains[name] if name in of_mains else measure(name)


def _main(settings: Settings) -> MainMetric:
    if settings.objective == ObjectiveSettings():
        return main_metric(settings)
    from unstale.training.objectives import create as create_objective  # imports torch

    return main_metric(settings, create_objective(settings.objective).main)


def _check(of: Measure, found: Search) -> None:
    if of.of_all is not None:
        raise UserError(
            f"--measure is {of.name!r}, which is no number of one candidate, expected another, such as 'final accuracy'"
        )
    shown = found.preset.measures
    for cell in found.cells:
        if cell.measurement != "run" and of.name not in shown:
            raise UserError(
                f"--measure is {of.name!r}, which {cell.name} does not have, expected one of {', '.join(shown)}"
            )
        method = found.preset.method
        others = {method if axis == "method" else axis: label for axis, label in of.reference.items()}
        wanted = {**cell.labels, **others}
        if others and wanted not in [dict(one.labels) for one in found.cells]:
            labels = " ".join(f"{axis}={label}" for axis, label in others.items())
            raise UserError(
                f"--measure is {of.name!r}, which is relative to {labels}, and no such cell is searched beside "
                f"{cell.name}; choose others with --cells"
            )


def check_reach(aim: Goal, found: Search, planned: Sequence[Job]) -> None:
    """Raise UserError for a number of rounds beyond every candidate's run of a cell."""
    if not aim.measure.counts_rounds:
        return
    rounds = {job.cell: job.settings.rounds for job in planned}
    for cell in found.cells:
        target = aim.target(cell)
        longest = max(rounds[trial.cell.name] for trial in found.trials if trial.of.name == cell.name)
        if target is not None and target > longest:
            raise UserError(
                f"--toward comes to {target:g} rounds for {cell.name}, whose runs have {longest:,}; run more of them "
                "(--scale-rounds), or name another number"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateScore:
    """The result of a candidate in a group.

    values: by seed for which every cell has a number; over several cells the mean, for rounds the geometric one.
    spread: of the values; None without any. off: distance to the target, as `Goal.off`; None without one. scores: by
    seed, less is better. lacks: number of runs without a number, by reason. runs: requested. order: less is better.
    """

    candidate: Candidate
    values: Mapping[int, float]
    spread: Spread | None
    off: float | None
    scores: Mapping[int, float]
    lacks: Mapping[str, int]
    runs: int
    order: tuple[float, float]

    @property
    def lacking(self) -> int:
        """Number of runs without a number."""
        return sum(self.lacks.values())


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The candidates of a group, best first."""

    cells: Sequence[Cell]
    standings: Sequence[CandidateScore]

    @cached_property
    def best(self) -> list[CandidateScore]:
        """Several where tied; none where no candidate has a number."""
        first = self.standings[0]  # if it has no number, no candidate has one
        return [one for one in self.standings if one.spread is not None and one.order == first.order]

    @cached_property
    def next(self) -> CandidateScore | None:
        """The first candidate after the best that has a number."""
        behind = (one for one in self.standings if one.spread is not None and one not in self.best)
        return next(behind, None)

    @cached_property
    def test(self) -> TTest | None:
        """Test of the lead of the best over the next, by seed; None with fewer than two common seeds."""
        if self.next is None or not self.best:
            return None
        ours, theirs = self.best[0].scores, self.next.scores
        return t_test([theirs[seed] - ours[seed] for seed in sorted(ours.keys() & theirs.keys())])

    @property
    def is_settled(self) -> bool:
        """Whether the lead exceeds the spread over seeds."""
        return self.test is not None and self.test.mean > 0 and self.test.p < SIGNIFICANCE

    def at_the_edge(self) -> list[str]:
        """Keys whose best value is the least or greatest tried number: `the greatest rounds`."""
        if len(self.best) != 1:
            return []
        edges = []
        for key, value in self.best[0].candidate.items():
            tried = [one.candidate[key] for one in self.standings]
            if all(type(one) in (int, float) for one in tried) and min(tried) < max(tried):
                edges += [f"the least {key}"] * (value == min(tried))
                edges += [f"the greatest {key}"] * (value == max(tried))
        return edges


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a search. failed: cell and seed of failed runs. seeds: requested."""

    search: Search
    goal: Goal
    comparison: Comparison = field(repr=False)
    failed: frozenset[tuple[str, int]]
    seeds: Sequence[int]

    def rankings(self, *, together: bool) -> list[Ranking]:
        """One for each cell, or one over all of them."""
        trials: dict[str, list[Trial]] = {}
        for trial in self.search.trials:
            trials.setdefault(trial.of.name, []).append(trial)
        groups = [list(trials.values())] if together else [[of_cell] for of_cell in trials.values()]
        return [self._ranking(group) for group in groups]

    def _ranking(self, group: Sequence[Sequence[Trial]]) -> Ranking:
        """group: for each cell its trials, in the same order of candidates."""
        standings = [self._standing(them) for them in zip(*group, strict=True)]
        return Ranking(cells=[trials[0].of for trials in group], standings=sorted(standings, key=lambda one: one.order))

    def _standing(self, trials: Sequence[Trial]) -> CandidateScore:
        """Score of one candidate from a trial for each cell."""
        numbers: list[dict[int, float]] = []
        lacks: Counter[str] = Counter()
        for trial in trials:
            found = self._of(trial)
            numbers.append({seed: one for seed, one in found.items() if not isinstance(one, str)})
            lacks.update(one for one in found.values() if isinstance(one, str))
        whole = [seed for seed in self.seeds if all(seed in one for one in numbers)]
        values = {seed: self._over_cells([one[seed] for one in numbers]) for seed in whole}
        targets = [self.goal.target(trial.of) for trial in trials]
        scores = {seed: self._score(values[seed], [one[seed] for one in numbers], targets) for seed in whole}
        spread = over_seeds(list(values.values()))
        means = [fmean(one[seed] for seed in whole) for one in numbers] if whole else []
        score = self._score(spread.mean, means, targets) if spread is not None else inf
        runs = len(trials) * len(self.seeds)
        return CandidateScore(
            candidate=trials[0].candidate,
            values=values,
            spread=spread,
            off=score if spread is not None and self.goal.toward is not None else None,
            scores=scores,
            lacks=lacks,
            runs=runs,
            order=(sum(lacks.values()) / runs + (not whole), score),
        )

    def _of(self, trial: Trial) -> dict[int, float | str]:
        """The number by seed, or the reason for none."""
        entry = self.comparison.entry(trial.cell, self.goal.measure)
        found: dict[int, float | str] = {}
        for seed in self.seeds:
            record = self.comparison.records.get((trial.cell.name, seed))
            value = entry.values.get(seed)
            if record is None:
                found[seed] = "failed" if (trial.cell.name, seed) in self.failed else "not run"
            elif record.diverged:
                found[seed] = "diverged"
            elif value is None:
                found[seed] = "missed the target" if self.goal.measure.counts_rounds else "without a number"
            else:
                found[seed] = value
        return found

    def _over_cells(self, values: Sequence[float]) -> float:
        if len(values) > 1 and self.goal.measure.counts_rounds:
            return exp(fmean(map(_log, values)))
        return fmean(values)

    def _score(self, together: float, by_cell: Sequence[float], targets: Sequence[float | None]) -> float:
        """Less is better. together: value over cells. by_cell, targets: of each cell."""
        off = [
            self.goal.off(value, target) for value, target in zip(by_cell, targets, strict=True) if target is not None
        ]
        if off:
            return round(fmean(off), DECIMALS)
        return round(-together if self.goal.measure.better == "higher" else together, DECIMALS)
