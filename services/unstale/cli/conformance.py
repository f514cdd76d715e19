"""`unstale conformance`: whether the policies compute what they say, by golden vectors and laws."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

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

    from unstale.conformance import examine
    from unstale.learner.device import choose

    torch.set_num_threads(1)  # as in a run by default; the bits depend on it
    rows = list(examine(tuple(policies or ()), choose(device)))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print_table(rows)
        print(_summary(rows))
    if any(row.verdict != "pass" for row in rows):
        raise typer.Exit(1)


def _print_table(rows: "list[Row]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, expand=True)
    table.add_column("policy", width=max(len(row.policy) for row in rows))
    for heading, ratio in (("case", 4), ("expected", 1), ("got", 1)):
        table.add_column(heading, ratio=ratio)
    table.add_column("verdict", width=len("verdict"))
    for row in rows:
        # A line for what passes, as much as fits; all of what fails. Text, because rich would read [0.5] in a plain
        # string as markup.
        passed = row.verdict == "pass"
        cells = (
            Text(cell, no_wrap=passed, overflow="ellipsis" if passed else "fold")
            for cell in asdict(row).values()
        )
        table.add_row(*cells)
    Console().print(table)


def _summary(rows: "list[Row]") -> str:
    """`25 policies, 512 cases: 511 passed, 1 failed`"""
    policies = len({row.policy for row in rows})
    failed = sum(row.verdict != "pass" for row in rows)
    noun = "policy" if policies == 1 else "policies"
    return f"{policies} {noun}, {len(rows)} cases: {len(rows) - failed} passed, {failed} failed"
