"""The policies against the golden vectors."""

from dataclasses import replace

import pytest
import torch

from support.updates import GOLDEN, GOLDEN_MODEL, GOLDEN_RATE
from unstale.policies import create


def next_model(name: str, settings: dict[str, object]) -> torch.Tensor:
    step = create(name, dimension=4, clients=5, **settings).step(GOLDEN)
    return GOLDEN_MODEL - GOLDEN_RATE * step.rate_factor * step.direction_d


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("fedavg", {"weighting": "uniform"}, (0.04666667, -0.21000000, 0.25000000, -0.01666667)),
        ("fedavg", {"weighting": "samples"}, (0.05333333, -0.22333333, 0.25000000, -0.01666667)),
        ("dynsgd", {}, (0.02571429, -0.21571429, 0.27857143, -0.00714286)),
        ("dynsgd", {"normalise": False}, (0.05666667, -0.20916667, 0.28750000, -0.00416667)),
        ("sasgd", {}, (0.05666667, -0.20916667, 0.28750000, -0.00416667)),
        ("twafl", {"weighting": "equal"}, (0.03245464, -0.21824971, 0.27200425, -0.00933192)),
        ("twafl", {"normalise": False}, (0.06126057, -0.22279208, 0.28008517, -0.00663828)),
        ("fedprox", {}, (0.04666667, -0.21000000, 0.25000000, -0.01666667)),
        ("moon", {}, (0.04666667, -0.21000000, 0.25000000, -0.01666667)),
        ("direct", {}, (0.04666667, -0.21000000, 0.25000000, -0.01666667)),
        ("refl", {}, (0.03044164, -0.20686497, 0.26758901, -0.01080366)),
        (
            "fedavg-is",
            {"probabilities": (0.5, 1.0, 0.8, 0.3, 0.25)},
            (0.05100000, -0.19200000, 0.18000000, -0.04000000),
        ),
        ("fedbuff", {}, (0.05252453, -0.21052285, 0.27500000, -0.00833333)),
        ("fedasync", {}, (0.05800000, -0.20875879, 0.25500000, -0.01500000)),
    ],
)
def test_the_next_model_matches_the_publication(
    name: str, settings: dict[str, object], expected: tuple[float, ...]
) -> None:
    torch.testing.assert_close(next_model(name, settings), torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("dynsgd", {}, (0.57142857, 0.28571429, 0.14285714)),
        ("twafl", {"weighting": "equal"}, (0.46859139, 0.34477028, 0.18663833)),
        ("refl", {}, (0.56306883, 0.22085790, 0.21607327)),
    ],
)
def test_the_weights_match_the_publication(name: str, settings: dict[str, object], expected: tuple[float, ...]) -> None:
    weights_K = create(name, dimension=4, clients=5, **settings).step(GOLDEN).weights_K
    torch.testing.assert_close(weights_K, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


def test_gsgm_steps_along_the_average_and_the_momentum() -> None:
    policy = create("gsgm", dimension=4, clients=5, alpha=0.9)
    policy.load_state_dict({**policy.state_dict(), "momentum_d": torch.tensor([0.5, 0.0, 0.0, 0.0])})
    actual = GOLDEN_MODEL - GOLDEN_RATE * policy.step(GOLDEN).direction_d
    expected = torch.tensor((0.00166667, -0.21000000, 0.25000000, -0.01666667))
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


def test_scaffolds_variate_matches_the_publication() -> None:
    policy = create("scaffold", dimension=4, clients=5)
    policy.load_state_dict({"control_d": torch.tensor([0.1, 0.0, 0.0, 0.0])})
    changes = torch.tensor([[0.2, 0.0, 0.0, 0.0], [0.0, 0.3, 0.0, 0.0], [0.0, 0.0, 0.1, 0.0]])
    policy.step(replace(GOLDEN, extra_Kd=changes))
    torch.testing.assert_close(policy.extra_d, torch.tensor([0.14, 0.06, 0.02, 0.0]), atol=1e-6, rtol=0)


def test_weighted_applies_a_quarter_of_an_update_two_half_lives_late(make_batch) -> None:
    update_d = [0.1, -0.2, 0.0, -0.05]
    batch = make_batch([[u / GOLDEN_RATE for u in update_d]], staleness=[40], rate=GOLDEN_RATE)
    actual = GOLDEN_MODEL - GOLDEN_RATE * create("weighted", dimension=4, clients=5).step(batch).direction_d
    expected = torch.tensor((0.07500000, -0.15000000, 0.30000000, 0.01250000))
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


def test_fedasync_with_the_current_model_as_every_base_equals_no_bases() -> None:
    policy = create("fedasync", dimension=4, clients=5)
    same = replace(GOLDEN, model_d=GOLDEN_MODEL, base_models=(GOLDEN_MODEL, GOLDEN_MODEL, GOLDEN_MODEL))
    equal = replace(
        GOLDEN, model_d=GOLDEN_MODEL, base_models=(GOLDEN_MODEL, GOLDEN_MODEL.clone(), GOLDEN_MODEL.clone())
    )
    expected = policy.step(GOLDEN).direction_d
    torch.testing.assert_close(policy.step(same).direction_d, expected, atol=0, rtol=0)
    torch.testing.assert_close(policy.step(equal).direction_d, expected, atol=1e-6, rtol=0)
