"""Verdicts on the claims of a paper by the measured numbers. Pure.

Legend: a pair is two cells that a claim compares. Ahead: better, in the sense of the claim's measure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log
from statistics import fmean
from typing import Literal

from unstale_papers.comparison import Comparison
from unstale_papers.preset import Cell, Claim, Preset
from unstale_papers.statistics import DECIMALS, SIGNIFICANCE, Spread, over_seeds, t_test
from unstale_papers.table_metrics import measure

RULE = """\
A claim compares pairs of cells that are alike but for what it is about, seed by seed, over the seeds that all its
pairs have. It holds when every pair is ahead in the mean over seeds, and the average advantage over all pairs is above
what is claimed by more than the seeds' spread (two-sided paired t-test over seeds, p < 0.05). It does not hold when the
average is below what is claimed by more than the spread, or one pair is behind by more than it (p < 0.05 divided by the
number of pairs, because one of many is easily behind by chance); this pair is tested over all seeds that it has, which
may be more than those of all pairs. Otherwise, and where a comparison is missing that could still turn it, it cannot be
told. With one seed there is no spread: it holds when every pair is ahead and the average is above what is claimed, does
not hold when one is behind or the average is below, and another seed may turn it. Where more is claimed of every
comparison, such as "more than 3 points above every baseline", no average makes up for one: it holds when each pair's
advantage is above what is claimed by more than the spread (p < 0.05 for each), and does not hold when that of one is
below it by more than the spread (p < 0.05 divided by the number of pairs). A run that ended before its target counts as
if the round after its last one had reached it, which flatters it: so it may show that a claim holds of which it is the
worse side, and that one does not hold of which it is the better, but never the other way round; the spread is then that
of such bounds. A run that diverged before its target counts as one that ended there. Where both ended before, where a
run that diverged is asked for what it has at its end, and where a number is missing for another reason, nothing is
known, and a claim that this could still turn cannot be told. Where a level is claimed, such as "it alone is above 70
%", each cell is compared with that level, and no average makes up for one. Ratios are averaged as geometric means."""
"""The rule of verdicts, for readers."""


Answer = Literal["holds", "does not hold", "cannot be told"]
Bound = Literal["", "at least ", "at most ", "about "]
"""What the mean of leads is to the true one, where some of them are bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Leads of the pairs that a claim compares: differences, or logarithms of ratios; see `lead_text`.

    ahead: number of pairs that are ahead in the mean over seeds. pairs: number of pairs with a number. missing: number
    of those without. lead: average over pairs, by seed; its interval is None with one seed, where some leads are
    bounds, and where a level is claimed. bound: of the average. least: lead of the least pair, and the names of its
    cells. nearest: where a level is claimed, the measured value of that pair; else None.
    """

    ahead: int
    pairs: int
    missing: int
    lead: Spread
    bound: Bound
    least: tuple[float, str]
    nearest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Leads of the published numbers, as in `Figures`."""

    ahead: int
    pairs: int
    lead: float
    least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a claim.

    seeds: that all its comparisons have. deciding: number of seeds of the comparison that decides it, which may have
    more. is_ahead: whether every comparison with a number is ahead in the mean over all of its seeds. why: a sentence
    with the deciding figures. is_run: whether both sides of a pair were computed, with or without a number. figures: of
    why, None without a number. printed: the same of the published numbers of these pairs, of all pairs without figures;
    None without any.
    """

    claim: Claim
    answer: Answer
    seeds: tuple[int, ...]
    deciding: int
    is_ahead: bool
    why: str
    is_run: bool = False
    figures: Figures | None = None
    printed: Printed | None = None

    @property
    def in_print(self) -> str:
        """A sentence with the figures of the published numbers, empty without any."""
        if self.printed is None:
            return ""
        claim, of = self.claim, self.printed
        ahead = f"ahead in {of.ahead} of {_many(of.pairs, 'comparison')}"
        least = f", least {lead_text(claim, of.least)}" if claim.each or claim.level is not None else ""
        by = "" if claim.level is not None else f", by {lead_text(claim, of.lead)} on average"
        return f"In print: {ahead}{by}{least}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lead:
    """The lead of one run over another: a difference, or a logarithm of a ratio. low, high: its bounds; equal where it
    is known, infinite where a bound is unknown.
    """

    low: float
    high: float

    @property
    def figure(self) -> float | None:
        """The lead, or its known bound; None without one."""
        return next((end for end in (self.low, self.high) if isfinite(end)), None)

    @property
    def is_bound(self) -> bool:
        return self.low != self.high and self.figure is not None


_UNKNOWN = _Lead(low=-inf, high=inf)

_Range = tuple[float, float]
"""Bounds of a number: equal where it is known, infinite where a bound is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two cells that a claim compares; None is its level. by_seed: lead of `better`, for common seeds. in_print: the
    lead in the published numbers.
    """

    better: Cell | None
    worse: Cell | None
    by_seed: Mapping[int, _Lead]
    in_print: float | None

    @property
    def says(self) -> bool:
        """Whether the lead of any seed has a known bound."""
        return any(lead.figure is not None for lead in self.by_seed.values())


def verdicts(comparison: Comparison) -> tuple[Verdict, ...]:
    """Verdicts on each claim of the preset, by `RULE`."""
    return tuple(_verdict(comparison, claim) for claim in comparison.preset.claims)


def _verdict(comparison: Comparison, claim: Claim) -> Verdict:
    pairs = [_compared(comparison, claim, *cells) for cells in compared(comparison.preset, claim)]
    run = [pair for pair in pairs if pair.says]
    seeds = tuple(sorted(set.intersection(*(set(pair.by_seed) for pair in run)))) if run else ()
    answer: Answer = "cannot be told"
    figures, deciding = None, len(seeds)
    if not pairs:
        why = "No cells of this preset are compared by it."
    elif not run:
        why = f"{_many(len(pairs), 'comparison')}, none with a number on both sides."
    elif not seeds:
        why = f"{_many(len(run), 'comparison')}, and no seed that has all of them."
    elif not any(pair.by_seed[seed].figure is not None for pair in run for seed in seeds):
        why = f"{_many(len(run), 'comparison')}, and nothing to compare in the seeds that have all of them."
    else:
        figures = _figures(claim, run, seeds, missing=len(pairs) - len(run))
        answer, why, deciding = _answer(claim, run, seeds, figures)
    return Verdict(
        claim=claim,
        answer=answer,
        seeds=seeds,
        deciding=deciding,
        is_ahead=bool(run) and all(fmean(_known(pair.by_seed.values())) > 0 for pair in run),
        why=why,
        is_run=any(pair.by_seed for pair in pairs),
        figures=figures,
        printed=_printed_figures(claim, pairs if figures is None else run),
    )


def compared(preset: Preset, claim: Claim) -> list[tuple[Cell | None, Cell | None]]:
    """The pairs of cells that a claim compares, the better one first; None is the claim's level.

    A cell with all labels of `better` is compared with each that has those of `worse` and is equal in all axes except
    those that `worse` names and, if `better` names it, the preset's method. With `worse` empty and no method in
    `better` they may differ in the axes of `better`. Cells with the labels of `without` are excluded.
    """
    varied = {*claim.worse, *({preset.method} & set(claim.better))} or set(claim.better)

    def rest(cell: Cell) -> frozenset[tuple[str, str]]:
        return frozenset((axis, at) for axis, at in cell.labels.items() if axis not in varied)

    cells = [cell for cell in preset.cells if not (claim.without and claim.without.items() <= cell.labels.items())]
    by_level = claim.level is not None
    better = [cell for cell in cells if claim.better.items() <= cell.labels.items() and (claim.better or not by_level)]
    chosen = {cell.name for cell in better}
    worse = [cell for cell in cells if cell.name not in chosen and claim.worse.items() <= cell.labels.items()]
    if by_level:
        above: list[tuple[Cell | None, Cell | None]] = [(cell, None) for cell in better]
        return [*above, *((None, cell) for cell in worse if claim.worse)]
    return [(one, other) for one in better for other in worse if rest(one) == rest(other)]


def _compared(comparison: Comparison, claim: Claim, better: Cell | None, worse: Cell | None) -> _Pair:
    ours, theirs = (_side(comparison, claim, cell) for cell in (better, worse))
    in_print = _lead(claim, _printed(claim, better), _printed(claim, worse))
    return _Pair(
        better=better,
        worse=worse,
        by_seed={seed: _lead(claim, ours[seed], theirs[seed]) for seed in ours.keys() & theirs.keys()},
        in_print=in_print.figure,
    )


def _side(comparison: Comparison, claim: Claim, cell: Cell | None) -> dict[int, _Range]:
    """Bounds of a measure of a cell, by seed; None is the claim's level."""
    if cell is None:
        assert claim.level is not None
        return dict.fromkeys(comparison.seeds, (claim.level, claim.level))
    entry = comparison.entry(cell, measure(claim.measure))
    found = {}
    for seed, value in entry.values.items():
        versions = comparison.records[cell.name, seed].version_E
        if value is not None:
            found[seed] = (value, value)
        elif entry.measure.counts_rounds and versions and (seed not in entry.diverged or not entry.measure.reference):
            found[seed] = (versions[-1] + 1.0, inf)
        else:
            found[seed] = (-inf, inf)
    return found


def _printed(claim: Claim, cell: Cell | None) -> _Range:
    value = claim.level
    if cell is not None:
        number = cell.published.get(claim.measure)
        value = None if number is None else number.value
    return (-inf, inf) if value is None else (value, value)


def _lead(claim: Claim, us: _Range, them: _Range) -> _Lead:
    """The lead of the first over the second."""
    (our_low, our_high), (their_low, their_high) = (_in_terms(claim, side) for side in (us, them))
    low, high = our_low - their_high, our_high - their_low
    if measure(claim.measure).better == "lower":
        low, high = -high, -low
    return _Lead(low=round(low, DECIMALS), high=round(high, DECIMALS))


def _in_terms(claim: Claim, side: _Range) -> _Range:
    """Logarithms of the bounds for a claimed ratio; unknown for bounds not above 0."""
    if not claim.as_ratio:
        return side
    low, high = side
    return (log(low), log(high)) if low > 0 else (-inf, inf)


def claimed(claim: Claim) -> float:
    """The claimed lead, in the terms of `Figures`."""
    if not claim.as_ratio:
        return claim.at_least
    return round(log(claim.at_least), DECIMALS) if claim.at_least > 0 else 0.0


def _answer(claim: Claim, run: Sequence[_Pair], seeds: tuple[int, ...], figures: Figures) -> tuple[Answer, str, int]:
    """The answer by `RULE`, why, and how many seeds decide it. run: pairs that all have these seeds."""
    limit, missing = claimed(claim), figures.missing
    leads = [[pair.by_seed[seed] for seed in seeds] for pair in run]
    every = [*leads, *([[_UNKNOWN] * len(seeds)] * missing)]
    # The lower bounds of the leads confirm a claim, the upper bounds refute it.
    lows = [[lead.low for lead in of_pair] for of_pair in every]
    highs = [[lead.high for lead in of_pair] for of_pair in every]
    if claim.each or claim.level is not None:
        enough = all(_is_above(of_pair, limit) for of_pair in lows)  # without a correction, as all must pass
        refuted, behind = False, _one_below(run, limit, of=len(every))
    else:
        enough = _is_above(_by_seed(lows), limit)
        refuted, behind = _is_below(_by_seed(highs), limit), _one_below(run, 0.0, of=len(every))
    why = [_figures_text(claim, figures)]
    bounds, silent = (
        sum(is_so(lead) for of_pair in leads for lead in of_pair)
        for is_so in (lambda lead: lead.is_bound, lambda lead: lead.figure is None)
    )
    compared = len(run) * len(seeds)
    answer: Answer = "cannot be told"
    if missing:
        why.append(f"{_many(missing, 'comparison')} of {len(run) + missing} without a number")
    if bounds:
        why.append(f"in {bounds} of {_many(compared, 'pair')} of runs one ended before its target")
    if silent:
        why.append(f"in {silent} of {_many(compared, 'pair')} of runs nothing can be compared")
    if behind is not None and len(behind.by_seed) > len(seeds):
        mean = fmean(_known(behind.by_seed.values()))
        why.append(f"over its {len(behind.by_seed)} seeds by {lead_text(claim, mean)}, {_names(claim, behind)}")
    if refuted or behind is not None:
        answer = "does not hold"
    elif enough and min(map(fmean, lows)) > 0:
        answer = "holds"
    elif missing or bounds or silent or len(seeds) == 1:
        pass  # reported already, or an equal pair
    elif claim.each or claim.level is not None:
        why.append("the least is above or below that within the seeds' spread")
    else:
        why.append(f"{'what is behind is so' if enough else 'the average is that'} within the seeds' spread")
    over = f"Of seed {seeds[0]} alone" if len(seeds) == 1 else f"Over {len(seeds)} seeds"
    deciding = len(seeds) if behind is None or refuted else len(behind.by_seed)
    return answer, f"{over}: {'; '.join(why)}.", deciding


def _by_seed(leads: Sequence[Sequence[float]]) -> list[float]:
    """Average over pairs, for each seed."""
    return [fmean(of_seed) for of_seed in zip(*leads, strict=True)]


def _one_below(pairs: Iterable[_Pair], limit: float, *, of: int) -> _Pair | None:
    """The first pair below the limit over its seeds. of: number of pairs, by which each test is corrected
    (Bonferroni).
    """
    highs = ((pair, [lead.high for lead in pair.by_seed.values()]) for pair in pairs)
    return next((pair for pair, of_pair in highs if _is_below(of_pair, limit, tests=of)), None)


def _is_above(leads: Sequence[float], limit: float) -> bool:
    """Whether the mean over seeds is at least `limit`, and with several seeds by more than their spread."""
    mean = round(fmean(leads), DECIMALS)
    test = t_test(leads, against=limit)  # None with one seed, and where all are `limit`
    return mean >= limit and (test is None or test.p < SIGNIFICANCE)


def _is_below(leads: Sequence[float], limit: float, *, tests: int = 1) -> bool:
    mean = round(fmean(leads), DECIMALS)
    if len(leads) == 1:
        return mean < limit
    test = t_test(leads, against=limit)
    return mean < limit and test is not None and test.p < SIGNIFICANCE / tests


def _figures(claim: Claim, run: Sequence[_Pair], seeds: tuple[int, ...], *, missing: int) -> Figures:
    """Figures of what is known in these seeds; a bound counts as its value. missing: number of further pairs."""
    leads = [[pair.by_seed[seed] for seed in seeds] for pair in run]
    known = [(pair, _known(of_pair)) for pair, of_pair in zip(run, leads, strict=True)]
    means = [(fmean(figures), pair) for pair, figures in known if figures]
    average = over_seeds([fmean(_known(of_seed)) for of_seed in zip(*leads, strict=True) if _known(of_seed)])
    assert average is not None  # of at least one seed, and `_known` has no infinite numbers
    bound = _bound([lead for of_pair in leads for lead in of_pair])
    if bound or claim.level is not None:
        average = replace(average, low=None, high=None)
    least, pair = min(means, key=lambda one: one[0])
    return Figures(
        ahead=sum(mean > 0 for mean, _ in means),
        pairs=len(run),
        missing=missing,
        lead=average,
        bound=bound,
        least=(least, _names(claim, pair)),
        nearest=None if claim.level is None else _measured(claim, claim.level, pair, least),
    )


def _measured(claim: Claim, level: float, pair: _Pair, lead: float) -> float:
    """The value with this lead in a pair with the level."""
    is_above = (measure(claim.measure).better == "higher") == (pair.better is not None)
    return level + lead if is_above else level - lead


def _bound(leads: Iterable[_Lead]) -> Bound:
    """What the mean of `figure` is to the mean of the true leads."""
    bounds = [lead for lead in leads if lead.is_bound]
    if not bounds:
        return ""
    if all(isfinite(lead.low) for lead in bounds):
        return "at least "
    return "about " if any(isfinite(lead.low) for lead in bounds) else "at most "


def _figures_text(claim: Claim, figures: Figures) -> str:
    """`ahead in 5 of 6 comparisons, by +2.10 points on average (95 % interval ...; least ... against ...)`. No average
    where a level is claimed.
    """
    average, (least, names) = figures.lead, figures.least
    beside = []
    if average.low is not None and average.high is not None:
        beside.append(f"95 % interval {lead_text(claim, average.low)} to {lead_text(claim, average.high)}")
    if figures.pairs > 1 or claim.level is not None:
        beside.append(f"least {lead_text(claim, least)}, {names}")
    if claimed(claim):
        beside.append(f"claimed at least {lead_text(claim, claimed(claim))}{' in each' if claim.each else ''}")
    ahead = f"ahead in {figures.ahead} of {_many(figures.pairs, 'comparison')}"
    aside = f" ({'; '.join(beside)})" if beside else ""
    by = "" if claim.level is not None else f", by {lead_text(claim, average.mean)} on average"
    return f"{ahead}{by}{aside}"


def _known(leads: Iterable[_Lead]) -> list[float]:
    return [lead.figure for lead in leads if lead.figure is not None]


def _printed_figures(claim: Claim, pairs: Iterable[_Pair]) -> Printed | None:
    leads = [pair.in_print for pair in pairs if pair.in_print is not None]
    if not leads:
        return None
    # A printed "less than 45 %" is stored as 45, and is not above a level of 45.
    ahead = sum(one > 0 or (one == 0 and claim.level is not None) for one in leads)
    return Printed(ahead=ahead, pairs=len(leads), lead=fmean(leads), least=min(leads))


def lead_text(claim: Claim, lead: float) -> str:
    """`+2.10 points`; `1.44 times` of a claimed ratio, whose lead is a logarithm, `0.995 times` near 1."""
    if not claim.as_ratio:
        return measure(claim.measure).difference(lead)
    return f"{exp(lead):.{3 if 0 < abs(lead) < 0.01 else 2}f} times"


def _names(claim: Claim, pair: _Pair) -> str:
    """`beta=IID method=FedHist against method=REFL`."""
    if pair.better is None or pair.worse is None:
        level = f"a level of {_value(claim)}"
        return " against ".join(level if cell is None else cell.name for cell in (pair.better, pair.worse))
    other = {axis: at for axis, at in pair.worse.labels.items() if pair.better.labels.get(axis) != at}
    return f"{pair.better.name} against {' '.join(f'{axis}={at}' for axis, at in other.items())}"


def _value(claim: Claim) -> str:
    of = measure(claim.measure)
    assert claim.level is not None
    return f"{of.text(claim.level)} {of.unit}".strip()


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
