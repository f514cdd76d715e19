"""`unstale policies`: the aggregation policies that there are."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from unstale.policies import PolicyDescription, SettingDescription

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON list, for programs.")]


def policies(as_json: AsJson = False) -> None:
    """List the aggregation policies, their settings and where they come from."""
    from unstale.policies import describe, names  # imports torch

    descriptions = [describe(name) for name in names()]
    if as_json:
        print(json.dumps([asdict(description) for description in descriptions], indent=2))
    else:
        _print_table(descriptions)


def _print_table(descriptions: "list[PolicyDescription]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("policy", "what it does", "settings", "source", box=box.SIMPLE, show_lines=True)
    for description in descriptions:
        settings = "\n".join(_spelled(setting) for setting in description.settings)
        # Text, because rich would read [0.5] in a plain string as markup.
        cells = (description.name, description.summary, settings, description.source)
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)


def _spelled(setting: "SettingDescription") -> str:
    """`alpha = 0.6: a number > 0 and <= 1`"""
    default = "required" if setting.required else f"= {json.dumps(setting.default)}"
    return f"{setting.name} {default}: {setting.expected}"
