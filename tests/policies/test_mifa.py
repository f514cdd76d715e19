"""MIFA by hand: one parameter, three clients unless the test says otherwise."""

import pytest
import torch

from support.updates import GOLDEN, GOLDEN_MODEL, GOLDEN_RATE, senders
from unstale.policies import Policy, UpdateBatch, create


def policy(**settings: object) -> Policy:
    return create("mifa", dimension=1, clients=3, **settings)


def walk(subject: Policy, *rounds: UpdateBatch) -> list[tuple[float, bool]]:
    """Direction and whether the round counts."""
    return [(step.direction_d.item(), step.counts) for step in map(subject.step, rounds)]


def test_the_next_model_matches_the_golden_vector() -> None:
    subject = create("mifa", dimension=4, clients=5, init="zeros")
    old_rows = torch.zeros(5, 4)
    old_rows[0], old_rows[1] = torch.tensor([0.1, 0.1, 0.0, 0.0]), torch.tensor([0.2, 0.2, 0.2, 0.2])
    subject.load_state_dict({"rows_Nd": old_rows, "sum_d": old_rows.double().sum(0), "missing": [], "dropping": False})
    model_d = GOLDEN_MODEL - GOLDEN_RATE * subject.step(GOLDEN).direction_d
    expected_d = torch.tensor([0.06400000, -0.21000000, 0.26600000, -0.01400000])
    torch.testing.assert_close(model_d, expected_d, atol=1e-6, rtol=0)


def test_from_zeros_the_first_round_steps_and_absent_clients_count_as_last_seen() -> None:
    assert walk(
        policy(init="zeros"),
        senders((0, 3.0)),  # (3 + 0 + 0) / 3
        senders((1, 6.0)),  # (3 + 6 + 0) / 3
        senders((0, 0.0), (2, 3.0)),  # (0 + 6 + 3) / 3
        senders(),  # an empty round: as before
    ) == [(1.0, True), (3.0, True), (3.0, True), (3.0, True)]


def test_by_default_the_first_step_follows_the_first_update_of_the_last_client() -> None:
    assert walk(
        policy(),
        senders((0, 3.0)),
        senders(),
        senders((0, 6.0), (1, 9.0)),  # client 2 has not sent an update yet
        senders((2, 0.0)),  # (6 + 9 + 0) / 3
        senders((1, 0.0)),  # (6 + 0 + 0) / 3
    ) == [(0.0, False), (0.0, False), (0.0, False), (5.0, True), (2.0, True)]


def test_a_first_round_with_all_clients_is_forced_as_published() -> None:
    assert walk(policy(), senders((2, 3.0), (0, 3.0), (1, 6.0))) == [(4.0, True)]


def test_waiting_drops_updates_until_all_clients_are_present_then_fills_the_memory() -> None:
    assert walk(
        policy(init="wait"),
        senders((0, 100.0), (1, 100.0)),
        senders((2, 100.0)),  # every client was available once; the updates are dropped
        senders((0, 3.0)),
        senders((1, 6.0), (2, 9.0)),  # G is full; updating starts in the next round
        senders((0, 0.0)),  # (0 + 6 + 9) / 3
    ) == [(0.0, False), (0.0, False), (0.0, False), (0.0, False), (5.0, True)]


def test_the_profile_reference_waits() -> None:
    assert policy(profile="reference").settings.init == "wait"


def test_every_stored_update_weighs_one_over_the_number_of_clients() -> None:
    step = policy(init="zeros").step(senders((0, 3.0), (1, 3.0)))
    assert step.weights_K.tolist() == [1 / 3, 1 / 3]
    assert policy().step(senders((0, 3.0))).weights_K.tolist() == [0.0], "nothing, in a round that does not step"


def test_the_last_of_two_updates_of_a_client_is_stored() -> None:
    subject = policy(init="zeros")
    step = subject.step(senders((0, 100.0), (1, 3.0), (0, 6.0)))
    assert step.direction_d.item() == (6.0 + 3.0) / 3
    assert step.weights_K.tolist() == [0.0, 1 / 3, 1 / 3]
    assert subject.state_dict()["rows_Nd"].flatten().tolist() == [6.0, 3.0, 0.0]


@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_large_early_rows_leave_no_rounding_error_in_the_running_sum(scale: float) -> None:
    """A running sum in float32 would retain rounding errors of the size of 1e8 * 2^-24 = 6."""
    clients, dimension = 20, 50
    subject = create("mifa", dimension=dimension, clients=clients, init="zeros")
    generator = torch.Generator().manual_seed(1)
    naive_d, rows_Nd = torch.zeros(dimension), torch.zeros(clients, dimension)
    for version in range(100):
        ids_K = torch.randperm(clients, generator=generator)[:5]
        if version >= 95:
            ids_K = torch.arange(5) + 5 * (version % 4)
        matrix_Kd = torch.randn(5, dimension, generator=generator) * (scale if version < 10 else 1.0)
        naive_d += matrix_Kd.sum(0) - rows_Nd[ids_K].sum(0)
        rows_Nd[ids_K] = matrix_Kd
        step = subject.step(
            UpdateBatch(
                version=version,
                matrix_Kd=matrix_Kd,
                staleness_K=torch.zeros(5, dtype=torch.int64),
                num_examples_K=torch.ones(5, dtype=torch.int64),
                loss_K=torch.ones(5),
                client_ids_K=ids_K,
            )
        )
    assert float(rows_Nd.abs().max()) < 10, "every client has sent an update since"
    expected_d = (rows_Nd.double().sum(0) / clients).float()
    torch.testing.assert_close(step.direction_d, expected_d, atol=1e-7, rtol=1e-6)
    if scale > 1:
        assert float((naive_d / clients - expected_d).abs().max()) > 1e-2, "what float64 is for"


def test_the_memory_is_allocated_by_the_context() -> None:
    asked: list[tuple[int, int]] = []

    def allocate(rows: int, columns: int) -> torch.Tensor:
        asked.append((rows, columns))
        return torch.zeros(rows, columns)

    create("mifa", dimension=7, clients=3, allocate=allocate)
    assert asked == [(3, 7)]
