"""`unstale scenario`: show the delays, losses and availability of a scenario."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from unstale.cli.app import App
from unstale.cli.options import takes_settings
from unstale.cli.parameters import AsJson
from unstale.config import Settings
from unstale.errors import UserError
from unstale.report.content import count

app = App(help="Show scenarios: the faults between clients and server, and the speed of clients.")

Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A built-in scenario, or a YAML file.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write a plot to this PNG file.")]
PayloadBytes = Annotated[int, typer.Option(metavar="BYTES", min=0, max=2**34, help="Size of a task and of an update.")]
Seconds = Annotated[float, typer.Option(metavar="SECONDS", help="Seconds of the scenario to simulate.")]
SECONDS_MIN, SECONDS_MAX = 1e-3, 1e7
ClientsEach = Annotated[int, typer.Option(metavar="N", min=1, help="Clients per pod: the Job's UNSTALE_CLIENT__COUNT.")]
Namespace = Annotated[str, typer.Option(metavar="NAME", help="Namespace of the pods.")]


@app.command(name="list")
def list_all(as_json: AsJson = False) -> None:
    """List the built-in scenarios."""
    from unstale.config.scenario import read, ready_names

    descriptions = {name: read(name).description for name in ready_names()}
    if as_json:
        rows = [{"name": name, "description": text} for name, text in descriptions.items()]
        print(json.dumps(rows, indent=2))
        return
    width = max(len(name) for name in descriptions)
    for name, text in descriptions.items():
        print(f"{name:<{width}}  {text}")
    print("\nDetails: unstale scenario show NAME. Use: unstale simulate --scenario NAME.")


@app.command()
@takes_settings(
    *("clients", "seed", "data", "partition", "training.steps", "scenario.time_scale"),
    common=("clients", "seed", "training.steps", "scenario.time_scale"),
)
def show(
    settings: Settings,
    name: Name,
    plot: Plot = None,
    payload_bytes: PayloadBytes = 250_000,
    seconds: Seconds = 300.0,
    as_json: AsJson = False,
) -> None:
    """Simulate a scenario for the run's clients, and show delays of tasks and updates, losses, and availability."""
    from unstale.cli import scenario_text
    from unstale.config.scenario import client_info, conditions, read
    from unstale.toxics.preview import preview

    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise UserError(f"--seconds is {seconds:g}, expected a number from {SECONDS_MIN} to {SECONDS_MAX:,.0f}")
    settings = _with_scenario(settings, name)
    clients = client_info(settings)
    simulated = preview(
        read(name),
        conditions(settings, of=clients),
        clients,
        seed=settings.seed,
        payload_bytes=payload_bytes,
        steps=1 if settings.training.name == "gradient" else settings.training.steps or 1,
        seconds=seconds,
    )
    number = count(settings.clients, "client")
    title = f"{name}: {number}, {payload_bytes:,} bytes per message, seed {settings.seed}"
    if plot is not None:
        from unstale.cli.scenario_plot import draw  # imports matplotlib

        draw(simulated, title, plot)
    if as_json:
        print(json.dumps({"scenario": name, **scenario_text.facts(simulated)}))
        return
    print("\n".join([title, *scenario_text.lines(simulated)]))
    if plot is not None:
        print(f"{plot}: written")


@app.command(name="chaos-mesh")
@takes_settings(
    *("clients", "seed", "data", "partition", "scenario.time_scale"), common=("clients", "seed", "scenario.time_scale")
)
def chaos_mesh(settings: Settings, name: Name, clients_each: ClientsEach = 5, namespace: Namespace = "unstale") -> None:
    """Print a scenario as Chaos Mesh objects for the pods of k8s/. Faults that Chaos Mesh lacks are also listed on
    stderr.
    """
    import yaml

    from unstale.config.scenario import client_info, conditions
    from unstale.toxics.chaos_mesh import Pods, translated

    scenario = conditions(_with_scenario(settings, name), of=client_info(settings))
    pods = Pods(clients=settings.clients, clients_each=clients_each, namespace=namespace)
    translation = translated(scenario, pods)
    print(f"# Scenario {name} for {count(pods.count, 'pod')} of clients. Times count from `kubectl apply`.")
    print("# Chaos Mesh applies only one of several faults with the same target to a packet.")
    for left_out in translation.left_out:
        print(f"# Not in Chaos Mesh: {left_out}")
    for fault in translation.faults:
        print("---")
        if fault.remark:
            print(f"# {fault.remark}")
        print(yaml.safe_dump(fault.manifest, sort_keys=False), end="")
    for left_out in translation.left_out:
        print(f"not in Chaos Mesh: {left_out}", file=sys.stderr)


def _with_scenario(settings: Settings, name: str) -> Settings:
    return settings.model_copy(update={"scenario": settings.scenario.model_copy(update={"name": name})})
