"""`unstale simulate`: a run in virtual time, in this process."""

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.inversion import announce
from unstale.cli.options import COMMON_IN_RUNS, RUN, takes_settings
from unstale.config import Settings

if TYPE_CHECKING:
    from unstale.simulator.simulated_client import Traffic

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")]


Record = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="DIRECTORY",
        help="Record the run in this new directory, for `unstale replay` and `unstale explain`.",
        show_default=False,
    ),
]


@takes_settings(
    *(*RUN, "attack", "simulation"),
    common=(*COMMON_IN_RUNS, "encoding.updates", "attack.name", "attack.clients", "simulation.backend"),
)
def simulate(settings: Settings, as_json: AsJson = False, record_in: Record = None) -> None:
    """Play a run in virtual time: the same coordinator and learner, without sockets or waiting."""
    from unstale.simulator.assemble import configured, simulation  # imports torch
    from unstale.workers.inversion_executor import connect

    printing.log_to_stderr()
    announce(settings)
    announce_attack(settings)
    run = simulation(
        settings,
        on_progress=lambda now: printing.progress(now, as_json=as_json),
        record_in=record_in,
        compensator_of=partial(configured, connect=connect),
    )
    outcome = run.run()
    if run.traffic.sent:
        _tell(run.traffic, as_json=as_json)
    printing.outcome(outcome, as_json=as_json, clock=" of virtual time")
    run.save()


def announce_attack(settings: Settings) -> None:
    """Name the clients that attack on stderr, if any do."""
    from unstale.config import build  # imports torch

    attack = build.attack(settings)
    if attack is not None:
        print(f"unstale: attack, for experiments: {attack.description}", file=sys.stderr, flush=True)


def _tell(traffic: "Traffic", *, as_json: bool) -> None:
    """What the scenario did."""
    if as_json:
        printing.json_line("traffic", asdict(traffic))
        return
    counts = {
        "lost": traffic.lost,
        "copies": traffic.copied,
        "updates resent": traffic.resent,
        "tasks lost": traffic.tasks_lost,
        "tasks declined": traffic.declined,
        "connections cut": traffic.cuts,
    }
    seen = "".join(f", {count:,} {what}" for what, count in counts.items() if count)
    printing.line(f"{traffic.sent:,} messages through the scenario{seen}")
