"""FedAR by hand: one parameter, four clients unless the test says otherwise."""

import math

import pytest
import torch

from support.updates import senders
from unstale.errors import UserError
from unstale.policies import Policy, UpdateBatch, create


def policy(**settings: object) -> Policy:
    return create("fedar", dimension=1, clients=4, **settings)


def walk(subject: Policy, *rounds: list[tuple[int, float]]) -> list[float]:
    steps = (subject.step(senders(*updates, version=v)) for v, updates in enumerate(rounds))
    return [step.direction_d.item() for step in steps]


def test_the_next_model_matches_the_golden_vector() -> None:
    """tau after the round is 0, 9, 0, -, 0 for clients 0 to 4, client 3 was never seen; g(100) = 2 sqrt(100) = 20."""
    subject = create("fedar", dimension=4, clients=5)

    def step(version: int, rows: list[list[float]], clients: list[int]) -> torch.Tensor:
        count = len(clients)
        batch = UpdateBatch(
            version=version,
            matrix_Kd=torch.tensor(rows).reshape(count, 4),
            staleness_K=torch.zeros(count, dtype=torch.int64),
            num_examples_K=torch.ones(count, dtype=torch.int64),
            loss_K=torch.ones(count),
            client_ids_K=torch.tensor(clients, dtype=torch.int64),
        )
        return subject.step(batch).direction_d

    step(90, [[0.1, 0.1, 0.0, 0.0], [0.2, 0.2, 0.2, 0.2]], [0, 1])
    for version in range(91, 99):
        step(version, [], [])
    direction_d = step(99, [[1.0, 0.0, 0.0, 0.0], [0.6, 0.8, 0.0, 0.0], [0.0, -0.5, 1.5, 0.5]], [2, 0, 4])
    expected_d = torch.tensor([0.05370537, -0.21379463, 0.25620537, -0.01879463])
    model_d = torch.tensor([0.1, -0.2, 0.3, 0.0]) - 0.1 * direction_d
    torch.testing.assert_close(model_d, expected_d, atol=1e-6, rtol=0)


def test_an_absent_client_gains_weight_every_round_up_to_the_maximum() -> None:
    # rho = 1: psi = 1, 2, 3, 3, ...; two clients were seen.
    assert walk(
        policy(rho=1.0, psi_max=3.0),
        [(0, 4.0), (1, 2.0)],  # (4 + 2) / 2
        [(1, 2.0)],  # (2 * 4 + 2) / 2
        [(1, 2.0)],  # (3 * 4 + 2) / 2
        [],  # (3 * 4 + 2 * 2) / 2
        [(0, 0.0)],  # (0 + 3 * 2) / 2
    ) == [3.0, 5.0, 7.0, 8.0, 3.0]


def test_a_client_absent_beyond_the_cutoff_has_no_weight_until_it_returns() -> None:
    # convex, g(t) = 1.5 + t/4: 1.75, 2, 2.25, 2.5, ... so tau = 2 is cut off at t = 2 and not at t = 3.
    subject = policy(cutoff="convex", t0=1.5, b=4.0, rho=0.0)
    assert walk(
        subject,
        [(0, 4.0), (1, 8.0)],  # (4 + 8) / 2
        [(1, 8.0)],  # tau_0 = 1 < 2
        [(1, 8.0)],  # tau_0 = 2 < 2.25
        [(1, 8.0)],  # tau_0 = 3 >= 2.5: only client 1 is left
        [(1, 8.0)],
        [(0, 2.0)],  # client 0 has returned without its old update: (2 + 8) / 2
    ) == [6.0, 6.0, 6.0, 8.0, 8.0, 5.0]
    assert len(subject.state_dict()["cohorts"]) == 2


def test_a_round_without_weighted_clients_leaves_the_model_unchanged() -> None:
    # convex, t0 = 0.5: g(2) = 0.7 <= 1.
    assert walk(policy(cutoff="convex", t0=0.5), [], [(0, 4.0)], [], [(1, 2.0)]) == [0.0, 4.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        # tau rounds after the first, t = tau + 1
        ({}, 10),  # 2 max(sqrt t, 5): tau = 9 < 10, tau = 10 >= 10
        ({"cutoff": "convex"}, 12),  # 10 + t/10: tau = 11 < 11.2, tau = 12 >= 11.3
        ({"cutoff": "convex", "t0": 3.0, "b": 2.5}, 6),  # 3 + t/2.5: tau = 5 < 5.4, tau = 6 >= 5.8
        ({"c": 1.0, "t0": 4.0}, 2),  # max(sqrt t, 2): tau = 1 < 2, tau = 2 >= 2
        ({"cutoff": "none"}, 15),
    ],
)
def test_an_absent_client_keeps_its_weight_for_cutoff_rounds(settings: dict[str, object], rounds: int) -> None:
    directions = walk(policy(**settings), [(0, 1.0)], *([[]] * 14))
    assert [direction > 0 for direction in directions] == [tau < rounds for tau in range(15)]


def test_without_cutoff_and_growth_the_step_averages_all_seen_clients() -> None:
    subject = policy(rho=0.0, cutoff="none")
    assert walk(subject, [(0, 4.0)], [(1, 2.0)], [], [(0, 6.0), (2, 1.0)], [(1, 5.0)]) == [4.0, 3.0, 3.0, 3.0, 4.0]
    assert len(subject.state_dict()["cohorts"]) == 2, "the round's, and one of all before it"


def test_cohorts_at_the_maximum_weight_are_merged() -> None:
    # rho = 1, psi_max = 2: from tau = 1 on every weight is 2, so there are at most two cohorts.
    subject = policy(rho=1.0, psi_max=2.0, cutoff="none")
    rounds = [[(0, 4.0)], [(1, 10.0)], [(2, 8.0)], [(1, -5.25), (0, 2.75)], [(3, 19.0)]]
    by_hand = [
        4.0,
        (2 * 4.0 + 10.0) / 2,
        (2 * 4.0 + 2 * 10.0 + 8.0) / 3,
        (2 * 8.0 - 5.25 + 2.75) / 3,
        (2 * 8.0 - 2 * 5.25 + 2 * 2.75 + 19.0) / 4,
    ]
    assert walk(subject, *rounds) == pytest.approx(by_hand, rel=1e-6)
    assert len(subject.state_dict()["cohorts"]) <= 2


def test_full_participation_gives_the_average() -> None:
    """Property (g) of the appendix."""
    assert walk(policy(), *([[(i, float(i + value)) for i in range(4)] for value in (1, 5, 2)])) == [2.5, 6.5, 3.5]


def test_only_the_last_of_two_updates_of_a_client_counts() -> None:
    step = policy().step(senders((0, 100.0), (1, 2.0), (0, 6.0)))
    assert step.direction_d.item() == (2.0 + 6.0) / 2
    assert step.weights_K.tolist() == [0.0, 0.5, 0.5]


def test_large_rows_leave_no_rounding_error_in_a_cohort() -> None:
    # Client 0's row is 1e8 times as large as that of client 1, which is in its cohort and stays.
    subject = policy(rho=0.0)
    walk(subject, [(0, 1e8), (1, 1 / 3)], [(0, 0.0)])
    step = subject.step(senders(version=2))
    torch.testing.assert_close(step.direction_d, torch.tensor([1 / 6]), atol=0, rtol=1e-6)


def test_a_run_keeps_at_most_one_cohort_per_round_of_the_cutoff() -> None:
    subject = create("fedar", dimension=1, clients=50)
    for version in range(60):
        subject.step(senders((version % 50, 1.0), version=version))
    assert len(subject.state_dict()["cohorts"]) == math.ceil(2 * math.sqrt(60))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"c": 10.5}, r"'c' is 10.5, expected at most 2 sqrt\(t0\) = 10"),
        ({"c": 5.0, "t0": 4.0}, r"'c' is 5, expected at most 2 sqrt\(t0\) = 4"),
        ({"b": 2.0, "cutoff": "convex"}, "'b' of policy 'fedar' is 2.0, expected a number > 2"),
        ({"t0": 0.0}, "'t0' of policy 'fedar' is 0.0"),
        ({"psi_max": 0.5}, "'psi_max' of policy 'fedar' is 0.5"),
    ],
)
def test_settings_that_would_readmit_an_expired_client_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        policy(**settings)


def test_a_step_reports_the_clients_that_count_and_how_long_seen_clients_are_inactive() -> None:
    # convex, g(t) = 1.5 + t/4: client 0, inactive for 3 rounds, does not count from t = 4 on.
    subject = policy(cutoff="convex", t0=1.5, b=4.0, rho=0.0)
    assert subject.step(senders(version=0)).metrics == {"counted_clients": 0}
    rounds = [[(0, 4.0), (1, 8.0)], [(1, 8.0)], [], [(1, 8.0)]]
    steps = [subject.step(senders(*updates, version=v)).metrics for v, updates in enumerate(rounds)]
    assert [step["counted_clients"] for step in steps] == [2, 2, 2, 1]
    assert [step["inactive_rounds_max"] for step in steps] == [0, 1, 2, 3]
    assert [step["inactive_rounds_mean"] for step in steps] == [0, 0.5, 1.5, 1.5]
