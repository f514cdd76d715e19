"""A small regression, and a server of it, for trainers of other libraries."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unstale
from support.running import PATIENCE_S

ROWS, BATCH = 24, 4


class Net(nn.Module):
    """Returns what the Trainer of Hugging Face expects."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters(), 1):
                parameter.copy_(torch.linspace(-number, number, parameter.numel()).view_as(parameter) / 4)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        predicted = self.last(torch.tanh(self.first(x)))[:, 0]
        return {"loss": nn.functional.mse_loss(predicted, labels), "predicted": predicted}


class Other(Net):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)


def no_training(*_: object) -> unstale.Trained:
    raise AssertionError("the clients have a trainer")


def rows(count: int = ROWS) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x_N3 = torch.randn(count, 3, generator=generator)
    return [{"x": x_3, "labels": x_3.sum()} for x_3 in x_N3]


def served(folder: Path, rounds: int, model: Any = Net, **more: Any) -> unstale.Serving:
    """A server in the background; each round has one update of its only client."""
    return unstale.serve(
        unstale.App(model=model, train=no_training),
        clients=1,
        rounds=rounds,
        policy="fedavg",
        trigger="sync",
        training={"learning_rate": 1.0},
        device="cpu",
        server={"address": "tcp://127.0.0.1:0", "http_address": None, "linger_s": 0.1, "retry_s": 0.01},
        directory=folder / "run",
        background=True,
        **more,
    )


def joined(server: unstale.Serving, **more: Any) -> Any:
    return unstale.join(server.address, client_id=0, patience_s=PATIENCE_S, **more)
