"""Logistic regression in NumPy, by `unstale_client` alone.

Run as a program: ADDRESS CLIENT_ID STATE_DIR DATA LOG. The log gets a line with number and loss of each update that
`Task.send` has taken, and the line `started` after the imports.
"""

import sys
from collections.abc import Mapping

import numpy as np

from unstale_client import join

WEIGHT, BIAS = "1.weight", "1.bias"  # of the model `logreg`


def trained(
    parameters: Mapping[str, np.ndarray], inputs_NX: np.ndarray, labels_N: np.ndarray, learning_rate: float, steps: int
) -> tuple[dict[str, np.ndarray], float]:
    """Weights after some steps of gradient descent on all examples, and the mean cross-entropy of these steps."""
    weight, bias = parameters[WEIGHT].copy(), parameters[BIAS].copy()
    losses = []
    for _ in range(steps):
        scores_NC = inputs_NX @ weight.T + bias
        scores_NC -= scores_NC.max(axis=1, keepdims=True)
        chances_NC = np.exp(scores_NC)
        chances_NC /= chances_NC.sum(axis=1, keepdims=True)
        losses.append(-np.log(chances_NC[np.arange(len(labels_N)), labels_N]).mean())
        chances_NC[np.arange(len(labels_N)), labels_N] -= 1
        error_NC = chances_NC / len(labels_N)
        weight -= np.float32(learning_rate) * (error_NC.T @ inputs_NX)
        bias -= np.float32(learning_rate) * error_NC.sum(axis=0)
    return {WEIGHT: weight, BIAS: bias}, float(np.mean(losses))


def main(address: str, client_id: str, state_dir: str, data: str, log: str) -> None:
    with np.load(data) as arrays, open(log, "a", buffering=1, encoding="utf-8") as lines:
        inputs_NX, labels_N = arrays["inputs_NX"], arrays["labels_N"]
        print("started", file=lines)
        with join(address, client_id=int(client_id), state_dir=state_dir) as client:
            for task in client:
                weights, loss = trained(task.parameters, inputs_NX, labels_N, task.learning_rate, steps=2)
                task.send(weights, num_examples=len(labels_N), loss=loss)
                print(task.number, repr(loss), file=lines)
    assert not {"torch", "unstale", "prometheus_client", "yaml"} & set(sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
