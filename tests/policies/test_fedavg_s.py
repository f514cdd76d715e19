"""FedAvg(S): the sampling, and the rounds that wait for every sampled client."""

from dataclasses import replace

import pytest
import torch

from unstale.errors import UserError
from unstale.policies import Policy, UpdateBatch, create
from unstale.seeds import Stream, stream

CLIENTS = 6
SEED = 7


def policy(**settings: object) -> Policy:
    return create("fedavg-s", dimension=1, clients=CLIENTS, seed=SEED, **settings)


def round_of(version: int, clients: list[int]) -> UpdateBatch:
    """Client i sends 2^i, so that a sum identifies its clients."""
    rows = len(clients)
    return UpdateBatch(
        version=version,
        matrix_Kd=torch.tensor([[2.0**client] for client in clients]).reshape(rows, 1),
        staleness_K=torch.zeros(rows, dtype=torch.int64),
        num_examples_K=torch.ones(rows, dtype=torch.int64),
        loss_K=torch.ones(rows),
        client_ids_K=torch.tensor(clients, dtype=torch.int64),
    )


def picked(version: int, among: int, size: int) -> list[int]:
    return stream(SEED, Stream.SELECTION, version).choice(among, size=size, replace=False).tolist()


def test_up_to_s_updates_are_averaged() -> None:
    assert policy(size=3).step(round_of(0, [0, 2, 5])).direction_d.item() == pytest.approx((1 + 4 + 32) / 3)


def test_of_more_than_s_updates_s_are_drawn() -> None:
    clients = [5, 0, 3, 1]
    step = policy(size=2).step(round_of(9, clients))
    rows = picked(9, among=4, size=2)
    assert step.weights_K.tolist() == [0.5 if row in rows else 0.0 for row in range(4)]
    assert step.direction_d.item() == sum(2.0 ** clients[row] for row in rows) / 2


@pytest.mark.parametrize(
    ("rows", "share", "size", "counted"),
    [
        (1, 0.5, 3, 1),  # half of one is none, and one counts
        (2, 0.5, 3, 1),
        (3, 0.5, 3, 1),
        (5, 0.5, 3, 2),
        (6, 0.5, 3, 3),
        (6, 0.5, 2, 2),  # S is less than half
        (6, 1.0, 6, 6),
        (5, 0.6, 6, 3),  # 0.6 * 5 is 3 in decimal numbers
        (5, 0.1, 6, 1),
    ],
)
def test_a_share_of_the_updates_counts_rounded_down(rows: int, share: float, size: int, counted: int) -> None:
    step = policy(size=size, share=share).step(round_of(4, list(range(rows))))
    drawn = picked(4, among=rows, size=counted)
    assert step.weights_K.tolist() == [pytest.approx(1 / counted) if row in drawn else 0.0 for row in range(rows)]
    assert step.direction_d.item() == pytest.approx(sum(2.0**row for row in drawn) / counted)


def test_half_of_55_and_of_100_available_clients_are_27_and_50() -> None:
    # p_min 0.1: of 100 clients 55 are available on average, min(50, floor(55 / 2)) = 27.
    half = create("fedavg-s", dimension=1, clients=120, seed=SEED, size=50, share=0.5)
    counts = [
        int((half.step(round_of(rows, [0] * rows)).weights_K > 0).sum()) for rows in (0, 1, 54, 55, 99, 100, 101, 120)
    ]
    assert counts == [0, 1, 27, 27, 49, 50, 50, 50]


def test_a_share_of_a_hundred_is_exact_in_decimal_numbers() -> None:
    # 0.29 * 100 is 28.999999999999996 in float64.
    step = create("fedavg-s", dimension=1, clients=100, seed=SEED, size=100, share=0.29).step(round_of(0, [0] * 100))
    assert int((step.weights_K > 0).sum()) == 29


def test_a_share_does_not_go_with_waiting() -> None:
    with pytest.raises(UserError, match=r"^policy 'fedavg-s': settings 'share' and 'wait_for_selected' are both set"):
        policy(size=2, share=0.5, wait_for_selected=True)
    with pytest.raises(UserError, match="are both set"):
        policy(size=2, share=0.5, profile="reference")


def test_every_update_is_equally_likely() -> None:
    subject = policy(size=2)
    versions = 600
    counts = sum(
        (subject.step(round_of(version, [0, 1, 2, 3])).weights_K > 0).to(torch.int64) for version in range(versions)
    )
    expected, deviation = versions / 2, (versions / 4) ** 0.5
    assert all(abs(count - expected) < 4 * deviation for count in counts.tolist())


def test_with_waiting_the_model_moves_at_the_last_sampled_update() -> None:
    chosen = picked(0, among=CLIENTS, size=3)
    others = [client for client in range(CLIENTS) if client not in chosen]
    subject = policy(size=3, wait_for_selected=True)
    for version, clients in enumerate([[], [chosen[0], *others], [chosen[2], chosen[0]], others]):
        step = subject.step(round_of(version, clients))
        assert not step.counts
        assert step.direction_d.tolist() == [0.0]
        assert step.weights_K.tolist() == [0.0] * len(clients)
    step = subject.step(round_of(4, [others[0], chosen[1]]))
    assert step.counts
    assert step.direction_d.item() == pytest.approx(sum(2.0**client for client in chosen) / 3)
    assert step.weights_K.tolist() == [0.0, 1 / 3]


def test_with_waiting_the_round_after_a_step_samples_again() -> None:
    subject = policy(size=2, wait_for_selected=True)
    all_clients = list(range(CLIENTS))
    for version in range(4):
        step = subject.step(round_of(version, all_clients))
        assert step.counts
        assert step.direction_d.item() == sum(2.0**c for c in picked(version, among=CLIENTS, size=2)) / 2


def test_with_waiting_the_first_update_of_a_client_counts() -> None:
    chosen = picked(0, among=CLIENTS, size=2)
    subject = policy(size=2, wait_for_selected=True)
    twice = round_of(0, [chosen[0], chosen[0]])
    subject.step(replace(twice, matrix_Kd=torch.tensor([[1.0], [100.0]])))
    subject.step(replace(twice, version=1, matrix_Kd=torch.tensor([[100.0], [100.0]])))
    step = subject.step(replace(round_of(2, [chosen[1]]), matrix_Kd=torch.tensor([[3.0]])))
    assert step.direction_d.tolist() == [(1.0 + 3.0) / 2]


def test_the_profile_reference_waits() -> None:
    assert policy(size=2, profile="reference").settings.wait_for_selected


def test_a_size_above_the_number_of_clients_is_refused() -> None:
    with pytest.raises(UserError, match=r"^setting 'size' of policy 'fedavg-s' is 7, expected at most .*, 6$"):
        policy(size=7)


def test_the_default_size_is_at_most_the_number_of_clients() -> None:
    all_clients = list(range(CLIENTS))
    assert policy().step(round_of(0, all_clients)).weights_K.tolist() == [1 / CLIENTS] * CLIENTS
    assert policy(wait_for_selected=True).step(round_of(0, all_clients)).counts
