"""Tables that fit the terminal."""

from collections.abc import Sequence
from textwrap import wrap

FEW, MOST = (205, 222, 240), (8, 48, 107)  # blues that differ in grey, too, and from white


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, lines: bool = True) -> None:
    """Print a table that fits the terminal, with cells wrapped between words.

    If the terminal is too narrow for the longest words, each row is a list of its cells.
    lines: leave an empty line between rows, for cells with sentences.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_lines=lines)
    console = Console()
    widths = _widths([headings, *rows], console.width - 2 - 3 * (len(headings) - 1) - 2)
    if widths is None:
        _print_lists(headings, rows, console.width)
        return
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(heading, width=width, overflow="fold")
    for row in rows:
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
        print("\n".join(wrap(first, width)))
        for heading, cell in zip(headings[1:], others, strict=True):
            name = f"  {heading:<{column - 2}}"
            lines = wrap(cell, width, initial_indent=name, subsequent_indent=" " * column, break_on_hyphens=False)
            print("\n".join(lines or [name.rstrip()]))
        print()
