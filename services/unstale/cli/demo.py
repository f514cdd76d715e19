"""`unstale demo`: a whole run on this machine, with server, injector and clients as processes."""

import json
import os
import queue
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.options import COMMON_IN_RUNS, RUN, takes_settings
from unstale.config import Settings
from unstale.config.keys import PREFIX
from unstale.config.write import as_variables

if TYPE_CHECKING:
    from unstale.cli.demo_processes import Events, Process

SCENARIO = "lte"  # default of the demo
PROCESSES = 2  # client processes, with half of the clients each
LOSSY_HEARTBEAT_S = 0.5  # with a scenario; a lost message is noticed after one or two
KEYS = "keys"  # folder of the demo's keys

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as a line of JSON; the table goes to stderr.")]


@takes_settings(*RUN, "attack", common=(*COMMON_IN_RUNS, "attack.name"))
def demo(settings: Settings, as_json: AsJson = False) -> None:
    """Train on this machine over loopback sockets: a server, two processes of clients, and an injector between them
    that simulates a network.

    The network is LTE by default; with --scenario null there is no injector.
    """
    from unstale.cli import demo_processes

    demo_processes.prepare()

    from rich.console import Console

    from unstale.cli import demo_output

    if "name" not in settings.scenario.model_fields_set:
        scenario = settings.scenario.model_copy(update={"name": SCENARIO})
        settings = settings.model_copy(update={"scenario": scenario})
    events: Events = queue.SimpleQueue()
    printing.stop_on_signals(events.put)
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unstale-demo-")))
        owners = _make_keys(folder / KEYS, settings)
        environment = _environment(_local(settings, folder))

        def start(*arguments: str) -> "Process":
            process = demo_processes.Process(
                demo_processes.command, (*arguments, "--ends-with-input"), environment, events
            )
            return stack.enter_context(process)

        server = start("server", "--json")
        listening = demo_processes.next_message(events)
        console.print(demo_output.introduction(settings, listening), highlight=False, soft_wrap=True)
        address = listening["address"]
        if settings.scenario.name is not None:
            start("inject", "--upstream", address, "--json")
            address = demo_processes.next_message(events)["address"]
        clients = [
            start("client", "--server", address, "--first", str(first), "--count", str(count), *key)
            for (first, count), key in zip(_shares(settings.clients), owners, strict=True)
        ]
        finished = demo_output.watch(events, console)
        if as_json:
            keys = ("test_accuracy", "versions", "seconds", "model_digest")
            facts = {key: finished[key] for key in keys}
            printing.line(json.dumps({**facts, "metrics": demo_output.metrics_of(finished)[1]}))
        else:
            console.print(demo_output.result(finished), highlight=False, soft_wrap=True)
        demo_processes.wait_for_end([server, *clients], events)


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of this process, with these settings as the only variables of unstale."""
    others = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    return others | as_variables(settings)


def _make_keys(folder: Path, settings: Settings) -> list[list[str]]:
    """Make keys in a folder, and return the options of each client process."""
    from unstale.net import keygen
    from unstale.net.authorized_keys import INJECTOR, SERVER, ClientIds

    keygen.create(folder, SERVER, None)
    through: list[str] = []
    if settings.scenario.name is not None:
        keygen.create(folder, INJECTOR, ClientIds.parse("all", INJECTOR))
        through = ["--server-key", str(folder / f"{INJECTOR}.key")]
    owners = []
    for number, (first, count) in enumerate(_shares(settings.clients)):
        name = f"clients-{number}"
        keygen.create(folder, name, ClientIds.parse(f"{first}-{first + count - 1}", name))
        owners.append(["--key", str(folder / f"{name}.key_secret"), *through])
    return owners


def _local(settings: Settings, folder: Path) -> Settings:
    """Return settings with free ports, and with keys and files in a folder.

    With a scenario, heartbeats are frequent, because they detect lost messages.
    """
    ports = {"address": "tcp://127.0.0.1:0", "http_address": "127.0.0.1:0"}
    often = settings.scenario.name is not None and "heartbeat_s" not in settings.server.model_fields_set
    beat = {"heartbeat_s": LOSSY_HEARTBEAT_S} if often else {}
    keys = {"keys": str(folder / KEYS)}
    run = {} if "directory" in settings.run.model_fields_set else {"directory": str(folder / "run")}
    changed = {
        "run": settings.run.model_copy(update=run),
        "server": settings.server.model_copy(update={**ports, **keys, **beat}),
        "client": settings.client.model_copy(update={"directory": str(folder / "clients")}),
        "injector": settings.injector.model_copy(update={**ports, **keys}),
    }
    return settings.model_copy(update=changed)


def _shares(clients: int) -> list[tuple[int, int]]:
    """Return (first, count) of each client process."""
    bounds = [clients * i // PROCESSES for i in range(PROCESSES + 1)]
    return [(first, end - first) for first, end in pairwise(bounds) if end > first]
