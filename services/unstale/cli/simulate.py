"""`unstale simulate`: a run in virtual time, in this process."""

from typing import Annotated

import typer

from unstale.cli import report
from unstale.cli.options import RUN, takes_settings
from unstale.config import Settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")]


@takes_settings(*RUN, "simulation")
def simulate(settings: Settings, as_json: AsJson = False) -> None:
    """Play a run in virtual time: the same coordinator and learner, without sockets or waiting."""
    from unstale.simulator.assemble import simulation  # imports torch

    run = simulation(settings, on_progress=lambda now: report.progress(now, as_json=as_json))
    report.outcome(run.run(), as_json=as_json, clock=" of virtual time")
    run.save()
