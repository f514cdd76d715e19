"""`unstale compensators`: show the compensators of stale updates."""

from typing import TYPE_CHECKING

from unstale.cli.parameters import AsJson
from unstale.cli.tables import Names, print_parts, print_settings, print_table

if TYPE_CHECKING:
    from unstale.compensators import CompensatorDescription


def compensators(name: Names = None, as_json: AsJson = False) -> None:
    """List the compensators, or show some of them: settings, ranges, defaults and their sources."""
    from unstale.compensators import describe, names  # imports torch

    descriptions = [describe(compensator) for compensator in name or names()]
    if name or as_json:
        print_parts(descriptions, _print_one, as_json=as_json)
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
    print_table(("compensator", "description", "reconstructs data", "runs in", "memory"), rows)
    print(f"Settings and sources of a compensator: unstale compensators {descriptions[-1].name}")


def _print_one(description: "CompensatorDescription") -> None:
    print(f"{description.name}: {description.summary}")
    print(f"  source   {description.source}")
    print(f"  memory   {description.memory}")
    if description.inverts:
        print("  reconstructs representative data of clients from their updates: docs/threat-model.md")
    if description.only_simulated:
        print("  uses updates that no server has: in `unstale simulate` only")
    print_settings(description.settings)
