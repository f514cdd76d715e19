"""`unstale conformance`: check policies against golden vectors and laws."""

import json
from dataclasses import asdict, astuple, fields
from typing import Annotated

import typer

from unstale.cli.parameters import AsJson
from unstale.cli.tables import print_table

Policies = Annotated[list[str] | None, typer.Argument(metavar="[POLICY]...", help="Policies to check; by default all.")]
Device = Annotated[str, typer.Option("--device", help="Device of updates: cpu, cuda, cuda:NUMBER or mps.")]


def conformance(policies: Policies = None, device: Device = "cpu", as_json: AsJson = False) -> None:
    """Check aggregation policies, plug-ins included. The exit code is 1 if one of them fails."""
    import torch

    from unstale.conformance import Row, examine
    from unstale.learner.device import choose

    torch.set_num_threads(1)  # as in a run by default; the bits depend on it
    rows = list(examine(tuple(policies or ()), choose(device)))
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
