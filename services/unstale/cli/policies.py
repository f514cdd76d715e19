"""`unstale policies`: the aggregation policies that there are."""

from typing import TYPE_CHECKING

from unstale.cli.tables import AsJson, Names, print_parts, print_settings, print_table

if TYPE_CHECKING:
    from unstale.policies import PolicyDescription


def policies(name: Names = None, as_json: AsJson = False) -> None:
    """List the aggregation policies, or show some of them: settings, ranges, defaults and where those come from."""
    if not (name or as_json):
        _print_all()
        return
    from unstale.policies import describe, names  # imports torch

    print_parts([describe(each) for each in name or names()], one=_print_one, as_json=as_json)


def _print_all() -> None:
    from unstale.policies.catalogue import summaries

    listed = summaries()
    rows = [(name, one.summary, ", ".join(one.loops), one.memory) for name, one in listed.items()]
    print_table(("policy", "what it does", "published for", "memory"), rows)
    print(f"Settings and sources of one: unstale policies {[*listed][-1]}")


def _print_one(description: "PolicyDescription") -> None:
    print(f"{description.name}: {description.summary}")
    print(f"  source   {description.source}")
    print(f"  loops    {', '.join(description.loops)}")
    print(f"  memory   {description.memory}")
    if description.training is not None:
        print(f"  training {description.training}, which its clients need")
    if description.needs_base_models:
        print("  keeps every model that an update may refer to")
    print_settings(description.settings)
