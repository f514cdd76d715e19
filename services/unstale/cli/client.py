"""`unstale client`: take part in a run."""

import os
import sys
from pathlib import Path

from unstale.cli import printing
from unstale.cli.options import takes_settings
from unstale.cli.parameters import EndsWithInput
from unstale.config import Settings
from unstale.errors import HangingError
from unstale.imports import imports

HANGING = 3
"""Exit code after a task that does not end."""


@takes_settings(
    *("app", "flower", "client", "model", "data", "partition", "training.name", "objective", "device", "threads"),
    *("scenario", "device_precision", "attack"),
    common=(
        *("app", "client.server", "client.first", "client.count", "client.patience_s", "client.key"),
        *("client.server_key", "client.directory", "client.durability", "client.http_address"),
        *("data.path", "device", "scenario.name", "attack.name", "flower.partition_id", "flower.num_partitions"),
    ),
)
def client(settings: Settings, ends_with_input: EndsWithInput = False) -> None:
    """Take part in a run with one client, or with --count of them in this process.

    The server chooses model, data set and training, or this machine's --app has its own. The options of this command
    tell where this machine has the data, and which code of its own the server may name; in a run of private data they
    name the data. A client that starts first waits for the server. With a scenario, tasks take as long as on the
    devices of the scenario. The client stores
    unacknowledged updates in a directory; after a crash, the same command resumes from there.
    """
    with imports():
        from unstale.client.service import ClientProcess
        from unstale.client.workspace import durations_of, training_context_of  # imports torch
        from unstale.config.scenario import read
        from unstale_client.net.keys import client_identity
        from unstale_client.outbox import Outbox

    printing.log_to_stderr()
    scenario = settings.scenario.name
    if scenario is not None:
        read(scenario)  # reports a mistake now instead of when a server answers
    hosted = settings.client
    hosted.check_link()
    identity = client_identity(hosted.key, hosted.server_key)
    outbox = None
    if hosted.durability != "off":
        durable = hosted.durability == "full"
        outbox = Outbox(Path(hosted.directory), hosted.first, hosted.count, durable=durable)
    process = ClientProcess(
        server=hosted.server,
        client_ids=range(hosted.first, hosted.first + hosted.count),
        prepare=lambda welcome: training_context_of(welcome, settings).workload,
        heartbeat_s=settings.server.heartbeat_s,
        linger_s=settings.server.linger_s,
        patience_s=hosted.patience_s,
        durations=None if scenario is None else lambda welcome: durations_of(welcome, settings),
        outbox=outbox,
        identity=identity,
        http_address=hosted.http_address,
        task_timeout_s=hosted.task_timeout_s,
    )
    printing.stop_on_signals(lambda _: process.stop())
    if ends_with_input:
        printing.stop_at_end_of_input(process.stop)
    try:
        process.run()
    except HangingError as error:
        print(f"unstale: {error}", file=sys.stderr, flush=True)
        os._exit(HANGING)  # the end of the interpreter could wait for the thread that still runs, or crash in it
