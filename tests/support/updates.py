"""Rounds for the tests of policies: updates by client, and those of the golden vectors."""

import torch

from unstale.policies import UpdateBatch

GOLDEN_RATE = 0.1
GOLDEN_MODEL = torch.tensor([0.1, -0.2, 0.3, 0.0])
GOLDEN = UpdateBatch(
    version=0,
    matrix_Kd=torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.6, 0.8, 0.0, 0.0], [0.0, -0.5, 1.5, 0.5]]),
    staleness_K=torch.tensor([0, 1, 3]),
    num_examples_K=torch.tensor([10, 30, 20]),
    loss_K=torch.ones(3),
    client_ids_K=torch.tensor([2, 0, 4]),
    rate=GOLDEN_RATE,
)
"""A, B and C of the appendix, in order of arrival. The model before them is GOLDEN_MODEL."""


def senders(*updates: tuple[int, float], version: int = 0) -> UpdateBatch:
    """The updates of clients, in order of arrival: one parameter, all fresh, one example each."""
    rows = len(updates)
    return UpdateBatch(
        version=version,
        matrix_Kd=torch.tensor([gradient for _, gradient in updates]).reshape(rows, 1),
        staleness_K=torch.zeros(rows, dtype=torch.int64),
        num_examples_K=torch.ones(rows, dtype=torch.int64),
        loss_K=torch.ones(rows),
        client_ids_K=torch.tensor([client for client, _ in updates], dtype=torch.int64),
    )
