"""`unstale policies`: show the aggregation policies."""

from typing import TYPE_CHECKING

from unstale.cli.parameters import AsJson
from unstale.cli.tables import Names, print_parts, print_settings, print_table

if TYPE_CHECKING:
    from unstale.policies import PolicyDescription


def policies(name: Names = None, as_json: AsJson = False) -> None:
    """List the aggregation policies, or show some of them: settings, ranges, defaults and their sources."""
    if not (name or as_json):
        _print_all()
        return
    from unstale.policies import describe, names  # imports torch

    print_parts([describe(policy) for policy in name or names()], _print_one, as_json=as_json)


def _print_all() -> None:
    from unstale.policies.catalogue import summaries

    policies = summaries()
    rows = [(name, policy.summary, ", ".join(policy.loops), policy.memory) for name, policy in policies.items()]
    print_table(("policy", "description", "published for", "memory"), rows)
    print(f"Settings and sources of a policy: unstale policies {[*policies][-1]}")


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
