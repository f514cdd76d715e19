"""`unstale conformance`: whether the policies compute what they say, by golden vectors and laws."""

import json
from dataclasses import asdict, astuple, fields
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli.tables import print_table

if TYPE_CHECKING:
    from unstale.conformance import Row

Policies = Annotated[
    list[str] | None, typer.Argument(metavar="[POLICY]...", help="Which ones; all, when none is named.")
]
Device = Annotated[str, typer.Option("--device", help="Where updates lie: cpu, cuda, cuda:NUMBER or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON list, for programs.")]


def conformance(policies: Policies = None, device: Device = "cpu", as_json: AsJson = False) -> None:
    """Examine aggregation policies, plug-ins included. The exit code is 1 where one of them fails."""
    import torch

    from unstale.conformance import Row, examine
    from unstale.learner.device import choose

    torch.set_num_threads(1)  # as in a run by default; the bits depend on it
    rows = list(examine(tuple(policies or ()), choose(device)))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        headings = [field.name for field in fields(Row)]
        print_table(headings, [astuple(row) for row in rows], lines=False)
        print(_summary(rows))
    if any(row.verdict != "pass" for row in rows):
        raise typer.Exit(1)


def _summary(rows: "list[Row]") -> str:
    """`25 policies, 512 cases: 511 passed, 1 failed`"""
    policies = len({row.policy for row in rows})
    failed = sum(row.verdict != "pass" for row in rows)
    noun = "policy" if policies == 1 else "policies"
    return f"{policies} {noun}, {len(rows)} cases: {len(rows) - failed} passed, {failed} failed"
