"""`unstale compensators`: what stale updates can be turned into before a policy sees them."""

from typing import TYPE_CHECKING

from unstale.cli.tables import AsJson, Names, print_parts, print_settings, print_table

if TYPE_CHECKING:
    from unstale.compensators import CompensatorDescription


def compensators(name: Names = None, as_json: AsJson = False) -> None:
    """List the compensators, or show some of them: settings, ranges, defaults and where those come from."""
    from unstale.compensators import describe, names  # imports torch

    print_parts(
        [describe(each) for each in name or names()],
        one=_print_one if name else None,
        all_of_them=_print_all,
        as_json=as_json,
    )


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
