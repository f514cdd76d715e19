"""The stage `mean-of-updates`: a step as long as the updates of its round are on average."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from unstale.policies import Policy, Step, create
from unstale.policies.stages import wrapped
from unstale.settings.learning import OptimiserSettings

ROWS = [[3.0, 4.0], [0.0, 1.0], [-6.0, 8.0]]
"""Of lengths 5, 1 and 10, whose mean is 16/3."""


def subject(name: str, dimension: int = 2, **settings: Any) -> Policy[Any]:
    return wrapped(create(name, dimension=dimension, clients=9, **settings), norm="mean-of-updates")


def moved(step: Step) -> Tensor:
    """What the model moves by at rate 1."""
    return step.rate_factor * step.direction_d


def along(x: float, y: float, length: float) -> Tensor:
    return torch.tensor([x, y]) * (length / math.hypot(x, y))


def test_fedavg_steps_along_the_mean_with_the_mean_length(make_batch) -> None:
    """The mean of the rows is (-1, 13/3)."""
    step = subject("fedavg").step(make_batch(ROWS, staleness=[0, 0, 0]))
    torch.testing.assert_close(moved(step), along(-1, 13 / 3, 16 / 3))
    assert step.weights_K.tolist() == [1 / 3] * 3


def test_dynsgd_steps_along_its_weighted_mean_with_the_plain_mean_length(make_batch) -> None:
    """Staleness 0, 1 and 3: weights 4/7, 2/7 and 1/7, and 7 times the sum is (6, 26)."""
    step = subject("dynsgd").step(make_batch(ROWS, staleness=[0, 1, 3]))
    torch.testing.assert_close(moved(step), along(6, 26, 16 / 3))


def test_refl_steps_along_its_weighted_mean_with_the_plain_mean_length(make_batch) -> None:
    """Fresh is (3, 4). L = |(0,1) - (3,4)|^2 = 18 and |(-6,8) - (3,4)|^2 = 97, the largest."""
    weights = (1.0, 0.65 / 2 + 0.35 * (1 - math.exp(-18 / 97)), 0.65 / 4 + 0.35 * (1 - math.exp(-1)))
    x, y = (sum(w * row[at] for w, row in zip(weights, ROWS, strict=True)) for at in (0, 1))
    step = subject("refl", beta=0.35).step(make_batch(ROWS, staleness=[0, 1, 3]))
    torch.testing.assert_close(moved(step), along(x, y, 16 / 3))


def test_fedhist_without_utilities_weighs_by_staleness_and_has_the_same_length(make_batch) -> None:
    """lambda 0: weights (e/2)^-s, and INA is its own. There is no past direction in the first round."""
    weights = [(math.e / 2) ** -s for s in (0, 1, 3)]
    x, y = (sum(w * row[at] for w, row in zip(weights, ROWS, strict=True)) for at in (0, 1))
    policy = create("fedhist", dimension=2, clients=9, utility_weight=0.0)
    step = policy.step(make_batch(ROWS, staleness=[0, 1, 3]))
    torch.testing.assert_close(moved(step), along(x, y, 16 / 3))
    assert step.metrics == {}


def test_fedavg_with_this_length_is_fedhist_with_ina_alone(make_batch) -> None:
    ours = subject("fedavg")
    theirs = create("fedhist", dimension=2, clients=9, egs=False, haa="off")
    for version in range(3):
        batch = make_batch([[1.0, version], [version - 2.0, 0.5]], staleness=[0, version])
        torch.testing.assert_close(moved(ours.step(batch)), moved(theirs.step(batch)))


def test_with_one_update_the_step_is_that_update(make_batch) -> None:
    step = subject("fedbuff").step(make_batch([[3.0, 4.0]], staleness=[8]))  # weight 1/3
    torch.testing.assert_close(moved(step), torch.tensor([3.0, 4.0]))


def test_updates_that_cancel_are_not_scaled_to_full_length(make_batch) -> None:
    rows = [[0.1, 0.7], [-0.1, -0.7]]
    for noise in (0.0, 1e-9):
        batch = make_batch([rows[0], [rows[1][0] + noise, rows[1][1]]], staleness=[0, 0])
        assert subject("fedavg").step(batch).rate_factor == 1.0


def test_updates_of_zeros_and_of_infinite_length_are_passed_on(make_batch) -> None:
    assert subject("fedavg").step(make_batch([[0.0, 0.0]] * 2, staleness=[0, 0])).rate_factor == 1.0
    assert subject("fedavg").step(make_batch([[math.inf, 0.0]] * 2, staleness=[0, 0])).rate_factor == 1.0


def test_long_updates_have_a_length_in_float64(make_batch) -> None:
    step = subject("fedavg").step(make_batch([[3e30, 4e30], [3e30, -4e30]], staleness=[0, 0]))
    assert step.rate_factor == pytest.approx(5 / 3, rel=1e-6)


def test_a_rate_factor_of_the_policy_stays(make_batch) -> None:
    """WKAFL divides the rate by 1 + gamma * min s = 1.2; its direction is the only update, of length 5."""
    step = subject("wkafl", gamma=0.1).step(make_batch([[3.0, 4.0]], staleness=[2]))
    torch.testing.assert_close(moved(step), torch.tensor([3.0, 4.0]) / 1.2)


def test_the_length_is_of_clipped_updates_and_the_optimiser_has_the_result(make_batch) -> None:
    """Clipped to 2, the rows have lengths 2, 1 and 2; momentum without decay of the mean is the step itself."""
    clipped = [[1.2, 1.6], [0.0, 1.0], [-1.2, 1.6]]
    policy = wrapped(
        create("fedavg", dimension=2, clients=9),
        clip_norm=2.0,
        norm="mean-of-updates",
        optimiser=OptimiserSettings(name="momentum", beta1=0.0),
    )
    x, y = (sum(row[at] for row in clipped) for at in (0, 1))
    torch.testing.assert_close(moved(policy.step(make_batch(ROWS, staleness=[0, 0, 0]))), along(x, y, 5 / 3))


def test_a_round_in_which_the_policy_waits_is_passed_on(make_batch) -> None:
    policy = subject("mifa", init="force")
    step = policy.step(make_batch([[3.0, 4.0]], staleness=[0]))
    assert (step.counts, step.rate_factor) == (False, 1.0)


def test_without_the_stage_it_is_the_policy_itself() -> None:
    inner = create("fedavg", dimension=2, clients=9)
    assert wrapped(inner, norm="none") is inner
    assert inner.column_wise
    assert not wrapped(inner, norm="mean-of-updates").column_wise
