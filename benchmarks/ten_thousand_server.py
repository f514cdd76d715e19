"""The server of `benchmarks.ten_thousand`, in a process of its own."""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from unstale.config.settings import Settings
from unstale.server.service import Server

DIMENSION, K = 170, 100


class Vector(nn.Module):
    """As many parameters as a logistic regression of 16 inputs and 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_d = nn.Parameter(torch.zeros(DIMENSION))

    def forward(self, inputs_BX: torch.Tensor) -> torch.Tensor:
        return inputs_BX.flatten(1) * self.weight_d.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--gateways", type=int, required=True)
    parser.add_argument("--durability", required=True)
    parser.add_argument("--heartbeat-s", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--address", default="tcp://127.0.0.1:0")
    parser.add_argument("--keys")
    given = parser.parse_args()
    server = Server(
        Settings(
            clients=given.clients,
            rounds=given.rounds,
            evaluate_every=given.rounds,
            device="cpu",
            model={"name": "benchmarks.ten_thousand_server:Vector"},
            data={"private": True},
            training={"name": "gradient"},
            policy={"name": "fedavg"},
            trigger={"name": "k-async", "k": min(K, given.clients)},
            server={
                "address": given.address,
                "http_address": "127.0.0.1:0",
                "gateways": given.gateways,
                "heartbeat_s": given.heartbeat_s,
                "num_examples_max": None,
                "norm_max": None,
                "keys": given.keys,
            },
            run={"directory": str(given.folder / "run"), "durability": given.durability},
        ),
        on_progress=lambda _: None,
    )
    print(json.dumps({"address": server.address, "http": server.http_address}), flush=True)
    outcome = server.run()
    print(json.dumps({"updates": outcome.updates, "versions": outcome.versions}), flush=True)


if __name__ == "__main__":
    main()
