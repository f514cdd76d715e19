"""`unstale policies`, `unstale compensators` and `unstale conformance`: show and check the methods of a run."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unstale.cli.parameters import AsJson
from unstale.cli.tables import print_table
from unstale.errors import UserError

if TYPE_CHECKING:
    from unstale.compensators import CompensatorDescription
    from unstale.part_settings import SettingDescription
    from unstale.policies import PolicyDescription

Names = Annotated[list[str] | None, typer.Argument(help="Show these with their settings.")]
Policies = Annotated[list[str] | None, typer.Argument(metavar="[POLICY]...", help="Policies to check; by default all.")]
Command = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="Examine the client that this command starts, instead of policies. {address}, {client_id}, {folder}, "
        "{key} and {train_s} in it are replaced.",
    ),
]
Level = Annotated[
    list[str] | None,
    typer.Option(help="With --client: minimum, chunks, encodings, outbox or keys; repeatable, by default all."),
]
Device = Annotated[str, typer.Option("--device", help="Device of updates: cpu, cuda, cuda:NUMBER or mps.")]


def policies(name: Names = None, as_json: AsJson = False) -> None:
    """List the aggregation policies, or show some of them: settings, ranges, defaults and their sources."""
    from unstale.policies.catalogue import summaries

    if not (name or as_json):
        rows = [(name, policy.summary, ", ".join(policy.loops), policy.memory) for name, policy in summaries().items()]
        print_table(("policy", "description", "published for", "memory"), rows)
        print(f"Settings and sources of a policy: unstale policies {rows[-1][0]}")
        return
    from unstale.policies import describe, names  # imports torch

    _print_parts([describe(policy) for policy in name or names()], _policy_facts, as_json=as_json)


def compensators(name: Names = None, as_json: AsJson = False) -> None:
    """List the compensators, or show some of them: settings, ranges, defaults and their sources."""
    from unstale.compensators import describe, names  # imports torch

    descriptions = [describe(compensator) for compensator in name or names()]
    if name or as_json:
        _print_parts(descriptions, _compensator_facts, as_json=as_json)
        return
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


def conformance(
    policies: Policies = None,
    client: Command = None,
    level: Level = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Check aggregation policies, plug-ins included, or a client in any language. The exit code is 1 if one fails."""
    if client is not None:
        if policies:
            raise UserError(f"POLICY is {policies[0]!r} together with --client, expected one of them; leave one out")
        _examine_client(client, level or [], as_json=as_json)
        return
    if level:
        raise UserError(f"--level is {level[0]!r} without --client, expected both; add --client COMMAND")
    import torch

    from unstale.conformance import Row, examine
    from unstale.learner.device import choose, set_precision

    torch.set_num_threads(1)  # as in a run by default; the bits depend on it
    chosen = choose(device)
    set_precision(chosen, "strict")
    rows = list(examine(tuple(policies or ()), chosen))
    failed = sum(row.verdict != "pass" for row in rows)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print_table([field.name for field in fields(Row)], [astuple(row) for row in rows], lines=False)
        number = len({row.policy for row in rows})
        noun = "policy" if number == 1 else "policies"
        print(f"{number} {noun}, {len(rows)} cases: {len(rows) - failed} passed, {failed} failed")
    if failed:
        raise typer.Exit(1)


def _examine_client(command: str, levels: Sequence[str], *, as_json: bool) -> None:
    from unstale.client_conformance.examination import examine

    rows = list(examine(command, levels))
    failed, skipped = (sum(row.verdict == verdict for row in rows) for verdict in ("failed", "skipped"))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        table = [(row.level, row.check, row.section, row.verdict) for row in rows]
        print_table(("level", "check", "section", "verdict"), table, lines=False)
        for row in rows:
            if row.detail:
                print(f"{row.check} {row.verdict}: {row.rule} (PROTOCOL.md {row.section}); {row.detail}")
        print(f"{len(rows)} checks: {len(rows) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    if failed:
        raise typer.Exit(1)


def _policy_facts(description: "PolicyDescription") -> Iterator[str]:
    yield f"loops    {', '.join(description.loops)}"
    yield f"memory   {description.memory}"
    if description.training is not None:
        yield f"training {description.training}, which its clients need"
    if description.needs_base_models:
        yield "keeps every model that an update may refer to"


def _compensator_facts(description: "CompensatorDescription") -> Iterator[str]:
    yield f"memory   {description.memory}"
    if description.inverts:
        yield "reconstructs representative data of clients from their updates: docs/threat-model.md"
    if description.only_simulated:
        yield "uses updates that no server has: in `unstale simulate` only"


def _print_parts(descriptions: Sequence[Any], facts: Callable[[Any], Iterator[str]], *, as_json: bool) -> None:
    """Print parts one by one, or as a JSON list. facts: returns lines about a part."""
    if as_json:
        print(json.dumps([asdict(description) for description in descriptions], indent=2))
        return
    for description in descriptions:
        print(f"{description.name}: {description.summary}")
        print(f"  source   {description.source}")
        for fact in facts(description):
            print(f"  {fact}")
        rows = [
            (setting.name, _default(setting), setting.expected, setting.source, setting.description)
            for setting in description.settings
        ]
        if rows:
            print_table(("setting", "default", "expected", "source", "meaning"), rows)
        else:
            print("  settings none\n")


def _default(setting: "SettingDescription") -> str:
    """Return `0.6`, or `1.0, reference 0.5` if a profile or synchronous rounds have another default."""
    if setting.required:
        return "required"
    others = {"synchronous": setting.synchronous_default, "reference": setting.reference_default}
    differing = [f"{when} {_spelled(value)}" for when, value in others.items() if value != setting.default]
    return ", ".join((_spelled(setting.default), *differing))


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
