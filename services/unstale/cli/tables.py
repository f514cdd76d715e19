"""Tables of parts that are chosen by name, and of the settings that each takes."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from unstale.part_settings import SettingDescription

Names = Annotated[
    list[str] | None, typer.Argument(help="Show these with their settings.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON list, for programs.")]


Described = TypeVar("Described", bound="DataclassInstance")


def print_parts(
    descriptions: list[Described],
    *,
    one: Callable[[Described], None] | None,
    all_of_them: Callable[[list[Described]], None],
    as_json: bool,
) -> None:
    """Print what parts there are. one: prints each of those that were asked for; None for all of them together."""
    if as_json:
        print(json.dumps([asdict(description) for description in descriptions], indent=2))
    elif one is None:
        all_of_them(descriptions)
    else:
        for description in descriptions:
            one(description)


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
