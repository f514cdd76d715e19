"""A document as Markdown (GitHub's), with its figures as PNG files beside it."""

import re
from collections.abc import Iterator

from unstale.report.content import Cell, Column, Section, Table
from unstale.version import __version__
from unstale_papers.output.document import Document

LINES = " / "
"""Separator of lines that are stacked on the page."""

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~])")


def text(document: Document) -> str:
    """The document as Markdown; deterministic."""
    return "\n".join(_lines(document)).rstrip() + "\n"


def escaped(plain: str) -> str:
    """Escape the text for one line of Markdown."""
    return _SPECIAL.sub(r"\\\1", " ".join(plain.split()))


def _lines(document: Document) -> Iterator[str]:
    report = document.report
    yield from (f"# {escaped(report.title)}", "", escaped(report.subtitle), "")
    yield from (f"- {escaped(note)}" for note in report.notes)
    yield ""
    for section in report.sections:
        yield from (f"## {escaped(section.title)}", "")
        for sentence in section.sentences:
            yield from (escaped(sentence), "")
        if section.name == "figures":
            for figure in document.figures:
                yield from (f"![{escaped(figure.alternative)}]({figure.name}.png)", "")
                yield from (f"**{escaped(figure.title)}.** {escaped(figure.caption)}", "")
        yield from _tables(section)
    yield f"Made by unstale {__version__} {report.made_from}."


def _tables(section: Section) -> Iterator[str]:
    for table in section.tables:
        columns, rows = table.of_page
        if rows:
            yield from (f"**{escaped(_caption(table, columns))}**", "")
            yield table_row([column.head for column in columns])
            yield table_row(
                ["---:" if column.is_number or column.is_stacked else "---" for column in columns], is_rule=True
            )
            yield from (
                table_row([_shown(*pair) for pair in zip(columns, row, strict=True)], is_done=True) for row in rows
            )
            yield ""


def _caption(table: Table, columns: list[Column]) -> str:
    is_stacked = any(column.is_stacked for column in columns)
    return table.caption.replace("one below another", f"with {LINES.strip()} between") if is_stacked else table.caption


def table_row(cells: list[str], *, is_rule: bool = False, is_done: bool = False) -> str:
    """A line of a table. is_rule: the line below the heads. is_done: the cells are Markdown already."""
    return f"| {' | '.join(cells if is_rule or is_done else map(escaped, cells))} |"


def _shown(column: Column, cell: Cell) -> str:
    shown = column.shown(cell)
    if column.is_page:
        return f"[{escaped(shown)}]({shown}.md)"
    return LINES.join(escaped(line) for line in shown.split("\n")) if column.is_stacked else escaped(shown)
