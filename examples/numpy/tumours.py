"""Logistic regression in NumPy on a table that only this client has: `python tumours.py ADDRESS CLIENT_ID TABLE`."""

import sys

import numpy as np

from unstale_client import join


def table(file):
    """Measurements and diagnoses: those to train with, and a fifth to measure with."""
    rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    inputs, targets, tests = rows[:, :-1], rows[:, -1], len(rows) // 5
    return (inputs[tests:], targets[tests:]), (inputs[:tests], targets[:tests])


def chances(weights, inputs):
    return 1 / (1 + np.exp(-(inputs @ weights["weight"] + weights["bias"])))


def trained(weights, inputs, targets, learning_rate, steps=5):
    for _ in range(steps):
        errors = chances(weights, inputs) - targets
        slope = {"weight": inputs.T @ errors / len(errors), "bias": errors.mean(keepdims=True)}
        weights = {name: weights[name] - np.float32(learning_rate) * slope[name] for name in slope}
    return weights, -np.log(1 - np.abs(errors) + 1e-7).mean()


def accuracy(weights, inputs, targets):
    return ((chances(weights, inputs) > 0.5) == targets).mean()


if __name__ == "__main__":
    address, client_id, file = sys.argv[1:]
    rows, tests = table(file)
    with join(address, client_id=int(client_id), state_dir="state") as client:
        for task in client:
            weights, loss = trained(task.parameters, *rows, task.learning_rate)
            metrics = {"accuracy": accuracy(task.parameters, *tests)}
            task.send(weights, num_examples=len(rows[1]), loss=loss, metrics=metrics)
