"""Published beside measured numbers, and orders of methods. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from unstale_papers.preset import Cell, Labels, Number, Preset
from unstale_papers.record import Record
from unstale_papers.statistics import Agreement, Spread, kendall, over_seeds, ranks
from unstale_papers.table_metrics import Measure, measure

ORDERS = """\
Orders are by the mean over the seeds that all measured methods of the order have, best first, "=" between methods that
are alike; a method that missed a target, or diverged, in a larger share of these seeds comes later; of what print says
no more than that it is above or below, there is no order. Kendall's tau-b compares the two orders: 1 is the same, -1
the reverse, 0 no relation. Its p is exact: how often an order drawn at random would agree, or disagree, as much. It is
left out where there are ties; tau too where fewer than three methods have a number both in print and here. With three
methods even the same order has p = 0.33."""
"""Explanation of an order and its tau, for readers."""

Order = tuple[tuple[str, ...], ...]
"""Methods, best first, tied ones together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One measure of one cell. values: by seed; None where the record lacks the number, the run ended before its
    target, or it or its reference diverged before the number was known. diverged: seeds of the last case. spread: of
    the values that are not None; None without any.
    """

    cell: Cell
    measure: Measure
    published: Number | None
    values: Mapping[int, float | None]
    spread: Spread | None
    diverged: frozenset[int] = frozenset()

    @property
    def difference(self) -> float | None:
        """Measured less published; None where one is missing, the printed number is a bound, or some seeds missed
        their target, so that the mean covers only the others.
        """
        if self.spread is None or self.published is None or self.published.is_bound or self.missed:
            return None
        return self.spread.mean - self.published.value

    @property
    def missed(self) -> int:
        """Number of seeds whose run ended before its target, or diverged."""
        absent = sum(value is None for value in self.values.values())
        return absent if self.measure.counts_rounds else len(self.diverged)

    @property
    def seeds(self) -> frozenset[int]:
        """Seeds whose run has the number, missed its target or diverged."""
        return frozenset(
            seed
            for seed, value in self.values.items()
            if value is not None or self.measure.counts_rounds or seed in self.diverged
        )

    @property
    def text(self) -> str:
        """`57.19 ± 0.42`; `1704 (1 of 3 seeds)`, where the others missed the target or diverged; `not reached`;
        `diverged`; nothing.
        """
        if self.spread is None:
            absent = "not reached" if self.measure.counts_rounds else "diverged"
            return absent if self.missed else ""
        shown = self.measure.text(self.spread.mean)
        if self.spread.std is not None:
            shown += f" ± {self.measure.text(self.spread.std)}"
        return f"{shown} ({self.spread.n} of {len(self.values)} seeds)" if self.missed else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The order of methods in cells that differ only in method. labels: the shared ones. seeds: those that all measured
    methods have, over which they are ordered. agreement: over the methods with a printed and a measured number.
    """

    measure: Measure
    labels: Labels
    seeds: tuple[int, ...]
    published: Order
    measured: Order
    agreement: Agreement | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A preset and its measurements. records: by cell name and seed; those of other cells are ignored."""

    preset: Preset
    records: Mapping[tuple[str, int], Record] = field(repr=False)

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of any cell."""
        names = {cell.name for cell in self.preset.cells}
        return tuple(sorted({seed for name, seed in self.records if name in names}))

    @cached_property
    def entries(self) -> Mapping[tuple[str, str], Entry]:
        """Entries of the preset's table, by cell name and measure."""
        return {
            (cell.name, name): self.entry(cell, measure(name))
            for cell in self.preset.cells
            for name in self.preset.measures
        }

    @cached_property
    def rankings(self) -> tuple[Ranking, ...]:
        """Rankings of every group of cells and table measure with at least two methods."""
        groups: dict[tuple[tuple[str, str], ...], list[Cell]] = {}
        for cell in self.preset.cells:
            if self.preset.method in cell.labels:
                shared = tuple((axis, of) for axis, of in cell.labels.items() if axis != self.preset.method)
                groups.setdefault(shared, []).append(cell)
        found = (
            self._ranking(dict(shared), cells, measure(name))
            for shared, cells in groups.items()
            for name in self.preset.measures
            if measure(name).is_ranked
        )
        return tuple(one for one in found if _methods(one.published) > 1 or _methods(one.measured) > 1)

    def entry(self, cell: Cell, of: Measure, *, seeds: Sequence[int] | None = None) -> Entry:
        """Any measure of a cell, also one outside of the table. seeds: None takes all that it has."""
        taken = self.seeds if seeds is None else seeds
        records = {seed: self.records[cell.name, seed] for seed in taken if (cell.name, seed) in self.records}
        reference = self._reference(cell, of)
        pairs = {
            seed: (record, self.records.get((reference.name, seed)) if reference is not None else None)
            for seed, record in records.items()
        }
        # A number relative to a missing run is unknown and not a missed target.
        known = {seed: pair for seed, pair in pairs.items() if pair[1] is not None or not of.reference}
        values = {seed: of.of(*pair) for seed, pair in known.items()}
        # A target reached before divergence counts, but a final number would be of an incomplete run.
        diverged = frozenset(
            seed
            for seed, (record, against) in known.items()
            if (record.diverged and not (of.counts_rounds and values[seed] is not None))
            or (against is not None and against.diverged)
        )
        values |= dict.fromkeys(diverged)
        if of.of_all is None:
            spread = over_seeds([value for value in values.values() if value is not None])
        else:
            whole = [pair for seed, pair in known.items() if seed not in diverged]
            together = of.of_all(whole)
            spread = None if together is None else Spread(n=len(whole), mean=together, std=None, low=None, high=None)
        return Entry(
            cell=cell,
            measure=of,
            published=cell.published.get(of.name),
            values=values,
            spread=spread,
            diverged=diverged,
        )

    def _reference(self, cell: Cell, of: Measure) -> Cell | None:
        labels = {self.preset.method if axis == "method" else axis: at for axis, at in of.reference.items()}
        return self._by_labels.get(frozenset({**cell.labels, **labels}.items())) if labels else None

    @cached_property
    def _by_labels(self) -> Mapping[frozenset[tuple[str, str]], Cell]:
        return {frozenset(cell.labels.items()): cell for cell in self.preset.cells}

    def _ranking(self, labels: Labels, cells: Sequence[Cell], of: Measure) -> Ranking:
        seeds = self._shared_seeds(cells, of)
        entries = [self.entry(cell, of, seeds=seeds) for cell in cells]
        sign = -1 if of.better == "higher" else 1
        published = {
            self._method(one): (sign * one.published.value,)
            for one in entries
            if one.published is not None and not one.published.is_bound
        }
        measured = {self._method(one): _key(one, sign) for one in entries if one.seeds}
        both = [method for method in published if method in measured]
        return Ranking(
            measure=of,
            labels=labels,
            seeds=seeds,
            published=_order(published),
            measured=_order(measured),
            agreement=kendall(ranks([published[one] for one in both]), ranks([measured[one] for one in both])),
        )

    def _shared_seeds(self, cells: Sequence[Cell], of: Measure) -> tuple[int, ...]:
        """Seeds that every cell with a measured number has: means over different seeds give no order of methods."""
        measured = [found for cell in cells if (found := self.entries[cell.name, of.name].seeds)]
        return tuple(sorted(frozenset[int].intersection(*measured))) if measured else ()

    def _method(self, entry: Entry) -> str:
        return entry.cell.labels[self.preset.method]


def _key(entry: Entry, sign: int) -> tuple[float, ...]:
    """Sort key of a method, least first: the share of its seeds that missed the target, then the mean."""
    missed = entry.missed / len(entry.values) if entry.missed else 0.0
    return missed, sign * entry.spread.mean if entry.spread is not None else 0.0


def _order(keys: Mapping[str, tuple[float, ...]]) -> Order:
    best_first = sorted(keys, key=lambda method: keys[method])
    return tuple(tuple(alike) for _, alike in groupby(best_first, key=lambda method: keys[method]))


def _methods(order: Order) -> int:
    return sum(map(len, order))
