"""The real server for `benchmarks.ingest`, in a process of its own, with a model of any size.

Prints one JSON line when it listens, and one after SIGTERM.
"""

import argparse
import json
import signal

import torch
from torch import Tensor, nn

from benchmarks.machine import memory_bytes, peak_memory_bytes
from unstale.config.settings import RunSettings, ServerSettings, Settings
from unstale.server.service import Server
from unstale.settings.learning import ModelSettings, PolicySettings, TrainingSettings, TriggerSettings
from unstale.training.models import MODELS, Shape


class Vector(nn.Module):
    """A model of the given number of parameters and little computation. The first of them shift the logits."""

    def __init__(self, dimension: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.weight_d = nn.Parameter(torch.zeros(dimension))

    def forward(self, inputs_BX: Tensor) -> Tensor:
        return inputs_BX.flatten(1)[:, : self.classes] + self.weight_d[: self.classes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimension", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--trigger", required=True)
    parser.add_argument("--k", type=int, required=True)
    parser.add_argument("--durability", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--gateways", type=int, default=0)
    arguments = parser.parse_args()

    def vector(_: Shape, classes: int) -> nn.Module:
        return Vector(arguments.dimension, classes)

    MODELS["vector"] = (vector, None)
    memory_before_bytes = memory_bytes()
    server = Server(
        Settings(
            clients=arguments.clients,
            rounds=10**9,
            evaluate_every=10**9,
            device="cpu",
            model=ModelSettings(name="vector"),
            training=TrainingSettings(name="gradient"),
            policy=PolicySettings(name="fedavg"),
            trigger=TriggerSettings(name=arguments.trigger, k=arguments.k),
            # Clients are idle while the other server is measured, and send no heartbeats.
            server=ServerSettings(
                address="tcp://127.0.0.1:0",
                http_address=None,
                gateways=arguments.gateways,
                lease_s=3600,
                linger_s=0,
                client_messages_per_s_max=None,
            ),
            run=RunSettings(directory=arguments.folder, durability=arguments.durability),
        ),
        on_progress=lambda _: None,
    )
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    print(json.dumps({"address": server.address}), flush=True)
    outcome = server.run()
    print(
        json.dumps(
            {
                "updates": outcome.updates,
                "versions": outcome.versions,
                "memory_before_bytes": memory_before_bytes,
                "memory_peak_bytes": peak_memory_bytes(),
            }
        )
    )


if __name__ == "__main__":
    main()
