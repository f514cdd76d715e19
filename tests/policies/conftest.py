"""Builders of batches for the tests of policies."""

from collections.abc import Callable, Sequence

import pytest
import torch

from unstale.policies import UpdateBatch

MakeBatch = Callable[..., UpdateBatch]


def _make_batch(
    gradients: Sequence[Sequence[float]],
    *,
    staleness: Sequence[int],
    examples: Sequence[int] | None = None,
    version: int = 0,
    **others: object,
) -> UpdateBatch:
    rows = len(gradients)
    return UpdateBatch(
        version=version,
        matrix_Kd=torch.tensor(gradients, dtype=torch.float32),
        staleness_K=torch.tensor(staleness, dtype=torch.int64),
        num_examples_K=torch.tensor(examples or [1] * rows, dtype=torch.int64),
        loss_K=torch.ones(rows),
        client_ids_K=torch.arange(rows),
        **others,
    )


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    """Rows of g with their staleness, number of examples (1 each) and any other field of `UpdateBatch`."""
    return _make_batch
