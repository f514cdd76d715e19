"""Progression of diabetes from ten measurements, learned from tables of which each client has one."""

import numpy as np
import torch
from torch import nn

import unstale

SCALE, MEAN, DEVIATION = 21.0, 150.0, 75.0  # of measurements and targets


def model():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))


def data(client):
    rows = torch.from_numpy(np.loadtxt(f"data/{client.client_id}.csv", delimiter=",", dtype=np.float32))
    inputs, targets = SCALE * rows[:, :10], (rows[:, 10:] - MEAN) / DEVIATION
    tests = len(rows) // 5
    return (inputs[tests:], targets[tests:]), (inputs[:tests], targets[:tests])


def train(model, data, task):
    inputs, targets = data[0]
    optimiser = torch.optim.SGD(model.parameters(), lr=task.learning_rate, momentum=0.9)
    for batch in torch.randperm(len(inputs), generator=task.generator).split(16):
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return unstale.Trained(num_examples=len(inputs), loss=loss.item())


def evaluate(model, data):
    inputs, targets = data[1]
    error = DEVIATION * (model(inputs) - targets).abs().mean()
    return unstale.Measured(num_examples=len(inputs), metrics={"mae": error.item()})


app = unstale.App(model=model, data=data, train=train, evaluate=evaluate, metric="mae")
