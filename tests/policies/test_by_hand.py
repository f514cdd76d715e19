"""One round of one or two updates and one parameter, each sum written out."""

import math
from dataclasses import replace

import pytest
import torch

from unstale.policies import Policy, create
from unstale.policies.registry import settings_of

PER_UPDATE = ("matrix_Kd", "staleness_K", "num_examples_K", "loss_K", "client_ids_K")


def policy(name: str, **settings: object) -> Policy:
    return create(name, dimension=1, clients=10, **settings)


def test_fedavg_ignores_staleness(make_batch) -> None:
    step = policy("fedavg").step(make_batch([[4.0], [1.0]], staleness=[0, 100], examples=[3, 1]))
    assert step.direction_d.tolist() == [4.0 / 2 + 1.0 / 2]
    assert step.weights_K.tolist() == [0.5, 0.5]
    assert step.rate_factor == 1.0


def test_fedavg_by_samples_weights_by_the_examples_of_a_client(make_batch) -> None:
    batch = make_batch([[4.0], [1.0]], staleness=[0, 0], examples=[3, 1])
    assert policy("fedavg", weighting="samples").step(batch).direction_d.tolist() == [4.0 * 3 / 4 + 1.0 * 1 / 4]


@pytest.mark.parametrize("name", ["fedprox", "moon"])
def test_the_server_of_fedprox_and_moon_averages_as_fedavg_does(name: str, make_batch) -> None:
    batch = make_batch([[4.0], [1.0]], staleness=[0, 100], examples=[3, 1])
    assert policy(name).step(batch).direction_d.tolist() == [4.0 / 2 + 1.0 / 2]
    settings = settings_of(name, {}, synchronous=True)
    assert policy(name, **dict(settings)).step(batch).direction_d.tolist() == [4.0 * 3 / 4 + 1.0 * 1 / 4]
    assert policy(name).training == name


def test_fedavg_is_divides_by_availability_and_by_the_number_of_clients(make_batch) -> None:
    probabilities = (0.5, 0.25, *[1.0] * 8)
    step = policy("fedavg-is", probabilities=probabilities).step(make_batch([[4.0], [1.0]], staleness=[0, 0]))
    assert step.direction_d.item() == pytest.approx((4.0 / 0.5 + 1.0 / 0.25) / 10)
    assert step.weights_K.tolist() == [1 / (10 * 0.5), 1 / (10 * 0.25)]


def test_fedavg_is_with_certain_availability_is_the_average(make_batch) -> None:
    batch = make_batch([[float(client)] for client in range(1, 11)], staleness=[0] * 10)
    step = policy("fedavg-is", probabilities=1.0).step(batch)
    assert step.direction_d.item() == pytest.approx(sum(range(1, 11)) / 10)


def test_scaffold_averages_and_moves_its_variate_by_the_share_of_all_clients(make_batch) -> None:
    subject = policy("scaffold")
    sent = subject.extra_d
    batch = make_batch([[4.0], [8.0]], staleness=[0, 0], extra_Kd=torch.tensor([[1.0], [2.0]]))
    assert subject.step(batch).direction_d.tolist() == [(4.0 + 8.0) / 2]
    assert subject.extra_d.item() == pytest.approx((1.0 + 2.0) / 10)
    assert sent.tolist() == [0.0], "what clients are being sent does not change under their hands"
    subject.step(batch)
    assert subject.extra_d.item() == pytest.approx(2 * (1.0 + 2.0) / 10)


def test_an_empty_round_leaves_scaffolds_variate_unchanged(make_batch) -> None:
    subject = policy("scaffold")
    batch = make_batch([[4.0]], staleness=[0], extra_Kd=torch.tensor([[1.0]]))
    subject.step(batch)
    before = subject.extra_d
    subject.step(replace(batch, **{name: getattr(batch, name)[:0] for name in PER_UPDATE}, extra_Kd=None))
    assert subject.extra_d is before


def test_scaffolds_variate_is_unchanged_when_the_next_one_overflows_float32(make_batch) -> None:
    subject = create("scaffold", dimension=1, clients=1)
    batch = make_batch([[1.0], [1.0]], staleness=[0, 0], extra_Kd=torch.tensor([[3e38], [3e38]]))
    assert subject.step(batch).direction_d.tolist() == [1.0]
    assert subject.extra_d.tolist() == [0.0]


def test_direct_applies_stale_updates_unchanged(make_batch) -> None:
    batch = make_batch([[4.0], [8.0]], staleness=[0, 50])
    assert policy("direct").step(batch).direction_d.tolist() == [(4.0 + 8.0) / 2]


def test_direct_in_model_form_steps_to_the_average_of_the_clients_models(make_batch) -> None:
    # w_end = 10 - 0.5 * 4 = 8 and 6 - 0.5 * 8 = 2, on average 5; and 10 - 0.5 * 10 = 5.
    now_d, base_d = torch.tensor([10.0]), torch.tensor([6.0])
    batch = make_batch([[4.0], [8.0]], staleness=[0, 3], model_d=now_d, base_models=(now_d, base_d), rate=0.5)
    subject = policy("direct", stale_form="model")
    assert subject.needs_base_models
    assert subject.step(batch).direction_d.tolist() == [10.0]


def test_direct_in_model_form_divides_an_update_by_the_rate_of_its_client(make_batch) -> None:
    # w_end = 6 - 0.25 * 8 = 4, so u = 10 - 4 = 6 and g = 6 / 0.25.
    batch = make_batch(
        [[8.0]],
        staleness=[3],
        model_d=torch.tensor([10.0]),
        base_models=(torch.tensor([6.0]),),
        rate=0.5,
        local_rates_K=torch.tensor([0.25]),
    )
    assert policy("direct", stale_form="model").step(batch).direction_d.tolist() == [6.0 / 0.25]


def test_weighted_halves_an_update_every_twenty_rounds(make_batch) -> None:
    batch = make_batch([[4.0], [8.0], [16.0]], staleness=[0, 20, 40])
    assert policy("weighted").step(batch).direction_d.item() == pytest.approx((4.0 + 8.0 / 2 + 16.0 / 4) / 3)


def test_weighted_halves_an_update_every_half_life(make_batch) -> None:
    step = policy("weighted", half_life=2.0).step(make_batch([[4.0]], staleness=[6]))
    assert step.direction_d.tolist() == [4.0 / 8]


def test_dynsgd_normalises_one_over_age_counted_from_one(make_batch) -> None:
    # 1 / (0 + 1) and 1 / (2 + 1) are to each other as 3 to 1.
    step = policy("dynsgd").step(make_batch([[4.0], [8.0]], staleness=[0, 2]))
    torch.testing.assert_close(step.weights_K, torch.tensor([3 / 4, 1 / 4], dtype=torch.float64))
    assert step.direction_d.tolist() == [4.0 * 3 / 4 + 8.0 * 1 / 4]


def test_sasgd_divides_each_update_by_its_age_and_the_sum_by_their_number(make_batch) -> None:
    batch = make_batch([[4.0], [8.0]], staleness=[0, 3])
    assert policy("sasgd").step(batch).direction_d.tolist() == [(4.0 / 1 + 8.0 / 4) / 2]


def test_sasgd_without_the_divisor_takes_a_step_k_times_larger(make_batch) -> None:
    batch = make_batch([[4.0], [8.0]], staleness=[0, 3])
    assert policy("sasgd", divide_by_k=False).step(batch).direction_d.tolist() == [4.0 / 1 + 8.0 / 4]


def test_fedbuff_divides_by_the_square_root_of_the_age(make_batch) -> None:
    batch = make_batch([[4.0], [8.0]], staleness=[0, 3])
    assert policy("fedbuff").step(batch).direction_d.tolist() == [(4.0 + 8.0 / math.sqrt(1 + 3)) / 2]


def test_fedbuff_without_staleness_is_the_average(make_batch) -> None:
    batch = make_batch([[4.0], [8.0]], staleness=[0, 3])
    assert policy("fedbuff", staleness="none").step(batch).direction_d.tolist() == [(4.0 + 8.0) / 2]


def test_twafl_weighs_by_examples_and_by_e_halves_per_round(make_batch) -> None:
    # 3 * (e/2)^0 = 3 and 1 * (e/2)^-1 = 2/e.
    step = policy("twafl").step(make_batch([[1.0], [0.0]], staleness=[5, 6], examples=[3, 1]))
    assert step.direction_d.item() == pytest.approx(3 / (3 + 2 / math.e), rel=1e-6)


def test_twafl_raw_does_not_normalise_the_weights(make_batch) -> None:
    batch = make_batch([[1.0], [0.0]], staleness=[1, 0], examples=[3, 1])
    step = policy("twafl", normalise=False).step(batch)
    assert step.direction_d.item() == pytest.approx(3 / 4 * 2 / math.e, rel=1e-6)


def test_twafl_still_weights_updates_whose_powers_would_underflow(make_batch) -> None:
    # (e/2)^-5000 is 0 in float64; counted from the freshest the two are 1 and 2/e.
    step = policy("twafl", weighting="equal").step(make_batch([[1.0], [0.0]], staleness=[5000, 5001]))
    assert step.direction_d.item() == pytest.approx(1 / (1 + 2 / math.e), rel=1e-6)


def test_fedasync_mixes_one_client_model_by_alpha(make_batch) -> None:
    # (1 - 0.5) * 10 + 0.5 * (6 - 0.2 * 5) = 7.5, so with rate 0.1 the direction is (10 - 7.5) / 0.1 = 25.
    model_d, base_d = torch.tensor([10.0]), torch.tensor([6.0])
    batch = make_batch(
        [[5.0]], staleness=[3], model_d=model_d, base_models=(base_d,), rate=0.1, local_rates_K=torch.tensor([0.2])
    )
    step = policy("fedasync", alpha=0.5, staleness="constant").step(batch)
    assert step.direction_d.item() == pytest.approx(25.0)
    assert step.weights_K.tolist() == [0.5]


def test_fedasync_mixes_in_order_of_arrival_with_the_last_update_in_full(make_batch) -> None:
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
