"""Tables of parts that are chosen by name, and of the settings that each takes."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from unstale.part_settings import SettingDescription

Names = Annotated[
    list[str] | None, typer.Argument(help="Show these with their settings.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON list, for programs.")]


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, lines: bool = True) -> None:
    """Print a table as wide as the terminal. lines: between rows, for cells that hold sentences."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*headings, box=box.SIMPLE, show_lines=lines)
    for row in rows:
        # Text, because rich would read [0.5] in a plain string as markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def print_settings(settings: "Sequence[SettingDescription]") -> None:
    """Print what a part can be told."""
    rows = [
        (setting.name, _default(setting), setting.expected, setting.source, setting.description)
        for setting in settings
    ]
    if rows:
        print_table(("setting", "default", "expected", "source", "meaning"), rows)
    else:
        print("  settings none\n")


def _default(setting: "SettingDescription") -> str:
    """`0.6`, or `1.0, reference 0.5` where a profile or synchronous rounds have another one."""
    if setting.required:
        return "required"
    others = {"synchronous": setting.synchronous_default, "reference": setting.reference_default}
    differing = [f"{when} {_spelled(value)}" for when, value in others.items() if value != setting.default]
    return ", ".join((_spelled(setting.default), *differing))


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
