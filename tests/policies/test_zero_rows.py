"""A gradient of exactly 0 is an update like any other (docs/decisions/0017): no policy divides by its length."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unstale.policies import Policy, UpdateBatch, create, names
from unstale.policies.stages import wrapped
from unstale.settings.learning import OptimiserSettings

DIMENSION, CLIENTS = 5, 9
PROBABILITIES = {"fedavg-is": {"probabilities": 0.5}}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, PROBABILITIES.get(name, {})) for name in names()),
    ("wkafl", {"zero_gradient": "similar"}),
    ("wkafl", {"zero_gradient": "similar", "similarity_min": -1.0, "stage_two_round": 0, "clip_bound": 0.1}),
    ("wkafl", {"momentum": "aggregate", "stage_two_round": 0, "clip_bound": 0.1, "threshold": "strict"}),
    ("wkafl", {"no_gradient_selection": True}),
    ("wkafl", {"no_staleness": True}),
    ("fedhist", {"ina_norms": "fused", "h": 1}),
    ("fedhist", {"ina": False, "h": 2}),
    ("fedhist", {"egs": False, "h": 1}),
    ("fedhist", {"haa": "off"}),
    ("gsgm", {"released": True}),
    ("sasgd", {"divide_by_k": False}),
    ("twafl", {"normalise": False, "weighting": "examples"}),
    ("krum", {"selected": 3}),
]


@st.composite
def rounds(draw: st.DrawFn) -> list[UpdateBatch]:
    """Some rounds of rows that are 0 or standard normal; also all of one round, or of all rounds, are 0."""
    made = []
    for version in range(draw(st.integers(1, 5))):
        count = draw(st.integers(1, CLIENTS))
        is_zero_K = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        matrix_Kd = torch.randn(count, DIMENSION, generator=torch.Generator().manual_seed(draw(st.integers(0, 2**32))))
        matrix_Kd[torch.tensor(is_zero_K)] = 0.0
        late = draw(st.lists(st.integers(0, version), min_size=count, max_size=count))
        made.append(
            UpdateBatch(
                version=version,
                matrix_Kd=matrix_Kd,
                staleness_K=torch.tensor(late),
                num_examples_K=torch.full((count,), 7),
                loss_K=torch.zeros(count),
                client_ids_K=torch.tensor(draw(st.permutations(range(CLIENTS)))[:count]),
                extra_Kd=torch.zeros(count, DIMENSION),
                rate=0.1,
            )
        )
    return made


def finite(policy: Policy[Any], batches: list[UpdateBatch]) -> bool:
    steps = [policy.step(batch) for batch in batches]
    return all(
        bool(torch.isfinite(step.direction_d).all() and torch.isfinite(step.weights_K).all())
        and math.isfinite(step.rate_factor)
        for step in steps
    )


@pytest.mark.parametrize(("name", "chosen"), VARIANTS)
@settings(max_examples=15, deadline=None)
@given(batches=rounds())
def test_rows_of_zeros_leave_every_step_finite(name: str, chosen: dict[str, Any], batches: list[UpdateBatch]) -> None:
    assert finite(create(name, dimension=DIMENSION, clients=CLIENTS, **chosen), batches)


@pytest.mark.parametrize("optimiser", ["momentum", "adam", "yogi"])
@settings(max_examples=15, deadline=None)
@given(batches=rounds())
def test_rows_of_zeros_leave_every_stage_finite(optimiser: str, batches: list[UpdateBatch]) -> None:
    inner = create("fedavg", dimension=DIMENSION, clients=CLIENTS)
    assert finite(wrapped(inner, clip_norm=0.1, optimiser=OptimiserSettings(name=optimiser)), batches)


@pytest.mark.parametrize(("name", "chosen"), VARIANTS)
def test_a_round_of_only_zeros_leaves_the_model_unchanged(name: str, chosen: dict[str, Any], make_batch: Any) -> None:
    policy = create(name, dimension=2, clients=3, **chosen)
    for version in range(3):
        batch = make_batch([[0.0, 0.0]] * 3, staleness=[0] * 3, version=version, extra_Kd=torch.zeros(3, 2))
        step = policy.step(batch)
        assert step.direction_d.tolist() == [0.0, 0.0]


# Three clients, all fresh, g = (3, 0), (0, 4) and (0, 0). Their average is e = (1, 4/3), of length 5/3; the cosines
# with it are 3 / (3 * 5/3) = 0.6, 4 * 4/3 / (4 * 5/3) = 0.8, and for the zero vector 0, or 1 by WKAFL's option.

AVERAGE = [1.0, 4 / 3]


def exponentials(*cosines: float) -> list[float]:
    raw = [math.exp(10 * cosine) for cosine in cosines]  # beta is 10
    return [one / sum(raw) for one in raw]


UNLIKE, LIKE = exponentials(0.6, 0.8), exponentials(0.6, 0.8, 1.0)


@pytest.mark.parametrize(
    ("name", "chosen", "direction", "weights"),
    [
        ("fedavg", {}, AVERAGE, [1 / 3] * 3),
        ("sasgd", {"divide_by_k": True}, AVERAGE, [1 / 3] * 3),
        ("twafl", {"normalise": True}, AVERAGE, [1 / 3] * 3),
        ("gsgm", {}, AVERAGE, [1 / 3] * 3),
        ("dynsgd", {}, AVERAGE, [1 / 3] * 3),
        ("fedbuff", {}, AVERAGE, [1 / 3] * 3),
        ("wkafl", {"zero_gradient": "dissimilar"}, [3 * UNLIKE[0], 4 * UNLIKE[1]], [*UNLIKE, 0.0]),
        ("wkafl", {"zero_gradient": "similar"}, [3 * LIKE[0], 4 * LIKE[1]], LIKE),
        # FedHist scales its average to the mean length of the rows, (3 + 4 + 0) / 3: 7/5 of what it is.
        ("fedhist", {}, [1.4, 28 / 15], [1 / 3] * 3),
        ("fedhist", {"ina": False}, AVERAGE, [1 / 3] * 3),
        ("coordinate-median", {}, [0.0, 0.0], None),
    ],
)
def test_a_row_of_zeros_counts_by_hand(
    name: str, chosen: dict[str, Any], direction: list[float], weights: list[float] | None, make_batch: Any
) -> None:
    policy = create(name, dimension=2, clients=3, **chosen)
    step = policy.step(make_batch([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]], staleness=[0, 0, 0]))
    assert step.direction_d.tolist() == pytest.approx(direction)
    if weights is not None:
        assert step.weights_K.tolist() == pytest.approx(weights)


@pytest.mark.parametrize("name", ["geometric-median", "krum"])
def test_a_majority_of_zero_rows_gives_a_zero_step(name: str, make_batch: Any) -> None:
    rows = [[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    step = create(name, dimension=2, clients=5).step(make_batch(rows, staleness=[0] * 5))
    assert step.direction_d.tolist() == [0.0, 0.0]


def test_clipping_leaves_a_row_of_zeros_unchanged(make_batch: Any) -> None:
    # (3, 4), which is 5 long, is cut to (0.6, 0.8); the average with (0, 0) is half of that.
    policy = wrapped(create("fedavg", dimension=2, clients=2), clip_norm=1.0)
    step = policy.step(make_batch([[3.0, 4.0], [0.0, 0.0]], staleness=[0, 0]))
    assert step.direction_d.tolist() == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize("zero_gradient", ["dissimilar", "similar"])
def test_with_momentum_wkafl_s_zero_gradient_points_along_the_last_estimate(
    zero_gradient: str, make_batch: Any
) -> None:
    # Equation 4 comes before the cosine: gt = 0 + 0.5 * (2, 0) and (2, 0) + 0.5 * (2, 0), both along e = (2, 0).
    policy = create("wkafl", dimension=2, clients=2, alpha=0.5, zero_gradient=zero_gradient)
    policy.step(make_batch([[2.0, 0.0]], staleness=[0]))
    step = policy.step(make_batch([[0.0, 0.0], [2.0, 0.0]], staleness=[0, 0], version=1))
    assert step.weights_K.tolist() == [0.5, 0.5]
    assert step.direction_d.tolist() == [2.0, 0.0]


def test_a_round_of_zeros_in_fedhist_s_history_has_no_dissimilarity(make_batch: Any) -> None:
    # The history is (0, 0), whose cosine with anything is 0: (1, 0) + 0.1 * (0, 0), of length 1 unscaled.
    policy = create("fedhist", dimension=2, clients=3, h=5)
    policy.step(make_batch([[0.0, 0.0]], staleness=[0]))
    assert policy.step(make_batch([[1.0, 0.0]], staleness=[0], version=1)).direction_d.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("norms", "direction"), [("raw", [0.0, 0.0]), ("fused", [0.5, 0.0])])
def test_a_round_of_zeros_moves_fedhist_by_its_history_where_fused_lengths_count(
    norms: str, direction: list[float], make_batch: Any
) -> None:
    # gt = 0 + 0.25 * (2, 0); INA makes it as long as the mean of |g|, which is 0, or of |gt|, which it is.
    policy = create("fedhist", dimension=2, clients=3, h=5, alpha=0.25, ina_norms=norms)
    policy.step(make_batch([[2.0, 0.0]], staleness=[0]))
    step = policy.step(make_batch([[0.0, 0.0]], staleness=[0], version=1))
    assert step.direction_d.tolist() == direction


def test_a_row_of_zeros_has_the_utility_of_cosine_0(make_batch: Any) -> None:
    # Round 0 is judged in round 1 by all updates from version 0: (2, 0), (0, 0), (1, 0), on average (1, 0). With
    # tau 1 the utilities are (1 - 0.3) * (1 - 2/e) * 3 and (0 - 0.3) * 2/e * 3, of which gamma = 0.2 counts.
    policy = create("fedhist", dimension=2, clients=3, h=1, gamma=0.2, similarity_min=0.3)
    policy.step(make_batch([[2.0, 0.0], [0.0, 0.0]], staleness=[0, 0]))
    late = make_batch([[1.0, 0.0]], staleness=[1], version=1)
    policy.step(replace(late, client_ids_K=torch.tensor([2])))
    old = 2 / math.e
    expected = [0.2 * 0.7 * (1 - old) * 3, 0.2 * -0.3 * old * 3, 0.0]
    assert policy.state_dict()["utility_N"] == pytest.approx(expected)
