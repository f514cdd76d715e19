# mypy: disable-error-code="import-not-found"
"""Federated averaging in Flower, on the data, shares and model of a run's settings. Only `benchmarks.flower` starts it.

    python -m benchmarks.flower_app SETTINGS.json PULL_INTERVAL_S

Runs in an environment that has Flower. Prints, as one line of JSON, the `time.perf_counter` of each applied round and
the accuracy of the last model. Follows Flower's documentation (message API, strategy `FedAvg`, 1.41), with simple
speed-ups: a worker loads data and model once, indexed tensors replace a `DataLoader`, and there is no evaluation
between rounds.
"""

import json
import logging
import sys
import time
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn.functional import cross_entropy

from unstale.config.build import evaluation
from unstale.config.settings import Settings
from unstale.config.workspace import TrainingContext, training_context
from unstale.learner.versions import Version
from unstale.training.models import build
from unstale.training.workload import ClientTask

BACKEND = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
"""A worker per core. The documentation advises against `init_args` for the highest performance."""

client_app = ClientApp()


@lru_cache(maxsize=1)
def _place(settings_file: str) -> tuple[Settings, TrainingContext, nn.Module]:
    """Settings, data and a plain module, once in each process."""
    settings = Settings(**json.loads(Path(settings_file).read_text(encoding="utf-8")))
    context = training_context(settings)  # also sets the number of threads
    return settings, context, _model(settings, context)


def _model(settings: Settings, context: TrainingContext) -> nn.Module:
    dataset = context.dataset
    return build(settings.model.name, dataset.input_shape, dataset.classes, settings.seed)


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """A client's local steps, on mini-batches drawn as by ours."""
    config = message.content["config"]
    settings, place, model = _place(config["settings"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client_id = int(context.node_config["partition-id"])
    examples = place.trainer.examples(client_id)
    rate = settings.training.learning_rate
    number, base_d = config["server-round"], place.model.parameters_d
    client_task = ClientTask(client_id=client_id, number=number, version=0, base_d=base_d, learning_rate=rate)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for batch_b in place.trainer.local_task(client_task).batches:
        inputs_bX, labels_b = examples.batch(batch_b)
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs_bX), labels_b)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    metrics = MetricRecord({"train_loss": sum(losses) / len(losses), "num-examples": len(examples)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def play(settings_file: str, pull_interval_s: float) -> dict[str, object]:
    """Run the rounds. pull_interval_s: the server's polling interval for replies, 0.1 in Flower."""
    settings, context, model = _place(settings_file)
    applied_s: list[float] = []
    found: list[ArrayRecord] = []
    server_app = ServerApp()

    def applied(_: int, arrays: ArrayRecord) -> None:
        applied_s.append(time.perf_counter())
        found[:] = [arrays]

    @server_app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, _: Context) -> None:
        grid.pull_interval = pull_interval_s
        size = settings.selector.size or settings.clients
        strategy = FedAvg(
            fraction_train=size / settings.clients,
            fraction_evaluate=0.0,
            min_train_nodes=size,
            min_available_nodes=settings.clients,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(model.state_dict()),
            train_config=ConfigRecord({"settings": settings_file}),
            num_rounds=settings.rounds,
            evaluate_fn=applied,
        )

    run_simulation(server_app, client_app, num_supernodes=settings.clients, backend_config=BACKEND)
    model_d = torch.cat([part.flatten() for part in found[0].to_torch_state_dict().values()])
    last = evaluation(context)(Version(model_d=model_d, buffers_b=torch.empty(0)))
    return {"applied_s": applied_s[1:], **last.metrics}


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    settings_file, pull_interval_s = sys.argv[1:]
    print(json.dumps(play(settings_file, float(pull_interval_s))))


if __name__ == "__main__":
    from benchmarks import flower_app  # under the name by which Ray's workers import it

    flower_app.main()
