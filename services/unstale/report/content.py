"""Parts of a report: sections of sentences, pictures and tables. Independent of HTML, CSV and files."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from math import isfinite
from typing import TYPE_CHECKING

from unstale.metrics.named import formatted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cell = str | int | float | bool | None
Draw = Callable[["Axes"], None]
NONE = "–"
"""Stands on the page for a missing number."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `name` ends with the unit; cells with a `form` are numbers."""

    name: str  # in CSV files
    head: str  # on the page
    form: str = ""  # format specification of numbers on the page
    _: KW_ONLY
    signs: int | None = None  # characters of a text that the page shows; None for all
    is_stacked: bool = False  # a text of several lines; the page emphasises the second one
    is_page: bool = False  # a text that names another page in the same folder

    @property
    def is_number(self) -> bool:
        return bool(self.form)

    def shown(self, cell: Cell) -> str:
        """Return the text of a cell on the page."""
        if cell is None or (isinstance(cell, float) and not isfinite(cell)):
            return NONE
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        return cell[: self.signs] if isinstance(cell, str) else formatted(cell, self.form)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page and of a CSV file. The first column names the row."""

    name: str  # of the CSV file
    caption: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    _: KW_ONLY
    rows_shown: int | None = None  # first rows that the page shows; None for all, 0 for none

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.name

    @property
    def of_page(self) -> tuple[list[Column], list[list[Cell]]]:
        """Columns and rows that the page shows, without empty columns."""
        rows = self.rows[: self.rows_shown]
        shown = [
            index
            for index, column in enumerate(self.columns)
            if index == 0 or any(column.shown(row[index]) != NONE for row in rows)
        ]
        return [self.columns[index] for index in shown], [[row[index] for index in shown] for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A plot of the page and of a PNG file."""

    name: str  # of the PNG file
    title: str
    caption: str
    alternative: str  # text for readers who do not see the picture
    draw: Draw
    keys: Sequence[str] = ()  # labels of the legend, as artists have them
    bars: int | None = None  # number of horizontal bars, which sets the height; None for the usual height


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the page."""

    name: str  # anchor of links
    title: str
    sentences: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report."""

    title: str
    subtitle: str
    notes: Sequence[str]  # warnings that the page shows first
    sections: Sequence[Section]
    kind: str = "report"
    made_from: str = "from run directories, which it only read"
    all_rows: str = "--csv writes all"  # where the rows are that the page does not show

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    @property
    def pictures(self) -> list[Picture]:
        return [picture for section in self.sections for picture in section.pictures]


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 run`, `1,200 updates`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return `a, b and c`; of more than `most` names the first ones and `and N more`."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many characters, with an ellipsis if it was longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
