"""The published table with measured numbers, and the same numbers as rows for programs. Pure."""

from collections.abc import Iterator, Sequence
from itertools import product

from unstale.report.content import NONE, Cell, Column, Section, Table
from unstale_papers.comparison import Entry
from unstale_papers.output.report_context import ReportContext, difference, last_line, printed
from unstale_papers.preset import Cell as PresetCell
from unstale_papers.preset import Labels
from unstale_papers.statistics import AUTOCORRELATED
from unstale_papers.table_metrics import Measure, measure

COLUMNS_MAX = 4
"""Columns of a table with numbers in three lines; a wider one is split by the first column axis."""

STACK = "Each cell has, one below another: the number in print; measured, {spread}; measured less printed."
Place = tuple[str, ...]


def section(context: ReportContext) -> Section:
    """The table, or one for each measure."""
    measures = [measure(name) for name in context.preset.measures]
    sentences = [f"{of.heading[0].upper()}{of.heading[1:]} ({of.better} is better). {of.what}" for of in measures]
    if any(of.name.startswith("p against") for of in measures):
        sentences.append(AUTOCORRELATED)
    return Section(name="numbers", title="Published and measured", sentences=sentences, tables=list(_tables(context)))


def _tables(context: ReportContext) -> Iterator[Table]:
    preset = context.preset
    if not preset.columns:
        every = [measure(name) for name in preset.measures]
        yield _table(context, "table", every, {})
        return
    for number, name in enumerate(preset.measures, 1):
        first, *others = preset.columns
        labels = _labels(context, first)
        places = len({_place(cell, preset.columns) for cell in preset.cells})
        if others and places > COLUMNS_MAX:
            for label in labels:
                yield _table(context, f"table-{number}-{label}", [measure(name)], {first: label})
        else:
            yield _table(context, f"table-{number}", [measure(name)], {})


def _table(context: ReportContext, name: str, measures: Sequence[Measure], only: Labels) -> Table:
    """only: labels of its cells. Columns are measures where the preset has no column axes."""
    preset = context.preset
    cells = [cell for cell in preset.cells if only.items() <= cell.labels.items()]
    axes = [axis for axis in preset.columns if axis not in only]
    by_place = {(_place(cell, preset.rows), _place(cell, axes)): cell for cell in cells}
    entries = context.comparison.entries
    shown = [entry for cell in cells for of in measures if (entry := entries[cell.name, of.name]).published is not None]
    printed_measures = {entry.measure.name for entry in shown}
    columns = list(product(dict.fromkeys(_place(cell, axes) for cell in cells), measures))
    rows = [
        (
            ", ".join(row),
            *(
                None
                if (cell := by_place.get((row, at))) is None
                else _stacked(context, entries[cell.name, of.name], of.name in printed_measures)
                for at, of in columns
            ),
        )
        for row in dict.fromkeys(_place(cell, preset.rows) for cell in cells)
    ]
    heads = [of.heading if not axes else _head(preset.method, axes, at) for at, of in columns]
    return Table(
        name=f"{preset.name}-{name}".replace(" ", "-").replace("/", "-"),
        caption=_caption(context, measures, only, has_print=bool(shown)),
        columns=(
            Column(name="cell", head=", ".join(preset.rows)),
            *(Column(name=head, head=head, is_stacked=True) for head in heads),
        ),
        rows=rows,
    )


def _stacked(context: ReportContext, entry: Entry, has_print: bool) -> str:
    """has_print: whether any number of its measure is printed."""
    measured = context.measured(entry)
    return "\n".join((printed(entry) or NONE, measured, difference(entry) or NONE)) if has_print else measured


def _caption(context: ReportContext, measures: Sequence[Measure], only: Labels, *, has_print: bool) -> str:
    what = measures[0].heading if len(measures) == 1 else context.preset.title
    where = "".join(f", {axis} {label}" for axis, label in only.items())
    spread = "mean ± standard deviation over seeds" if len(context.wanted) > 1 else "of one seed"
    how = STACK.format(spread=spread) if has_print else f"The paper prints none of these; measured, {spread}."
    return " ".join(filter(None, (f"{context.preset.item}: {what}{where}.", how, context.size)))


def _head(method: str, axes: Sequence[str], at: Place) -> str:
    return ", ".join(label if axis == method else f"{axis} {label}" for axis, label in zip(axes, at, strict=True))


def _labels(context: ReportContext, axis: str) -> list[str]:
    return list(dict.fromkeys(cell.labels[axis] for cell in context.preset.cells if axis in cell.labels))


def _place(cell: PresetCell, axes: Sequence[str]) -> Place:
    return tuple(cell.labels.get(axis, "") for axis in axes)


# --- for programs ---


def numbers(context: ReportContext) -> Table:
    """A row for each measure of each cell; values in the measure's unit, per cent as a share of 1."""
    preset = context.preset
    axes = (*preset.rows, *preset.columns)
    facts = (
        *(context.scale.rounds, context.scale.clients, context.scale.data, context.own_scale.iterations),
        " ".join(context.replaced),
        _ours(context),
    )
    return Table(
        name=preset.name,
        caption="Numbers",
        columns=tuple(
            Column(name=name, head=name)
            for name in (
                *("preset", "paper", "item", *axes, "measure", "unit", "published", "published_text"),
                *("mean", "std", "low", "high", "difference", "seeds", "seeds_wanted", "missed_target", "diverged"),
                *("shown", "scale_rounds", "scale_clients", "scale_data", "scale_iterations", "data_replaced"),
                "not_published",
            )
        ),
        rows=[
            (
                *(preset.name, preset.paper, preset.item, *_place(cell, axes)),
                *_numbers(context, context.comparison.entries[cell.name, name]),
                *facts,
            )
            for cell in preset.cells
            for name in preset.measures
        ],
    )


def _numbers(context: ReportContext, entry: Entry) -> tuple[Cell, ...]:
    of, spread, published = entry.measure, entry.spread, entry.published
    return (
        *(of.name, "ratio" if of.unit == "%" else of.unit),
        *((published.value, published.text) if published is not None else (None, None)),
        *((spread.mean, spread.std, spread.low, spread.high) if spread is not None else (None,) * 4),
        *(entry.difference, spread.n if spread is not None else 0, len(context.wanted)),
        *(entry.missed - len(entry.diverged), len(entry.diverged)),
        context.measured(entry),
    )


def _ours(context: ReportContext) -> str:
    """`training.steps [P]; model.name [M]`: settings that are not published."""
    return "; ".join(f"{source.key} {source.tag}" for source in context.preset.sources if source.is_ours)


def by_seed(context: ReportContext) -> Table:
    """A row for each measure, cell and seed, with the reason for a missing value."""
    preset = context.preset
    axes = (*preset.rows, *preset.columns)
    return Table(
        name=f"{preset.name}-seeds",
        caption="Numbers by seed",
        columns=tuple(Column(name=name, head=name) for name in (*axes, "measure", "seed", "value", "why_not")),
        rows=[
            (*_place(cell, axes), name, seed, value, why)
            for cell in preset.cells
            for name in preset.measures
            for seed in sorted({*context.wanted, *context.comparison.seeds})
            for value, why in [_of_seed(context, context.comparison.entries[cell.name, name], seed)]
        ],
    )


def _of_seed(context: ReportContext, entry: Entry, seed: int) -> tuple[float | None, str]:
    key = entry.cell.name, seed
    value = entry.values.get(seed)
    if value is not None:
        return value, ""
    if key in context.failures:
        return None, last_line(context.failures[key])
    if key not in context.comparison.records:
        return None, "not run"
    if seed in entry.diverged:
        return None, "diverged"
    if seed in entry.values and entry.measure.counts_rounds:
        return None, "not reached"
    return None, "of all seeds together" if entry.measure.of_all is not None else "no number"
