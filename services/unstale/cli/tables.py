"""Tables of parts, such as policies, and of their settings."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from unstale.part_settings import SettingDescription

Names = Annotated[list[str] | None, typer.Argument(help="Show these with their settings.")]

FEW, MOST = (205, 222, 240), (8, 48, 107)  # blues that differ in grey, too, and from white

Described = TypeVar("Described", bound="DataclassInstance")


def print_parts(descriptions: list[Described], print_one: Callable[[Described], None], *, as_json: bool) -> None:
    """Print parts one by one, or as a JSON list."""
    if as_json:
        print(json.dumps([asdict(description) for description in descriptions], indent=2))
    else:
        for description in descriptions:
            print_one(description)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, lines: bool = True) -> None:
    """Print a table that fits the terminal, with cells wrapped between words.

    If the terminal is too narrow for the longest words, each row is a list of its cells.
    lines: leave an empty line between rows, for cells with sentences.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_lines=lines)
    table_rows = [tuple(row) for row in rows]
    console = Console()
    widths = _widths([tuple(headings), *table_rows], console.width - 2 - 3 * (len(headings) - 1) - 2)
    if widths is None:
        _print_lists(headings, table_rows, console.width)
        return
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(heading, width=width, overflow="fold")
    for row in table_rows:
        # Text, because rich would read [0.5] in a plain string as markup.
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Return the width of each column, so that all fit and no word is cut; None if this is impossible.

    Only the widest columns become narrower than their cells, all to the same width unless a word is longer.
    """
    columns = list(zip(*rows, strict=True))
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    cells = [max(len(cell) for cell in column) for column in columns]
    for most in range(max(cells), 0, -1):
        widths = [max(word, min(cell, most)) for word, cell in zip(words, cells, strict=True)]
        if sum(widths) <= room:
            return widths
    return None


def _print_lists(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    """Print each row as its first cell, and below it the other cells after their headings."""
    column = 2 + max(len(heading) for heading in headings[1:]) + 2
    print()
    for first, *others in rows:
        for line in wrap(first, width) or [""]:
            print(line)
        for heading, cell in zip(headings[1:], others, strict=True):
            text = wrap(cell, width - column, break_on_hyphens=False) or [""]
            print(f"  {heading:<{column - 2}}{text[0]}".rstrip())
            for line in text[1:]:
                print(" " * column + line)
        print()


def print_settings(settings: "Sequence[SettingDescription]") -> None:
    """Print the settings of a part."""
    rows = [
        (setting.name, _default(setting), setting.expected, setting.source, setting.description) for setting in settings
    ]
    if rows:
        print_table(("setting", "default", "expected", "source", "meaning"), rows)
    else:
        print("  settings none\n")


def _default(setting: "SettingDescription") -> str:
    """Return `0.6`, or `1.0, reference 0.5` if a profile or synchronous rounds have another default."""
    if setting.required:
        return "required"
    others = {"synchronous": setting.synchronous_default, "reference": setting.reference_default}
    differing = [f"{when} {_spelled(value)}" for when, value in others.items() if value != setting.default]
    return ", ".join((_spelled(setting.default), *differing))


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
