"""`unstale simulate`: a run in virtual time, in this process."""

import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.inversion import announce
from unstale.cli.options import COMMON_IN_RUNS, RUN, takes_settings
from unstale.cli.parameters import AsJson
from unstale.config import Settings
from unstale.imports import imports

if TYPE_CHECKING:
    from unstale.simulator.simulated_client import Traffic

Record = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="DIRECTORY",
        help="Record the run in this new directory, for `unstale replay` and `unstale explain`.",
    ),
]


@takes_settings(
    *(*RUN, "attack", "simulation"),
    common=(*COMMON_IN_RUNS, "encoding.updates", "attack.name", "attack.clients", "simulation.backend", "ray"),
)
def simulate(settings: Settings, as_json: AsJson = False, record_in: Record = None) -> None:
    """Simulate a run in virtual time: the same coordinator and learner, without sockets or waiting."""
    with imports():
        from unstale.config.compensation import compensator  # imports torch
        from unstale.config.workspace import attack_of
        from unstale.simulator.assemble import simulation
        from unstale.trackers.tracking import Tracking, check_is_stored
        from unstale.workers.inversion_executor import connect

    printing.log_to_stderr()
    announce(settings)
    if (attack := attack_of(settings.attack, settings.clients, settings.seed)) is not None:
        print(f"unstale: attack, for experiments: {attack.description}", file=sys.stderr, flush=True)
    tracking = Tracking(settings.trackers)
    check_is_stored(settings)
    with ExitStack() as stack:
        path, name = record_in, "" if record_in is None else record_in.resolve().name
        if path is None and tracking:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="unstale-run-")))
            name = f"{settings.policy.name}-{settings.seed}"
        run = simulation(
            settings,
            on_progress=lambda now: printing.progress(now, as_json=as_json),
            record_in=path,
            keep_updates=record_in is not None,
            compensator_of=partial(compensator, connect=connect),
        )
        with tracking.of(path, name):
            outcome = run.run()
    if run.traffic.sent:
        _print_traffic(run.traffic, as_json=as_json)
    printing.outcome(outcome, as_json=as_json, clock=" of virtual time")
    run.save()


def _print_traffic(traffic: "Traffic", *, as_json: bool) -> None:
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
    faults = "".join(f", {number:,} {name}" for name, number in counts.items() if number)
    printing.line(f"{traffic.sent:,} messages through the scenario{faults}")
