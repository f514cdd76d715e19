# mypy: disable-error-code="import-not-found"
"""Accuracy over time of Flower's quickstart. Only `benchmarks.flower_stragglers` starts it, in the app's folder.

    python -m benchmarks.flower_stragglers_side synchronous SEED CLIENTS FRACTION LR SECONDS    a run of Flower
    python -m benchmarks.flower_stragglers_side recorded RUN                                    a run of unstale

Runs in an environment that has Flower. Prints, as one line of JSON, seconds since the first version and accuracy on
the test images, for each version, and the number of updates.
"""

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor

from unstale.journal.replay import RecordedRun, Replay
from unstale.training.initialise import seeded

Model = dict[str, Tensor]
Versions = list[tuple[float, Model]]


class TimeUp(Exception):  # noqa: N818  (an outcome)
    """The run has taken as long as it may."""


class Quickstart(ClientApp):  # type: ignore[misc]
    """The app, with the table of its pyproject.toml, which `run_simulation` does not read."""

    def __call__(self, message: Message, context: Context) -> Message:
        from quick.client_app import app

        own = Context(context.run_id, context.node_id, context.node_config, context.state, {"local-epochs": 1})
        return app(message, own)


def synchronous(seed: int, clients: int, fraction: float, rate: float, seconds: float) -> tuple[Versions, int]:
    """Versions with their times, and the number of updates. fraction: of the clients that train in a round."""
    from quick.task import Net

    versions: Versions = []
    with seeded(seed):  # as the server of ours
        first = ArrayRecord(Net().state_dict())
    config = ConfigRecord({"lr": rate})
    server_app = ServerApp()

    def applied(_: int, arrays: ArrayRecord) -> MetricRecord | None:
        versions.append((time.perf_counter(), arrays.to_torch_state_dict()))
        if len(versions) > 1 and versions[-1][0] - versions[1][0] > seconds:
            raise TimeUp
        return None

    @server_app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, _: Context) -> None:
        grid.pull_interval = 0.01
        _start_workers(grid, clients, RecordDict({"arrays": first, "config": config}))
        strategy = FedAvg(
            fraction_train=fraction, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=clients
        )
        with contextlib.suppress(TimeUp):
            strategy.start(grid=grid, initial_arrays=first, train_config=config, num_rounds=10**6, evaluate_fn=applied)

    cores = os.cpu_count() or 1
    resources = {"num_cpus": cores / clients, "num_gpus": 0.0}  # a worker for each client, as over sockets
    run_simulation(server_app, Quickstart(), num_supernodes=clients, backend_config={"client_resources": resources})
    start_s = versions[1][0]
    return [(at_s - start_s, model) for at_s, model in versions[1:]], round(fraction * clients) * (len(versions) - 1)


def _start_workers(grid: Grid, clients: int, config: RecordDict) -> None:
    """Let each worker train once before the run, which imports the app."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.1)
    messages = [Message(config, dst_node_id=node, message_type="train") for node in nodes]
    for reply in grid.send_and_receive(messages):
        assert not reply.has_error(), reply.error


def recorded(path: Path) -> tuple[Versions, int]:
    """As `synchronous`, of the journal of a run."""
    with RecordedRun(path) as run:
        replay = Replay(run, run.settings)
        applied_s = {row.version: row.applied_s for row in run.database.rounds()}
        model = replay.workspace.model
        versions = [
            (applied_s[replay.version] - applied_s[1], _named(model, replay.learner.model_d)) for _ in replay.rounds()
        ]
        assert replay.first_difference is None
        return versions, replay.updates


def _named(model: Any, model_d: Tensor) -> Model:
    """The parameters of a version by name."""
    sizes = {name: parameter.shape for name, parameter in model.module.named_parameters()}
    parts = model_d.split([size.numel() for size in sizes.values()])
    return {name: part.view(size) for (name, size), part in zip(sizes.items(), parts, strict=True)}


def accuracies(versions: Iterable[tuple[float, Model]]) -> list[tuple[float, float]]:
    """Seconds and accuracy of versions, on the test images."""
    from quick.task import Net

    with np.load(os.environ["CIFAR10_NPZ"]) as arrays:
        images_NCHW = torch.from_numpy(arrays["x_test"]).permute(0, 3, 1, 2).contiguous() / 127.5 - 1  # as the app
        labels_N = torch.from_numpy(arrays["y_test"])
    net = Net()
    points = []
    for at_s, model in versions:
        net.load_state_dict(model)
        with torch.no_grad():
            points.append((at_s, float((net(images_NCHW).argmax(1) == labels_N).float().mean())))
    return points


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    kind, *arguments = sys.argv[1:]
    if kind == "synchronous":
        seed, clients, *others = arguments
        versions, updates = synchronous(int(seed), int(clients), *map(float, others))
    else:
        versions, updates = recorded(Path(arguments[0]))
    print(json.dumps({"points": accuracies(versions), "updates": updates}))


if __name__ == "__main__":
    from benchmarks import flower_stragglers_side  # under the name by which Ray's workers import it

    flower_stragglers_side.main()
