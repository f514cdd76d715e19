"""An app whose numbers are computed by hand: one weight w, from which client c subtracts rate * (c + 1) in each task.

Client c has c + 1 examples and reports the loss c + 1. It measures `value`, w + c.
"""

from typing import Any

import torch
from torch import nn

import unstale


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))


def own(client: unstale.ClientInfo) -> int:
    return client.client_id


@torch.no_grad()
def train(module: Line, client_id: int, task: unstale.Task) -> unstale.Trained:
    module.w -= task.learning_rate * (client_id + 1)
    return unstale.Trained(num_examples=client_id + 1, loss=client_id + 1.0)


def evaluate(module: Line, client_id: int) -> unstale.Measured:
    return unstale.Measured(num_examples=client_id + 1, metrics={"value": module.w.item() + client_id})


def centrally(module: Line) -> unstale.Measured:
    return unstale.Measured(num_examples=1, metrics={"loss": 1.0, "value": module.w.item()})


app = unstale.App(model=Line, data=own, train=train, evaluate=evaluate, metric="value")
central = unstale.App(model=Line, data=own, train=train, evaluate_centrally=centrally, metric="value")

IN_ROUNDS: dict[str, Any] = {
    "clients": 3,
    "rounds": 4,
    "policy": "fedavg",
    "trigger": "sync",
    "scenario": None,
    "training": {"learning_rate": 0.5},
    "device": "cpu",
}
"""Arguments with which each round has one update of each client: w falls by 0.5 * 14 / 6."""
STEP = 0.5 * 14 / 6
