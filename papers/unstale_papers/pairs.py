"""The cells that a claim compares, in pairs, and the lead of one over the other by seed. Pure.

Legend: ahead, better and worse are in the sense of the claim's measure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite, log

from unstale_papers.comparison import Comparison
from unstale_papers.preset import Cell, Claim, Preset
from unstale_papers.statistics import DECIMALS
from unstale_papers.table_metrics import measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
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


UNKNOWN = Lead(low=-inf, high=inf)

_Range = tuple[float, float]
"""Bounds of a number: equal where it is known, infinite where a bound is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two cells that a claim compares; None is its level. by_seed: lead of `better`, for common seeds. in_print: the
    lead in the published numbers.
    """

    better: Cell | None
    worse: Cell | None
    by_seed: Mapping[int, Lead]
    in_print: float | None

    @property
    def says(self) -> bool:
        """Whether the lead of any seed has a known bound."""
        return bool(known(self.by_seed.values()))


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


def pairs(comparison: Comparison, claim: Claim) -> list[Pair]:
    """The pairs that a claim compares, with the leads of what is measured."""
    return [_pair(comparison, claim, *cells) for cells in compared(comparison.preset, claim)]


def known(leads: Iterable[Lead]) -> list[float]:
    """The leads with a known bound; a bound counts as its value."""
    return [lead.figure for lead in leads if lead.figure is not None]


def claimed(claim: Claim) -> float:
    """The claimed lead, in the terms of `Lead`."""
    if not claim.as_ratio:
        return claim.at_least
    return round(log(claim.at_least), DECIMALS) if claim.at_least > 0 else 0.0


def _pair(comparison: Comparison, claim: Claim, better: Cell | None, worse: Cell | None) -> Pair:
    ours, theirs = (_side(comparison, claim, cell) for cell in (better, worse))
    in_print = _lead(claim, _printed(claim, better), _printed(claim, worse))
    return Pair(
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


def _lead(claim: Claim, us: _Range, them: _Range) -> Lead:
    """The lead of the first over the second."""
    (our_low, our_high), (their_low, their_high) = (_in_terms(claim, side) for side in (us, them))
    low, high = our_low - their_high, our_high - their_low
    if measure(claim.measure).better == "lower":
        low, high = -high, -low
    return Lead(low=round(low, DECIMALS), high=round(high, DECIMALS))


def _in_terms(claim: Claim, side: _Range) -> _Range:
    """Logarithms of the bounds for a claimed ratio; unknown for bounds not above 0."""
    if not claim.as_ratio:
        return side
    low, high = side
    return (log(low), log(high)) if low > 0 else (-inf, inf)
