"""What was published beside what was measured: numbers, the order of methods, and whether claims hold. Pure.

Legend: a pair is two cells that a claim compares. Ahead: better, in the sense of the claim's measure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import exp, log
from statistics import fmean
from typing import Literal

from unstale.experiments.measures import Measure, measure
from unstale.experiments.preset import Cell, Claim, Labels, Number, Preset
from unstale.experiments.record import Record
from unstale.experiments.statistics import Agreement, Spread, kendall, over_seeds, ranks, t_test

SIGNIFICANCE = 0.05
DECIMALS = 12  # of an advantage: what is beyond is of rounding, and decides nothing

RULE = """\
A claim compares pairs of cells that are alike but for what it is about, seed by seed, over the seeds that all its
pairs have. It holds when every pair is ahead in the mean over seeds, and the average advantage over all pairs is above
what is claimed by more than the seeds' spread (paired t-test over seeds, p < 0.05). It does not hold when the average
is below what is claimed by more than the spread, or one pair is behind by more than it (p < 0.05 divided by the number
of pairs, because one of many is easily behind by chance). Otherwise, and where a comparison is missing that could
still turn it, it cannot be told. With one seed there is no spread: the verdict is of that seed alone, and another seed
may turn it. Where more is claimed of every comparison, such as "more than 3 points above every baseline", no average
makes up for one: it holds when each pair's advantage is above what is claimed by more than the spread (p < 0.05 for
each), and does not hold when that of one is below it by more than the spread (p < 0.05 divided by the number of
pairs). A run that ended before its target counts as if one more round had reached it, which flatters it; two such runs
are not compared. Ratios are averaged as geometric means."""
"""How verdicts are reached, for people."""

ORDERS = """\
Orders are by the mean over seeds, best first, "=" between methods that are alike; a method that missed a target in a
larger share of its seeds comes later. Kendall's tau-b compares the two orders: 1 is the same, -1 the reverse, 0 no
relation. Its p is exact: how often an order drawn at random would agree, or disagree, as much. It is left out where
there are ties; tau too where fewer than three methods have a number both in print and here. With three methods even the
same order has p = 0.33."""
"""What an order and its tau say, for people."""

Order = tuple[tuple[str, ...], ...]
"""Methods, best first; those that are alike stand together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One measure of one cell. values: by seed that was run; None where the record does not say, or the run ended
    before its target. spread: of those that are not None; None where there are none."""

    cell: Cell
    measure: Measure
    published: Number | None
    values: Mapping[int, float | None]
    spread: Spread | None

    @property
    def difference(self) -> float | None:
        """Measured less published; None where one of the two is missing."""
        if self.spread is None or self.published is None:
            return None
        return self.spread.mean - self.published.value

    @property
    def missed(self) -> int:
        """In how many seeds the run ended before its target."""
        absent = sum(value is None for value in self.values.values())
        return absent if self.measure.counts_rounds else 0

    @property
    def text(self) -> str:
        """`57.19 ± 0.42`; `1704 (1 of 3 seeds)`, where the others missed the target; `not reached`; nothing."""
        if self.spread is None:
            return "not reached" if self.missed else ""
        shown = self.measure.text(self.spread.mean)
        if self.spread.std is not None:
            shown += f" ± {self.measure.text(self.spread.std)}"
        return f"{shown} ({self.spread.n} of {len(self.values)} seeds)" if self.missed else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The order of methods in cells that differ in nothing else. labels: that they share. agreement: of the methods
    that have a number in print and here."""

    measure: Measure
    labels: Labels
    published: Order
    measured: Order
    agreement: Agreement | None


Answer = Literal["holds", "does not hold", "cannot be told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a claim. seeds: that it rests on. why: a sentence with the figures that decide. in_print: the same
    figures of the published numbers, empty where there are none."""

    claim: Claim
    answer: Answer
    seeds: tuple[int, ...]
    why: str
    in_print: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A preset and what was measured of it. records: by name of the cell and seed; those of other cells are passed
    over."""

    preset: Preset
    records: Mapping[tuple[str, int], Record] = field(repr=False)

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """That any cell has."""
        names = {cell.name for cell in self.preset.cells}
        return tuple(sorted({seed for name, seed in self.records if name in names}))

    @cached_property
    def entries(self) -> Mapping[tuple[str, str], Entry]:
        """By name of the cell and of the measure: what the preset's table shows."""
        return {
            (cell.name, name): self.entry(cell, measure(name))
            for cell in self.preset.cells
            for name in self.preset.measures
        }

    @cached_property
    def rankings(self) -> tuple[Ranking, ...]:
        """Of every group of cells and measure of the table in which there are two methods to rank."""
        groups: dict[tuple[tuple[str, str], ...], list[Cell]] = {}
        for cell in self.preset.cells:
            if self.preset.method in cell.labels:
                shared = tuple((axis, of) for axis, of in cell.labels.items() if axis != self.preset.method)
                groups.setdefault(shared, []).append(cell)
        found = (
            self._ranking(dict(shared), [self.entries[cell.name, name] for cell in cells], measure(name))
            for shared, cells in groups.items()
            for name in self.preset.measures
            if measure(name).is_ranked
        )
        return tuple(one for one in found if _methods(one.published) > 1 or _methods(one.measured) > 1)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """On each claim of the preset, by `RULE`."""
        return tuple(_verdict(self, claim) for claim in self.preset.claims)

    def entry(self, cell: Cell, of: Measure) -> Entry:
        """A measure of a cell, of whatever measure there is."""
        records = {
            seed: self.records[cell.name, seed] for seed in self.seeds if (cell.name, seed) in self.records
        }
        reference = self._reference(cell, of)
        pairs = {
            seed: (record, self.records.get((reference.name, seed)) if reference is not None else None)
            for seed, record in records.items()
        }
        # What is relative to a run that there is not is no missed target, but not known.
        known = {seed: pair for seed, pair in pairs.items() if pair[1] is not None or not of.reference}
        values = {seed: of.of(*pair) for seed, pair in known.items()}
        if of.of_all is None:
            spread = over_seeds([value for value in values.values() if value is not None])
        else:
            together = of.of_all(list(known.values()))
            spread = (
                None
                if together is None
                else Spread(n=len(known), mean=together, std=None, low=None, high=None)
            )
        return Entry(
            cell=cell, measure=of, published=cell.published.get(of.name), values=values, spread=spread
        )

    def _reference(self, cell: Cell, of: Measure) -> Cell | None:
        labels = {self.preset.method if axis == "method" else axis: at for axis, at in of.reference.items()}
        return self._by_labels.get(frozenset({**cell.labels, **labels}.items())) if labels else None

    @cached_property
    def _by_labels(self) -> Mapping[frozenset[tuple[str, str]], Cell]:
        return {frozenset(cell.labels.items()): cell for cell in self.preset.cells}

    def _ranking(self, labels: Labels, entries: Sequence[Entry], of: Measure) -> Ranking:
        sign = -1 if of.better == "higher" else 1
        published = {
            self._method(one): (sign * one.published.value,) for one in entries if one.published is not None
        }
        measured = {
            self._method(one): _key(one, sign) for one in entries if one.spread is not None or one.missed
        }
        both = [method for method in published if method in measured]
        return Ranking(
            measure=of,
            labels=labels,
            published=_order(published),
            measured=_order(measured),
            agreement=kendall(
                ranks([published[one] for one in both]), ranks([measured[one] for one in both])
            ),
        )

    def _method(self, entry: Entry) -> str:
        return entry.cell.labels[self.preset.method]


def _key(entry: Entry, sign: int) -> tuple[float, ...]:
    """What a method is ordered by, least first: the share of its seeds that missed the target, then the mean."""
    missed = entry.missed / len(entry.values) if entry.missed else 0.0
    return missed, sign * entry.spread.mean if entry.spread is not None else 0.0


def _order(keys: Mapping[str, tuple[float, ...]]) -> Order:
    best_first = sorted(keys, key=lambda method: keys[method])
    return tuple(tuple(alike) for _, alike in groupby(best_first, key=lambda method: keys[method]))


def _methods(order: Order) -> int:
    return sum(map(len, order))


# Claims


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two cells that a claim compares. by_seed: how far `better` is ahead: a difference, or a logarithm of a ratio; of
    seeds that say. in_print: the same of the published numbers."""

    better: Cell
    worse: Cell
    by_seed: Mapping[int, float]
    in_print: float | None


def _verdict(comparison: Comparison, claim: Claim) -> Verdict:
    pairs = [_compared(comparison, claim, *cells) for cells in compared(comparison.preset, claim)]
    run = [pair for pair in pairs if pair.by_seed]
    seeds = tuple(sorted(set.intersection(*(set(pair.by_seed) for pair in run)))) if run else ()
    answer: Answer = "cannot be told"
    if not pairs:
        why = "No cells of this preset are compared by it."
    elif not run:
        why = f"{_many(len(pairs), 'comparison')}, none with a number on both sides."
    elif not seeds:
        why = f"{_many(len(run), 'comparison')}, and no seed that has all of them."
    else:
        answer, why = _answer(claim, run, seeds, missing=len(pairs) - len(run))
    return Verdict(claim=claim, answer=answer, seeds=seeds, why=why, in_print=_in_print(claim, pairs))


def compared(preset: Preset, claim: Claim) -> list[tuple[Cell, Cell]]:
    """The cells that a claim sets against each other, the better one first.

    A cell that has all labels of `better` against each other that has those of `worse` and is alike in all axes but
    those that `worse` names and, if `better` names it, the preset's method. With `worse` empty and no method in
    `better` it may differ in the axes of `better`. None of either has the labels of `without`.
    """
    varied = {*claim.worse, *({preset.method} & set(claim.better))} or set(claim.better)

    def rest(cell: Cell) -> frozenset[tuple[str, str]]:
        return frozenset((axis, at) for axis, at in cell.labels.items() if axis not in varied)

    cells = [
        cell for cell in preset.cells if not (claim.without and claim.without.items() <= cell.labels.items())
    ]
    better = [cell for cell in cells if claim.better.items() <= cell.labels.items()]
    chosen = {cell.name for cell in better}
    worse = [cell for cell in cells if cell.name not in chosen and claim.worse.items() <= cell.labels.items()]
    return [(one, other) for one in better for other in worse if rest(one) == rest(other)]


def _compared(comparison: Comparison, claim: Claim, better: Cell, worse: Cell) -> _Pair:
    of = measure(claim.measure)
    ours, theirs = comparison.entry(better, of), comparison.entry(worse, of)
    by_seed = {}
    for seed in ours.values.keys() & theirs.values.keys():
        us, them = ours.values[seed], theirs.values[seed]
        if of.counts_rounds and (us is None) != (them is None):
            us = _at_best(comparison, better, seed) if us is None else us
            them = _at_best(comparison, worse, seed) if them is None else them
        ahead = _ahead(claim, of, us, them)
        if ahead is not None:
            by_seed[seed] = ahead
    printed = [one.published.value if one.published is not None else None for one in (ours, theirs)]
    return _Pair(better=better, worse=worse, by_seed=by_seed, in_print=_ahead(claim, of, *printed))


def _at_best(comparison: Comparison, cell: Cell, seed: int) -> float | None:
    """The round after the last one, of a run that ended before its target."""
    versions = comparison.records[cell.name, seed].version_E
    return versions[-1] + 1 if versions else None


def _ahead(claim: Claim, of: Measure, us: float | None, them: float | None) -> float | None:
    """How far the first is ahead of the second; None where one is missing, or has no logarithm."""
    if us is None or them is None or (claim.as_ratio and min(us, them) <= 0):
        return None
    advantage = log(us / them) if claim.as_ratio else us - them
    return round(advantage if of.better == "higher" else -advantage, DECIMALS)


def _claimed(claim: Claim) -> float:
    """What is claimed, in the terms of `_ahead`."""
    if not claim.as_ratio:
        return claim.at_least
    return round(log(claim.at_least), DECIMALS) if claim.at_least > 0 else 0.0


def _answer(
    claim: Claim, run: Sequence[_Pair], seeds: tuple[int, ...], *, missing: int
) -> tuple[Answer, str]:
    """By `RULE`. run: pairs that all have these seeds. missing: pairs that have none."""
    limit = _claimed(claim)
    means = [fmean(pair.by_seed[seed] for seed in seeds) for pair in run]
    averages = [fmean(pair.by_seed[seed] for pair in run) for seed in seeds]
    average = round(fmean(averages), DECIMALS)
    if claim.each:
        enough, refuted = _of_each(run, seeds, limit)
    elif len(seeds) == 1:
        enough = average >= limit
        refuted = average < limit or min(means) < 0
    else:
        test = t_test(averages, against=limit)
        sure = test is not None and test.p < SIGNIFICANCE
        enough = average >= limit and (sure or test is None)
        behind = (t_test([pair.by_seed[seed] for seed in seeds]) for pair in run)
        refuted = (average < limit and sure) or any(
            one is not None and one.mean < 0 and one.p < SIGNIFICANCE / len(run) for one in behind
        )
    said = [_figures(claim, run, means, averages)]
    answer: Answer = "cannot be told"
    if missing:
        said.append(f"{_many(missing, 'comparison')} of {len(run) + missing} without a number")
    if refuted:
        answer = "does not hold"
    elif enough and min(means) > 0:
        answer = "cannot be told" if missing else "holds"
    elif claim.each and len(seeds) > 1:
        said.append("the least is above or below that within the seeds' spread")
    elif len(seeds) > 1:
        said.append(f"{'what is behind is so' if enough else 'the average is that'} within the seeds' spread")
    over = f"Of seed {seeds[0]} alone" if len(seeds) == 1 else f"Over {len(seeds)} seeds"
    return answer, f"{over}: {'; '.join(said)}."


def _of_each(run: Sequence[_Pair], seeds: tuple[int, ...], limit: float) -> tuple[bool, bool]:
    """Whether every pair has what is claimed, and whether one certainly has not.

    That all have it takes a test of each and no correction, as all must pass; that one has not is told by one of many
    tests, and takes their number (Bonferroni).
    """
    each = [[pair.by_seed[seed] for seed in seeds] for pair in run]
    means = [round(fmean(values), DECIMALS) for values in each]
    if len(seeds) == 1:
        return min(means) >= limit, min(means) < limit
    tests = [t_test(values, against=limit) for values in each]  # None where the seeds do not differ
    above = all(
        mean >= limit and (test is None or test.p < SIGNIFICANCE)
        for mean, test in zip(means, tests, strict=True)
    )
    below = any(
        mean < limit and test is not None and test.p < SIGNIFICANCE / len(run)
        for mean, test in zip(means, tests, strict=True)
    )
    return above, below


def _figures(claim: Claim, run: Sequence[_Pair], means: Sequence[float], averages: Sequence[float]) -> str:
    """`ahead in 5 of 6 comparisons, by +2.10 points on average (95 % interval ...; least ... against ...)`."""
    average = over_seeds(averages)
    assert average is not None  # of at least one seed, and `_ahead` knows no other numbers
    least, pair = min(zip(means, run, strict=True), key=lambda one: one[0])
    beside = []
    if average.low is not None and average.high is not None:
        beside.append(f"95 % interval {_text(claim, average.low)} to {_text(claim, average.high)}")
    if len(run) > 1:
        beside.append(f"least {_text(claim, least)}, {_names(pair)}")
    if _claimed(claim):
        beside.append(f"claimed at least {_text(claim, _claimed(claim))}{' in each' if claim.each else ''}")
    ahead = f"ahead in {sum(mean > 0 for mean in means)} of {_many(len(run), 'comparison')}"
    aside = f" ({'; '.join(beside)})" if beside else ""
    return f"{ahead}, by {_text(claim, average.mean)} on average{aside}"


def _in_print(claim: Claim, pairs: Iterable[_Pair]) -> str:
    printed = [pair.in_print for pair in pairs if pair.in_print is not None]
    if not printed:
        return ""
    ahead = f"ahead in {sum(one > 0 for one in printed)} of {_many(len(printed), 'comparison')}"
    least = f", least {_text(claim, min(printed))}" if claim.each else ""
    return f"In print: {ahead}, by {_text(claim, fmean(printed))} on average{least}."


def _text(claim: Claim, advantage: float) -> str:
    return f"{exp(advantage):.2f} times" if claim.as_ratio else measure(claim.measure).difference(advantage)


def _names(pair: _Pair) -> str:
    """`beta=IID method=FedHist against method=REFL`."""
    other = {axis: at for axis, at in pair.worse.labels.items() if pair.better.labels.get(axis) != at}
    return f"{pair.better.name} against {' '.join(f'{axis}={at}' for axis, at in other.items())}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
