"""`unstale export`: write a table of a recorded run, or give the run to a tracker."""

from pathlib import Path
from typing import Annotated

import typer

from unstale.cli.parameters import AsJson
from unstale.cli.printing import json_line, line

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory; it is only read.")]
To = Annotated[
    Path,
    typer.Option(
        "--to",
        metavar="FILE",
        help="FILE.csv or FILE.parquet, which is overwritten; or mlflow, tensorboard, wandb or another tracker.",
    ),
]
Table = Annotated[
    str, typer.Option("--table", metavar="NAME", help="The table: rounds, updates, clients or evaluations.")
]


def export(run: Run, to: To, table: Table = "rounds", as_json: AsJson = False) -> None:
    """Write a table of a recorded run as CSV or Parquet, or give its rounds and evaluations to a tracker."""
    from unstale.report import export as report  # imports torch and pandas
    from unstale.trackers import registry, tracking

    name = str(to)
    if ":" in name or name in registry.REGISTRY.names():
        points = tracking.export(run, name)
        if as_json:
            json_line("exported", {"tracker": name, "points": points})
        else:
            line(f"{name}: {points} rounds and evaluations")
        return
    rows = report.export(run, to, table)
    if as_json:
        json_line("exported", {"file": to, "table": table, "rows": rows})
        return
    line(f"{to}: {rows} rows of {table} written")
