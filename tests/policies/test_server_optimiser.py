"""Server optimisers as a stage after any policy: by hand, against the oracle, and rounds that leave them unchanged."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from oracles.robust import ServerOptimiser as Oracle
from unstale.policies import create
from unstale.policies.stages import wrapped
from unstale.seeds import Stream, stream
from unstale.settings.learning import OptimiserSettings

NAMES = ("momentum", "adam", "yogi")


def optimised(name: str, *, inner: str = "fedavg", dimension: int = 2, **optimiser):
    policy = create(inner, dimension=dimension, clients=9)
    return wrapped(policy, optimiser=OptimiserSettings(name=name, **optimiser))


def moved(policy, batch) -> list[float]:
    """The change of w."""
    step = policy.step(batch)
    return (batch.rate * step.rate_factor * step.direction_d.double()).tolist()


def test_momentum_by_hand(make_batch) -> None:
    """D = 0.1 g. m = 0.1, then 0.5 * 0.1 + 0.2 = 0.25; w moves by 2 m."""
    policy = optimised("momentum", beta1=0.5, learning_rate=2.0, dimension=1)
    assert moved(policy, make_batch([[1.0]], staleness=[0], rate=0.1)) == [pytest.approx(0.2)]
    assert moved(policy, make_batch([[2.0]], staleness=[0], rate=0.1)) == [pytest.approx(0.5)]


def test_adam_by_hand(make_batch) -> None:
    """D = 0.1, tau = 0.1: m = 0.1 * 0.1, v = 0.99 * 0.01 + 0.01 * 0.01 = 0.01; w moves by 0.01 * 0.01 / (0.1 + 0.1)."""
    policy = optimised("adam", epsilon=0.1, dimension=1)
    assert moved(policy, make_batch([[1.0]], staleness=[0], rate=0.1)) == [pytest.approx(0.01 * 0.01 / 0.2)]


def test_yogi_by_hand(make_batch) -> None:
    """D = 0.2, tau = 0.1: v = 0.01 + 0.01 * 0.04 (D^2 > v); w moves by lr * 0.1 * 0.2 / (sqrt(v) + tau)."""
    policy = optimised("yogi", epsilon=0.1, learning_rate=1.0, dimension=1)
    expected = 0.02 / (math.sqrt(0.0104) + 0.1)
    assert moved(policy, make_batch([[2.0]], staleness=[0], rate=0.1)) == [pytest.approx(expected)]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_thirty_rounds_match_the_oracle(name: str, seed: int, make_batch) -> None:
    """The oracle takes D in parameter units: its own eta is lr."""
    rng = stream(seed, Stream.BATCHES)
    policy, rate = optimised(name, inner="dynsgd", dimension=5), 0.05
    oracle = Oracle(name, 5)
    lr = 1.0 if name == "momentum" else 0.01
    for version in range(30):
        g = rng.standard_normal((3, 5)).astype(np.float32)
        staleness = rng.integers(0, 4, 3)
        batch = make_batch(g.tolist(), staleness=staleness.tolist(), version=version, rate=rate)
        p = 1 / (staleness + 1)
        step = rate * (p / p.sum()) @ g.astype(np.float64)
        expected = -oracle.step(np.zeros(5), step, lr)
        np.testing.assert_allclose(moved(policy, batch), expected, atol=1e-6)


def test_momentum_zero_gives_the_step_of_the_policy(make_batch) -> None:
    alone, through = (create("fedbuff", dimension=2, clients=9), optimised("momentum", inner="fedbuff", beta1=0.0))
    for rate in (0.1, 0.03, 7.0):
        batch = make_batch([[0.3, -1.7], [2.2, 0.1]], staleness=[1, 4], rate=rate)
        assert moved(through, batch) == pytest.approx(moved(alone, batch), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_round_without_a_step_leaves_the_optimiser_unchanged(name: str, make_batch) -> None:
    policy, other = optimised(name), optimised(name)
    for each in (policy, other):
        each.step(make_batch([[1.0, 2.0]], staleness=[0]))
    cancels = make_batch([[1.0, 2.0], [-1.0, -2.0]], staleness=[0, 0])
    assert moved(policy, cancels) == [0.0, 0.0]
    following = make_batch([[3.0, -1.0]], staleness=[0])
    assert torch.equal(policy.step(following).direction_d, other.step(following).direction_d)


@pytest.mark.parametrize("name", NAMES)
def test_an_optimiser_resumes_bit_for_bit_from_its_state(name: str, make_batch) -> None:
    whole, resumed = optimised(name), optimised(name)
    batches = [make_batch([[1.0, -2.0 * i]], staleness=[0], rate=0.1) for i in range(1, 5)]
    for batch in batches[:2]:
        whole.step(batch)
    saved = whole.state_dict()
    expected = [whole.step(batch).direction_d.tolist() for batch in batches[2:]]
    resumed.load_state_dict(saved)
    assert [resumed.step(batch).direction_d.tolist() for batch in batches[2:]] == expected
    again = optimised(name)
    again.load_state_dict(saved)  # saving copies, and so does loading
    assert [again.step(batch).direction_d.tolist() for batch in batches[2:]] == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_step_whose_square_overflows_is_refused_and_not_stored(name: str, make_batch) -> None:
    policy, other = optimised(name), optimised(name)
    step = policy.step(make_batch([[1e30, 1.0]], staleness=[0]))
    assert not bool(torch.isfinite(step.direction_d).any())
    following = make_batch([[3.0, -1.0]], staleness=[0])
    assert torch.equal(policy.step(following).direction_d, other.step(following).direction_d)


def test_clipping_precedes_the_policy_and_the_optimiser_follows_it(make_batch) -> None:
    policy = wrapped(
        create("fedavg", dimension=2, clients=9), clip_norm=1.0, optimiser=OptimiserSettings(name="momentum", beta1=0.0)
    )
    assert moved(policy, make_batch([[30.0, 40.0]], staleness=[0])) == pytest.approx([0.6, 0.8])


def test_without_an_optimiser_no_stage_is_added() -> None:
    policy = create("fedavg", dimension=2, clients=9)
    assert wrapped(policy, optimiser=OptimiserSettings()) is policy


@pytest.mark.parametrize(
    "wrong", [{"name": "sgd"}, {"beta1": 1.0}, {"beta2": -0.1}, {"epsilon": 0.0}, {"learning_rate": 0.0}, {"tau": 1.0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        OptimiserSettings(**wrong)
