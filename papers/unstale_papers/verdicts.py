"""Verdicts on the claims of a paper by the measured numbers. Pure.

Legend: as in `unstale_papers.pairs`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite
from statistics import fmean
from typing import Literal

from unstale_papers.comparison import Comparison
from unstale_papers.pairs import UNKNOWN, Lead, Pair, claimed, known, pairs
from unstale_papers.preset import Claim
from unstale_papers.statistics import DECIMALS, SIGNIFICANCE, Spread, over_seeds, t_test
from unstale_papers.table_metrics import measure

RULE = """\
A claim compares pairs of cells that are alike but for what it is about, seed by seed, over the seeds that all its pairs
have. It holds when every pair is ahead in the mean over seeds, and the average advantage over all pairs is above what
is claimed by more than the seeds' spread (two-sided paired t-test over seeds, p < 0.05). It does not hold when the
average is below what is claimed by more than the spread, or one pair is behind by more than it (p < 0.05 divided by the
number of pairs, because one of many is easily behind by chance); this pair is tested over all seeds that it has, which
may be more than those of all pairs. Otherwise, and where a comparison is missing that could still turn it, it cannot be
told. So an advantage exactly as large as claimed neither confirms nor refutes a claim. With one seed there is no
spread: it holds when every pair is ahead and the average is above what is claimed, does not hold when the average is
below that or below 0, and otherwise cannot be told; another seed may turn it. Where all pairs have one seed in common
and some have more, each pair counts with the mean over its own seeds, and only a pair of several seeds that is behind
by more than their spread refutes the claim. Where more is claimed of every comparison, such as "more than 3 points
above every baseline", no average makes up for one: it holds when each pair's advantage is above what is claimed by more
than the spread (p < 0.05 for each), and does not hold when that of one is below it by more than the spread (p < 0.05
divided by the number of pairs), with one seed when their average is below it. A run that ended before its target counts
as if the round after its last one had reached it, which flatters it: so it may show that a claim holds of which it is
the worse side, and that one does not hold of which it is the better, but never the other way round; the spread is then
that of such bounds. A run that diverged before its target counts as one that ended there. Where both ended before,
where a run that diverged is asked for what it has at its end, and where a number is missing for another reason, nothing
is known, and a claim that this could still turn cannot be told. Where a level is claimed, such as "it alone is above 70
%", each cell is compared with that level, as where more is claimed of every comparison. Ratios are averaged as
geometric means."""
"""The rule of verdicts, for readers."""


Answer = Literal["holds", "does not hold", "cannot be told"]
Bound = Literal["", "at least ", "at most ", "about "]
"""What the mean of leads is to the true one, where some of them are bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Leads of the pairs that a claim compares: differences, or logarithms of ratios; see `lead_text`.

    ahead: number of pairs that are ahead in the mean over seeds. pairs: number of pairs with a number. missing: number
    of those without. lead: average over pairs, by seed, with one seed in common over the seeds of each pair; its
    interval is None with one seed, where some leads are bounds, and where a level is claimed. bound: of the average.
    least: lead of the least pair, and the names of its cells. nearest: where a level is claimed, the measured value of
    that pair; else None.
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
class DecidingPair:
    """A pair that decides a verdict by more seeds than all pairs have. lead: its lead, as in `Figures`. names: of its
    cells.
    """

    lead: Spread
    names: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a claim.

    seeds: that all its comparisons have. deciding: None where all comparisons decide it over `seeds`. is_ahead: whether
    every comparison with a number is ahead in the mean over all of its seeds, and with several seeds the deciding lead,
    or the average, is above the spread. why: a sentence with the deciding figures. is_run: whether both sides of a pair
    were computed, with or without a number. figures: of why, None without a number. printed: the same of the published
    numbers of these pairs, of all pairs without figures; None without any.
    """

    claim: Claim
    answer: Answer
    seeds: tuple[int, ...]
    deciding: DecidingPair | None
    is_ahead: bool
    why: str
    is_run: bool = False
    figures: Figures | None = None
    printed: Printed | None = None

    @property
    def seeds_n(self) -> int:
        """Number of seeds that decide it."""
        return len(self.seeds) if self.deciding is None else self.deciding.lead.n

    @property
    def in_print(self) -> str:
        """A sentence with the figures of the published numbers, empty without any."""
        if self.printed is None:
            return ""
        claim, of = self.claim, self.printed
        ahead = f"ahead in {of.ahead} of {_many(of.pairs, 'comparison')}"
        least = f", least {lead_text(claim, of.least)}" if claim.is_of_each else ""
        by = "" if claim.level is not None else f", by {lead_text(claim, of.lead)} on average"
        return f"In print: {ahead}{by}{least}."


def verdicts(comparison: Comparison) -> tuple[Verdict, ...]:
    """Verdicts on each claim of the preset, by `RULE`."""
    return tuple(_verdict(comparison, claim) for claim in comparison.preset.claims)


def _verdict(comparison: Comparison, claim: Claim) -> Verdict:
    every = pairs(comparison, claim)
    run = [pair for pair in every if pair.says]
    seeds = tuple(sorted(set.intersection(*(set(pair.by_seed) for pair in run)))) if run else ()
    answer: Answer = "cannot be told"
    figures, deciding = None, None
    if not every:
        why = "No cells of this preset are compared by it."
    elif not run:
        why = f"{_many(len(every), 'comparison')}, none with a number on both sides."
    elif not seeds:
        why = f"{_many(len(run), 'comparison')}, and no seed that has all of them."
    elif not any(pair.by_seed[seed].figure is not None for pair in run for seed in seeds):
        why = f"{_many(len(run), 'comparison')}, and nothing to compare in the seeds that have all of them."
    else:
        figures = _figures(claim, run, seeds, missing=len(every) - len(run))
        answer, why, deciding = _answer(claim, run, seeds, figures)
    return Verdict(
        claim=claim,
        answer=answer,
        seeds=seeds,
        deciding=deciding,
        is_ahead=figures is not None and _is_ahead(run, figures.lead if deciding is None else deciding.lead),
        why=why,
        is_run=any(pair.by_seed for pair in every),
        figures=figures,
        printed=_printed_figures(claim, every if figures is None else run),
    )


def _is_ahead(run: Iterable[Pair], decides: Spread) -> bool:
    is_beyond = decides.n == 1 or (decides.low is not None and decides.low > 0)
    return is_beyond and all(fmean(known(pair.by_seed.values())) > 0 for pair in run)


def _answer(
    claim: Claim, run: Sequence[Pair], seeds: tuple[int, ...], figures: Figures
) -> tuple[Answer, str, DecidingPair | None]:
    """The answer by `RULE`, why, and the pair that decides it. run: pairs that all have these seeds."""
    limit, missing = claimed(claim), figures.missing
    leads = _leads(run, seeds)
    every = [*leads, *([[UNKNOWN] * len(seeds)] * missing)]
    # The lower bounds of the leads confirm a claim, the upper bounds refute it.
    lows = [[lead.low for lead in of_pair] for of_pair in every]
    highs = [[lead.high for lead in of_pair] for of_pair in every]
    if claim.is_of_each:
        enough = all(_is_above(of_pair, limit) for of_pair in lows)  # without a correction, as all must pass
    else:
        enough = _is_above(_averages(lows, seeds=len(seeds)), limit)
    several = [pair for pair in _most_seeds_first(run) if len(pair.by_seed) > 1]
    behind = _one_below(several, limit if claim.is_of_each else 0.0, of=len(every))
    refuted = behind is None and _is_refuted(claim, highs, seeds=len(seeds), is_mixed=len(seeds) == 1 and bool(several))
    answer: Answer = "cannot be told"
    if behind is not None or refuted:
        answer = "does not hold"
    elif enough and min(map(fmean, lows)) > 0:
        answer = "holds"
    why = [_figures_text(claim, figures), *_unknown_text(leads, missing=missing)]
    decides = behind
    if answer == "cannot be told" and len(seeds) == 1:
        decides = next((pair for pair in several if not _supports(claim, pair)), None)
    deciding = _deciding(claim, decides, len(seeds))
    if deciding is not None:
        lead = _spread_text(claim, deciding.lead)
        why.append(f"decided by {deciding.lead.n} seeds of {deciding.names}: {lead}")
    elif answer == "cannot be told" and len(why) == 1:  # else a verdict, or reported already
        why.append(_open_text(claim, seeds=len(seeds), enough=enough))
    return answer, f"{_over_text(run, seeds)}: {'; '.join(why)}.", deciding


def _leads(run: Iterable[Pair], seeds: tuple[int, ...]) -> list[list[Lead]]:
    """Leads by pair and seed: of the common seeds, or where that is one of all that the pair has."""
    return [[pair.by_seed[seed] for seed in (seeds if len(seeds) > 1 else pair.by_seed)] for pair in run]


def _is_refuted(claim: Claim, highs: Sequence[Sequence[float]], *, seeds: int, is_mixed: bool) -> bool:
    """Whether the average refutes a claim. highs: upper bounds of the leads. is_mixed: whether pairs have one seed in
    common, and some more.
    """
    limit = claimed(claim)
    if seeds > 1:
        return not claim.is_of_each and _is_below(_averages(highs, seeds=seeds), limit)
    if is_mixed:
        return False
    # Every pair has to be ahead, so those with a number suffice.
    numbers = [of_pair for of_pair in highs if isfinite(fmean(of_pair))]
    if numbers and _is_below(_averages(numbers, seeds=1), limit if claim.is_of_each else 0.0):
        return True
    return not claim.is_of_each and _is_below(_averages(highs, seeds=1), limit)


def _supports(claim: Claim, pair: Pair) -> bool:
    lows = [lead.low for lead in pair.by_seed.values()]
    return _is_above(lows, claimed(claim)) if claim.is_of_each else fmean(lows) > 0


def _over_text(run: Sequence[Pair], seeds: tuple[int, ...]) -> str:
    """`Over 3 seeds`; `Over 1 to 3 seeds of each comparison`; `Of seed 0 alone`."""
    if len(seeds) > 1:
        return f"Over {len(seeds)} seeds"
    counts = sorted({len(pair.by_seed) for pair in run})
    if counts == [1]:
        return f"Of seed {seeds[0]} alone"
    number = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else counts[0]
    return f"Over {number} seeds of each comparison"


def _open_text(claim: Claim, *, seeds: int, enough: bool) -> str:
    """Why numbers of all comparisons give no verdict."""
    if seeds == 1:
        return f"{'the least' if claim.is_of_each else 'what is not ahead'} may be so by chance"
    if claim.is_of_each:
        return "the least is above or below that within the seeds' spread"
    return f"{'what is behind is so' if enough else 'the average is that'} within the seeds' spread"


def _unknown_text(leads: Sequence[Sequence[Lead]], *, missing: int) -> list[str]:
    """What is not known of pairs and runs. leads: by pair and seed, of the pairs that are not missing."""
    every = [lead for of_pair in leads for lead in of_pair]
    bounds, silent = sum(lead.is_bound for lead in every), sum(lead.figure is None for lead in every)
    compared = _many(len(every), "pair")
    texts = []
    if missing:
        texts.append(f"{_many(missing, 'comparison')} of {len(leads) + missing} without a number")
    if bounds:
        texts.append(f"in {bounds} of {compared} of runs one ended before its target")
    if silent:
        texts.append(f"in {silent} of {compared} of runs nothing can be compared")
    return texts


def _deciding(claim: Claim, pair: Pair | None, seeds: int) -> DecidingPair | None:
    """The pair if it has more than this number of seeds."""
    if pair is None or len(pair.by_seed) <= seeds:
        return None
    lead = over_seeds(known(pair.by_seed.values()))
    assert lead is not None  # `known` has no infinite numbers, and a pair without any decides nothing
    if any(one.is_bound for one in pair.by_seed.values()):
        lead = replace(lead, low=None, high=None)
    return DecidingPair(lead=lead, names=_names(claim, pair))


def _most_seeds_first(pairs: Iterable[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: -len(pair.by_seed))


def _averages(leads: Sequence[Sequence[float]], *, seeds: int) -> list[float]:
    """Averages over pairs, for each seed; one with one seed in common, of the pairs' means. leads: by pair and seed."""
    if seeds == 1:
        return [fmean(map(fmean, leads))]
    return [fmean(of_seed) for of_seed in zip(*leads, strict=True)]


def _one_below(pairs: Iterable[Pair], limit: float, *, of: int) -> Pair | None:
    """The first pair below the limit. of: number of pairs, by which each test is corrected (Bonferroni)."""
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


def _figures(claim: Claim, run: Sequence[Pair], seeds: tuple[int, ...], *, missing: int) -> Figures:
    """Figures of what is known in these seeds; a bound counts as its value. missing: number of further pairs."""
    leads = _leads(run, seeds)
    by_pair = [(pair, known(of_pair)) for pair, of_pair in zip(run, leads, strict=True)]
    means = [(fmean(figures), pair) for pair, figures in by_pair if figures]
    if len(seeds) == 1:
        average = over_seeds([fmean(mean for mean, _ in means)])
    else:
        average = over_seeds([fmean(known(of_seed)) for of_seed in zip(*leads, strict=True) if known(of_seed)])
    assert average is not None  # of at least one seed, and `known` has no infinite numbers
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


def _measured(claim: Claim, level: float, pair: Pair, lead: float) -> float:
    """The value with this lead in a pair with the level."""
    is_above = (measure(claim.measure).better == "higher") == (pair.better is not None)
    return level + lead if is_above else level - lead


def _bound(leads: Iterable[Lead]) -> Bound:
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
    beside = _interval(claim, average)
    if figures.pairs > 1 or claim.level is not None:
        beside.append(f"least {lead_text(claim, least)}, {names}")
    if claimed(claim):
        beside.append(f"claimed at least {lead_text(claim, claimed(claim))}{' in each' if claim.each else ''}")
    ahead = f"ahead in {figures.ahead} of {_many(figures.pairs, 'comparison')}"
    aside = f" ({'; '.join(beside)})" if beside else ""
    by = "" if claim.level is not None else f", by {lead_text(claim, average.mean)} on average"
    return f"{ahead}{by}{aside}"


def _printed_figures(claim: Claim, pairs: Iterable[Pair]) -> Printed | None:
    leads = [pair.in_print for pair in pairs if pair.in_print is not None]
    if not leads:
        return None
    # A printed "less than 45 %" is stored as 45, and is not above a level of 45.
    ahead = sum(one > 0 or (one == 0 and claim.level is not None) for one in leads)
    return Printed(ahead=ahead, pairs=len(leads), lead=fmean(leads), least=min(leads))


def _interval(claim: Claim, lead: Spread) -> list[str]:
    """`95 % interval -1.00 points to +1.00 points`, of several seeds without bounds."""
    if lead.low is None or lead.high is None:
        return []
    return [f"95 % interval {lead_text(claim, lead.low)} to {lead_text(claim, lead.high)}"]


def _spread_text(claim: Claim, lead: Spread) -> str:
    """`+2.10 points (95 % interval ...)`."""
    return " ".join([lead_text(claim, lead.mean), *(f"({interval})" for interval in _interval(claim, lead))])


def lead_text(claim: Claim, lead: float) -> str:
    """`+2.10 points`; `1.44 times` of a claimed ratio, whose lead is a logarithm, `0.995 times` near 1, `152,000 times`
    from 1,000.
    """
    if not claim.as_ratio:
        return measure(claim.measure).difference(lead)
    factor = float(f"{exp(lead):.3g}")
    if factor >= 1000:
        return f"{factor:,.0f} times"
    return f"{exp(lead):.{3 if 0 < abs(lead) < 0.01 else 2}f} times"


def _names(claim: Claim, pair: Pair) -> str:
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
