"""`unstale compensators`: what stale updates can be turned into before a policy sees them."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from unstale.cli.tables import AsJson, Names, print_settings, print_table

if TYPE_CHECKING:
    from unstale.compensators import CompensatorDescription


def compensators(name: Names = None, as_json: AsJson = False) -> None:
    """List the compensators, or show some of them: settings, ranges, defaults and where those come from."""
    from unstale.compensators import describe, names  # imports torch

    descriptions = [describe(each) for each in name or names()]
    if as_json:
        print(json.dumps([asdict(description) for description in descriptions], indent=2))
    elif name:
        for description in descriptions:
            _print_one(description)
    else:
        _print_all(descriptions)


def _print_all(descriptions: "list[CompensatorDescription]") -> None:
    rows = [
        (
            description.name,
            description.summary,
            "yes" if description.inverts else "no",
            "simulation" if description.only_simulated else "anywhere",
            description.memory,
        )
        for description in descriptions
    ]
    print_table(("compensator", "what it does", "reconstructs data", "runs in", "memory"), rows)
    print(f"Settings and sources of one: unstale compensators {descriptions[-1].name}")


def _print_one(description: "CompensatorDescription") -> None:
    print(f"{description.name}: {description.summary}")
    print(f"  source   {description.source}")
    print(f"  memory   {description.memory}")
    if description.inverts:
        print("  reconstructs representative data of clients from their updates: docs/threat-model.md")
    if description.only_simulated:
        print("  knows what no server knows: in `unstale simulate` only")
    print_settings(description.settings)
