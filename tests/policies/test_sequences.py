"""Every registered policy, in float32, against its oracle, in float64, over fifty rounds under each loop.

Both get the same model and the same updates in every round, and each keeps its own memory from the first round to the
last. Where the oracle is near a threshold the vectors are drawn anew: see `oracles.sequences`.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from oracles.oracle import Update, Vector
from oracles.registry import Case, cases, oracle
from oracles.sequences import Round, play
from unstale.policies import Policy, Step, UpdateBatch, create, names

CLIENTS, DIMENSION, ROUND_SIZE = 9, 7, 4
ROUNDS = 50
SAVED_AT = 25
TOLERANCE = 1e-6
CASES = cases(CLIENTS)
REGISTERED = [case for case in CASES if case.policy in names()]
LOOPS = ("k-async", "availability", "repeated")

over_all_cases = pytest.mark.parametrize("case", REGISTERED, ids=str)
over_all_loops = pytest.mark.parametrize("loop", LOOPS)


def run_of(case: Case) -> dict[str, Any]:
    return {
        "clients": CLIENTS,
        "dimension": DIMENSION,
        "seed": 3,
        "round_size": ROUND_SIZE,
        "rounds": ROUNDS,
        "profile": case.profile,
        **case.settings,
    }


@cache
def sequence(position: int, loop: str) -> list[Round]:
    case = REGISTERED[position]
    return play(oracle(case.policy, **run_of(case)), loop, seed=position, rounds=ROUNDS)


def fresh(case: Case) -> Policy[Any]:
    return create(case.policy, device="cpu", **run_of(case))


def tensor(vector: Vector) -> torch.Tensor:
    return torch.from_numpy(vector.astype(np.float32))


def batch_of(played: Round, policy: Policy[Any]) -> UpdateBatch:
    updates = played.updates

    def column(values: list[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    def matrix(rows: list[Vector]) -> torch.Tensor:
        return tensor(np.array(rows).reshape(len(rows), len(played.w)))

    return UpdateBatch(
        version=played.version,
        matrix_Kd=matrix([u.g for u in updates]),
        staleness_K=column([u.s for u in updates], torch.int64),
        num_examples_K=column([u.n for u in updates], torch.int64),
        loss_K=column([u.loss for u in updates], torch.float32),
        client_ids_K=column([u.client for u in updates], torch.int64),
        batch_sizes_K=column([u.m for u in updates], torch.int64),
        extra_Kd=matrix([u.extra for u in updates]) if policy.sends_extra else None,
        model_d=tensor(played.w) if policy.needs_base_models else None,
        base_models=tuple(tensor(u.w_b) for u in updates) if policy.needs_base_models else None,
        rate=played.eta,
        local_rates_K=column([u.eta_l for u in updates], torch.float32),
    )


def run(policy: Policy[Any], rounds: list[Round]) -> Iterator[tuple[Round, Step]]:
    for played in rounds:
        yield played, policy.step(batch_of(played, policy))


def bits(policy: Policy[Any], rounds: list[Round]) -> list[tuple[Any, ...]]:
    """All results of the rounds, bit for bit."""
    return [
        (
            step.direction_d.numpy().tobytes(),
            step.rate_factor,
            step.weights_K.numpy().tobytes(),
            step.counts,
            None if policy.extra_d is None else policy.extra_d.numpy().tobytes(),
        )
        for _, step in run(policy, rounds)
    ]


def test_every_policy_in_the_package_has_a_case() -> None:
    assert set(names()) <= {case.policy for case in CASES}


Rows = list[tuple[int, int, tuple[int, int]]]
"""A round by hand: client, staleness and g of each arrival."""

EDGES: list[tuple[str, str, dict[str, Any], list[Rows]]] = [
    ("no round but empty ones", "fedar", {}, [[], [], []]),
    ("all clients cut off", "fedar", {"cutoff": "convex", "t0": 0.5}, [[(0, 0, (1, 2))], [], []]),
    ("a zero row counts as unlike", "wkafl", {"alpha": 0.0}, [[(0, 0, (1, 2)), (1, 0, (0, 0))]] * 2),
    (
        "a zero row counts as like",
        "wkafl",
        {"alpha": 0.0, "zero_gradient": "similar"},
        [[(0, 0, (1, 2)), (1, 0, (0, 0)), (2, 1, (2, 1))]] * 2,
    ),
    ("rows that cancel", "wkafl", {}, [[(0, 0, (1, 2)), (1, 0, (-1, -2))]] * 2),
    ("rows that cancel in stage two", "wkafl", {"stage_two_round": 0}, [[(0, 0, (1, 2)), (1, 0, (-1, -2))]] * 2),
    ("rows that cancel", "fedhist", {"h": 1}, [[(0, 0, (1, 2)), (1, 0, (-1, -2))]] * 3),
    ("an empty round in the history", "fedhist", {"h": 2}, [[(0, 0, (1, 2))], [], [(1, 2, (2, 1))], [(0, 1, (1, 1))]]),
    ("equal histories", "fedhist", {"h": 3, "ina": False}, [[(0, 0, (1, 0))], [(1, 0, (1, 0))], [(2, 0, (0, 1))]]),
    ("equal rows of unequal age", "refl", {}, [[(0, 0, (1, 2)), (1, 3, (1, 2)), (2, 5, (1, 2))]]),
    (
        "each other's nearest",
        "krum",
        {},
        [[(2, 0, (1, 2)), (1, 0, (3, 3))], [(2, 0, (1, 2)), (1, 0, (2, 2)), (0, 0, (9, 9))]],
    ),
    (
        "as many rows as it distrusts",
        "multi-krum",
        {"byzantine": 3},
        [[(2, 0, (1, 2)), (1, 0, (3, 3)), (0, 0, (9, 9))]],
    ),
    ("all rows the same", "geometric-median", {}, [[(0, 0, (1, 2)), (1, 0, (1, 2)), (2, 0, (1, 2))]]),
    (
        "a cycle that ends early",
        "gsgm",
        {"alpha": 0.5},
        [[(0, 0, (1, 2)), (1, 0, (2, 1))], [(1, 0, (1, 1))], [(0, 0, (3, 0))]],
    ),
    ("a cycle in one round", "gsgm", {"alpha": 0.5}, [[(i, 0, (i, 1)) for i in range(CLIENTS)]] * 3),
    (
        "a released cycle in one round",
        "gsgm",
        {"alpha": 0.5, "released": True},
        [[(i, 0, (i, 1)) for i in range(CLIENTS)]] * 3,
    ),
]


@pytest.mark.parametrize(
    ("policy_name", "settings", "rounds"),
    [pytest.param(*edge, id=f"{edge[0]}: {what}") for what, *edge in EDGES if edge[0] in names()],
)
def test_a_policy_matches_its_oracle_in_an_edge_case(
    policy_name: str, settings: dict[str, Any], rounds: list[Rows]
) -> None:
    arguments = {"clients": CLIENTS, "dimension": 2, "seed": 3, "round_size": ROUND_SIZE, "rounds": ROUNDS, **settings}
    second, policy = oracle(policy_name, **arguments), create(policy_name, device="cpu", **arguments)
    w = np.array([0.5, -0.25])
    for version, arrivals in enumerate(rounds):
        updates = tuple(
            Update(client=i, s=s, g=np.array(g, dtype=np.float64), m=1, eta_l=0.5, w_b=w) for i, s, g in arrivals
        )
        w_next = second.step(w, updates, 0.5)
        played = Round(
            version=version,
            w=w,
            eta=0.5,
            updates=updates,
            w_next=w_next,
            counts=second.counts,
            sent=None,
            weights=tuple(second.weights),
        )
        step = policy.step(batch_of(played, policy))
        direction_d = step.direction_d.double().numpy() * step.rate_factor
        np.testing.assert_allclose(direction_d, (w - w_next) / 0.5, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(step.weights_K.numpy(), played.weights, atol=TOLERANCE, rtol=0)


@over_all_loops
@over_all_cases
def test_a_policy_matches_its_oracle_over_fifty_rounds(case: Case, loop: str) -> None:
    policy = fresh(case)
    for played, step in run(policy, sequence(REGISTERED.index(case), loop)):
        expected_d = (played.w - played.w_next) / played.eta
        actual_d = step.direction_d.double().numpy() * step.rate_factor
        allowed = TOLERANCE * max(1.0, float(np.linalg.norm(expected_d)))
        if policy.needs_base_models:
            # A difference of models, divided by eta: it is the next model that is as close.
            allowed = TOLERANCE * max(1.0, float(np.linalg.norm(played.w))) / played.eta
        np.testing.assert_allclose(actual_d, expected_d, atol=allowed, rtol=0, err_msg=f"round {played.version}")
        np.testing.assert_allclose(
            step.weights_K.numpy(), played.weights, atol=TOLERANCE, rtol=0, err_msg=f"round {played.version}"
        )
        assert step.counts == played.counts, f"round {played.version}"
        assert (policy.extra_d is None) == (played.sent is None)
        if policy.extra_d is not None:
            np.testing.assert_allclose(policy.extra_d.numpy(), played.sent, atol=TOLERANCE, rtol=TOLERANCE)


@over_all_loops
@over_all_cases
def test_a_policy_resumes_bit_for_bit_from_a_state_saved_mid_sequence(case: Case, loop: str) -> None:
    rounds = sequence(REGISTERED.index(case), loop)
    whole = fresh(case)
    bits(whole, rounds[:SAVED_AT])
    saved = whole.state_dict()
    expected = bits(whole, rounds[SAVED_AT:])
    for _ in range(2):  # twice: saving copies, and so does loading
        resumed = fresh(case)
        resumed.load_state_dict(saved)
        assert bits(resumed, rounds[SAVED_AT:]) == expected


def test_the_updates_of_a_sequence_satisfy_the_guarantees_of_the_loops() -> None:
    """Check the test itself: real staleness, distinct senders, empty rounds, repeated senders."""
    position = next(i for i, case in enumerate(REGISTERED) if case.policy == "fedavg")

    def senders(updates: tuple[Update, ...]) -> list[int]:
        return [u.client for u in updates]

    k_async = sequence(position, "k-async")
    assert max(u.s for played in k_async for u in played.updates) > 10
    assert all(len(set(senders(played.updates))) == len(played.updates) for played in k_async)
    availability = sequence(position, "availability")
    assert {0, CLIENTS} <= {len(played.updates) for played in availability}
    assert all(u.s == 0 for played in availability for u in played.updates)
    repeated = sequence(position, "repeated")
    assert any(len(set(senders(played.updates))) < len(played.updates) for played in repeated)
