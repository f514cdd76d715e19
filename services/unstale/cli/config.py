"""`unstale config`: write, check and show the configuration."""

from pathlib import Path
from typing import Annotated

import typer

from unstale.cli.app import App
from unstale.cli.options import COMMON_IN_RUNS, RUN, takes_settings
from unstale.cli.output import can_show
from unstale.config import Settings, load
from unstale.config.write import resolved, write_commented

app = App(help="Write, check and show the configuration.")

FileToWrite = Annotated[Path, typer.Argument(help="The file to write.")]
FileToCheck = Annotated[Path, typer.Argument(help="The file to check.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]


@app.command()
def write(file: FileToWrite = Path("unstale.yaml"), force: Force = False) -> None:
    """Write a commented file of every key at its default."""
    write_commented(file, force=force)
    print(f"{file}: written; use it with --config {file}")


@app.command()
def check(file: FileToCheck) -> None:
    """Check whether a run can start with this file alone, without variables and options."""
    from unstale.config.build import check as check_parts  # imports torch

    check_parts(load(file))
    print(f"{file}: ok")


@app.command()
@takes_settings(*RUN, "run", "server", "client", "injector", "attack", "simulation", common=COMMON_IN_RUNS)
def show(settings: Settings) -> None:
    """Print every key with its value from file, variables, options and defaults."""
    text = resolved(settings)
    print(text if can_show(text) else resolved(settings, only_ascii=True), end="")  # lookalikes would change values
