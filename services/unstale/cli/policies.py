"""`unstale policies`: the aggregation policies that there are."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from unstale.policies import PolicyDescription, SettingDescription

Names = Annotated[
    list[str] | None, typer.Argument(help="Show these with their settings.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON list, for programs.")]


def policies(name: Names = None, as_json: AsJson = False) -> None:
    """List the aggregation policies, or show some of them: settings, ranges, defaults and where those come from."""
    from unstale.policies import describe, names  # imports torch

    descriptions = [describe(each) for each in name or names()]
    if as_json:
        print(json.dumps([asdict(description) for description in descriptions], indent=2))
    elif name:
        for description in descriptions:
            _print_one(description)
    else:
        _print_all(descriptions)


def _print_all(descriptions: "list[PolicyDescription]") -> None:
    rows = [
        (description.name, description.summary, ", ".join(description.loops), description.memory)
        for description in descriptions
    ]
    _print_table(("policy", "what it does", "published for", "memory"), rows)
    print(f"Settings and sources of one: unstale policies {descriptions[-1].name}")


def _print_one(description: "PolicyDescription") -> None:
    print(f"{description.name}: {description.summary}")
    print(f"  source   {description.source}")
    print(f"  loops    {', '.join(description.loops)}")
    print(f"  memory   {description.memory}")
    if description.training is not None:
        print(f"  training {description.training}, which its clients need")
    if description.needs_base_models:
        print("  keeps every model that an update may refer to")
    rows = [
        (setting.name, _default(setting), setting.expected, setting.source, setting.description)
        for setting in description.settings
    ]
    if rows:
        _print_table(("setting", "default", "expected", "source", "meaning"), rows)
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


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*headings, box=box.SIMPLE, show_lines=True)
    for row in rows:
        # Text, because rich would read [0.5] in a plain string as markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
