"""Trains the same model on all pictures in one place, to compare with: `python central.py`."""

from pathlib import Path

import torch
from draw import TEST
from shapes import UNet, pictures
from torch.utils.data import DataLoader

from unstale.training.objectives.segmentation import Segmentation


def mean_iou(epochs=60, learning_rate=0.05):
    """Mean over the clients, each measured on its own test pictures."""
    torch.manual_seed(0)
    train, test = pictures(Path("data"))
    module, objective = UNet(), Segmentation()
    optimiser = torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=0.9)
    for _ in range(epochs):
        for inputs, targets in DataLoader(train, batch_size=16, shuffle=True):
            loss = objective.loss(module(inputs), targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        clients = [objective.scores(module(inputs), targets) for inputs, targets in DataLoader(test, batch_size=TEST)]
    return sum(objective.metrics(scores)["mean_iou"] for scores in clients) / len(clients)


if __name__ == "__main__":
    print(f"mean_iou {mean_iou():.3f}")
