"""One round of one or two updates and one parameter, each sum written out."""

import math

import pytest
import torch

from unstale.policies import Policy, create


def policy(name: str, **settings: object) -> Policy:
    return create(name, dimension=1, clients=10, **settings)


def test_fedavg_averages_whatever_the_staleness(make_batch) -> None:
    step = policy("fedavg").step(make_batch([[4.0], [1.0]], staleness=[0, 100], examples=[3, 1]))
    assert step.direction_d.tolist() == [4.0 / 2 + 1.0 / 2]
    assert step.weights_K.tolist() == [0.5, 0.5]
    assert step.rate_factor == 1.0


def test_fedavg_by_samples_weighs_by_what_a_client_holds(make_batch) -> None:
    batch = make_batch([[4.0], [1.0]], staleness=[0, 0], examples=[3, 1])
    assert policy("fedavg", weighting="samples").step(batch).direction_d.tolist() == [
        4.0 * 3 / 4 + 1.0 * 1 / 4
    ]


def test_dynsgd_normalises_one_over_age_counted_from_one(make_batch) -> None:
    # 1 / (0 + 1) and 1 / (2 + 1) are to each other as 3 to 1.
    step = policy("dynsgd").step(make_batch([[4.0], [8.0]], staleness=[0, 2]))
    torch.testing.assert_close(step.weights_K, torch.tensor([3 / 4, 1 / 4], dtype=torch.float64))
    assert step.direction_d.tolist() == [4.0 * 3 / 4 + 8.0 * 1 / 4]


def test_sasgd_divides_each_update_by_its_age_and_the_sum_by_their_number(make_batch) -> None:
    batch = make_batch([[4.0], [8.0]], staleness=[0, 3])
    assert policy("sasgd").step(batch).direction_d.tolist() == [(4.0 / 1 + 8.0 / 4) / 2]


def test_sasgd_without_the_number_takes_a_step_k_times_larger(make_batch) -> None:
    batch = make_batch([[4.0], [8.0]], staleness=[0, 3])
    assert policy("sasgd", divide_by_k=False).step(batch).direction_d.tolist() == [4.0 / 1 + 8.0 / 4]


def test_fedbuff_damps_by_the_square_root_of_the_age(make_batch) -> None:
    batch = make_batch([[4.0], [8.0]], staleness=[0, 3])
    assert policy("fedbuff").step(batch).direction_d.tolist() == [(4.0 + 8.0 / math.sqrt(1 + 3)) / 2]


def test_fedbuff_without_staleness_is_the_average(make_batch) -> None:
    batch = make_batch([[4.0], [8.0]], staleness=[0, 3])
    assert policy("fedbuff", staleness="none").step(batch).direction_d.tolist() == [(4.0 + 8.0) / 2]


def test_twafl_weighs_by_examples_and_by_e_halves_per_round(make_batch) -> None:
    # 3 * (e/2)^0 = 3 and 1 * (e/2)^-1 = 2/e.
    step = policy("twafl").step(make_batch([[1.0], [0.0]], staleness=[5, 6], examples=[3, 1]))
    assert step.direction_d.item() == pytest.approx(3 / (3 + 2 / math.e), rel=1e-6)


def test_twafl_raw_keeps_the_loss_of_weight(make_batch) -> None:
    batch = make_batch([[1.0], [0.0]], staleness=[1, 0], examples=[3, 1])
    step = policy("twafl", normalise=False).step(batch)
    assert step.direction_d.item() == pytest.approx(3 / 4 * 2 / math.e, rel=1e-6)


def test_twafl_still_weighs_updates_whose_powers_would_underflow(make_batch) -> None:
    # (e/2)^-5000 is 0 in float64; counted from the freshest the two are 1 and 2/e.
    step = policy("twafl", weighting="equal").step(make_batch([[1.0], [0.0]], staleness=[5000, 5001]))
    assert step.direction_d.item() == pytest.approx(1 / (1 + 2 / math.e), rel=1e-6)


def test_fedasync_mixes_one_client_model_by_alpha(make_batch) -> None:
    # (1 - 0.5) * 10 + 0.5 * (6 - 0.2 * 5) = 7.5, so with rate 0.1 the direction is (10 - 7.5) / 0.1 = 25.
    model_d, base_d = torch.tensor([10.0]), torch.tensor([6.0])
    batch = make_batch(
        [[5.0]],
        staleness=[3],
        model_d=model_d,
        base_models=(base_d,),
        rate=0.1,
        local_rates_K=torch.tensor([0.2]),
    )
    step = policy("fedasync", alpha=0.5, staleness="constant").step(batch)
    assert step.direction_d.item() == pytest.approx(25.0)
    assert step.weights_K.tolist() == [0.5]


def test_fedasync_mixes_in_order_of_arrival_and_the_last_one_loses_nothing(make_batch) -> None:
    # The first client's half is halved again by the second: 0.5 * (1 - 0.5) = 0.25.
    batch = make_batch([[4.0], [8.0]], staleness=[0, 0])
    step = policy("fedasync", alpha=0.5).step(batch)
    assert step.weights_K.tolist() == [0.25, 0.5]
    assert step.direction_d.tolist() == [4.0 * 0.25 + 8.0 * 0.5]


@pytest.mark.parametrize(
    ("settings", "staleness", "lowered"),
    [
        ({"staleness": "constant"}, 50, 1.0),
        ({"staleness": "polynomial", "exponent": 1.0}, 3, 1 / 4),
        ({"staleness": "polynomial"}, 3, 1 / 2),
        ({"staleness": "hinge"}, 4, 1.0),
        ({"staleness": "hinge"}, 5, 1 / (10 * (5 - 4) + 1)),
        ({"staleness": "hinge", "a_h": 2.0, "b": 6}, 9, 1 / (2 * (9 - 6) + 1)),
    ],
)
def test_fedasync_lowers_its_share_with_staleness(
    make_batch, settings: dict[str, object], staleness: int, lowered: float
) -> None:
    step = policy("fedasync", alpha=0.6, **settings).step(make_batch([[1.0]], staleness=[staleness]))
    assert step.weights_K.item() == pytest.approx(0.6 * lowered, rel=1e-12)
