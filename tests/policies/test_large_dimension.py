"""Policies that compute in chunks of columns, against their oracles over many chunks.

The oracles' inner products are computed by NumPy in float64 here: by hand they would take minutes.
"""

import numpy as np
import pytest
import torch

import oracles.averages
import oracles.oracle
import oracles.robust
from oracles.oracle import Vector
from oracles.registry import oracle
from oracles.sequences import Grid, Round, float32, play
from unstale.policies import Policy, Step, UpdateBatch, create
from unstale.policies.weights import column_chunks
from unstale.seeds import Stream, stream

DIMENSION, CLIENTS, ROUND_SIZE, ROUNDS = 200_001, 4, 3, 5
CASES = [
    ("fedhist", {"h": 2, "alpha": 0.5}),
    ("geometric-median", {}),
    ("krum", {}),
    ("mifa", {"init": "zeros"}),
    ("refl", {}),
    ("wkafl", {"alpha": 0.5, "similarity_min": -1.0}),
    ("wkafl", {"clip_bound": 100.0, "stage_two_round": 2, "stage_two_bound": 0.9}),
]


@pytest.fixture(autouse=True)
def numpys_inner_product(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (oracles.oracle, oracles.averages, oracles.robust):
        monkeypatch.setattr(module, "dot", lambda a, b: float(np.dot(a, b)))


def uneven() -> Grid:
    """Some columns long, others short, so that the chunks of an update differ."""
    rng = stream(3, Stream.BATCHES)

    def grid(values: Vector) -> Vector:
        parts = [part * rng.choice([0.25, 1.0, 4.0]) for part in np.array_split(values, 5)]
        return float32(np.concatenate(parts))

    return grid


def stepped(policy: Policy, played: Round) -> Step:
    updates = played.updates

    def column(values: list, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    return policy.step(
        UpdateBatch(
            version=played.version,
            matrix_Kd=torch.from_numpy(np.array([u.g for u in updates], dtype=np.float32)),
            staleness_K=column([u.s for u in updates]),
            num_examples_K=column([u.n for u in updates]),
            loss_K=column([u.loss for u in updates], torch.float32),
            client_ids_K=column([u.client for u in updates]),
            rate=played.eta,
        )
    )


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value))
def test_a_policy_agrees_with_its_oracle_over_many_chunks_of_columns(name: str, settings: dict) -> None:
    run = {"clients": CLIENTS, "dimension": DIMENSION, "round_size": ROUND_SIZE, "rounds": ROUNDS, **settings}
    policy = create(name, **run)
    for played in play(oracle(name, **run), "k-async", seed=2, rounds=ROUNDS, grid=uneven()):
        step = stepped(policy, played)
        expected_d = (played.w - played.w_next) / played.eta
        actual_d = step.rate_factor * step.direction_d.double().numpy()
        scale = max(1.0, float(np.abs(expected_d).max()))
        np.testing.assert_allclose(
            actual_d / scale, expected_d / scale, atol=2e-6, rtol=0, err_msg=f"round {played.version}"
        )
        np.testing.assert_allclose(
            step.weights_K.numpy(), played.weights, atol=2e-6, rtol=0, err_msg=f"round {played.version}"
        )


def test_these_rounds_have_several_chunks_of_columns() -> None:
    """Check the test itself."""
    assert len(list(column_chunks(torch.empty(1, DIMENSION)))) > 1
    assert len(list(column_chunks(torch.empty(ROUND_SIZE, DIMENSION)))) > 4
