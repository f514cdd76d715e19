"""What a report is made of: sections of sentences, pictures and tables. Says nothing of HTML, CSV or files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite

from matplotlib.axes import Axes

Cell = str | int | float | bool | None
NONE = "–"
"""Stands on the page where there is no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """name: in CSV, its unit last. head: on the page. form: of numbers on the page, as `format` takes it. signs: of a
    text that the page has; None for all. is_stacked: a text of several lines, the second of which counts most.
    is_page: a text that is the name of a page beside this one."""

    name: str
    head: str
    form: str = ""
    signs: int | None = None
    is_stacked: bool = False
    is_page: bool = False

    @property
    def is_number(self) -> bool:
        return bool(self.form)

    def shown(self, cell: Cell) -> str:
        """A cell as the page has it."""
        if cell is None or (isinstance(cell, float) and not isfinite(cell)):
            return NONE
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        return cell[: self.signs] if isinstance(cell, str) else format(cell, self.form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """name: of its CSV file. rows_shown: on the page, from the front; None for all, 0 for a table that is for programs
    only. The first column says what a row is of.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    rows_shown: int | None = None

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.name

    @property
    def of_page(self) -> tuple[list[Column], list[list[Cell]]]:
        """Columns and rows that the page has: no column in which no row has anything."""
        rows = self.rows[: self.rows_shown]
        kept = [
            place
            for place, column in enumerate(self.columns)
            if place == 0 or any(column.shown(row[place]) != NONE for row in rows)
        ]
        return [self.columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """name: of its PNG file. caption: what is to be seen, and how it was made. alternative: what it shows, for who does
    not see it. draw: into axes that have its size and look. keys: what the legend says. bars: how many lie one below
    another, which makes it as high as they need; None for the usual height.
    """

    name: str
    title: str
    caption: str
    alternative: str
    draw: Callable[[Axes], None]
    keys: Sequence[str] = ()
    bars: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """name: by which the page links to it."""

    name: str
    title: str
    sentences: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """notes: what a reader should know before anything else. kind, made_from: what the page says that it is, and of
    what it was made. all_rows: where the rows are that the page has not."""

    title: str
    subtitle: str
    notes: Sequence[str]
    sections: Sequence[Section]
    kind: str = "report"
    made_from: str = "from run directories, which it only read"
    all_rows: str = "--csv writes all"

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    @property
    def pictures(self) -> list[Picture]:
        return [picture for section in self.sections for picture in section.pictures]


def count(number: int, noun: str) -> str:
    """`1 run`, `1,200 updates`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """`a, b and c`; of many the first, and how many more."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)
