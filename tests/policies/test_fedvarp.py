"""FedVARP by hand: one parameter, four clients unless the test says otherwise."""

import torch

from support.updates import GOLDEN, GOLDEN_MODEL, GOLDEN_RATE, senders
from unstale.policies import Policy, UpdateBatch, create


def policy() -> Policy:
    return create("fedvarp", dimension=1, clients=4)


def directions(subject: Policy, *rounds: UpdateBatch) -> list[float]:
    return [subject.step(batch).direction_d.item() for batch in rounds]


def test_the_next_model_matches_the_golden_vector() -> None:
    subject = create("fedvarp", dimension=4, clients=5)
    old_rows = torch.zeros(5, 4)
    old_rows[0], old_rows[1] = torch.tensor([0.1, 0.1, 0.0, 0.0]), torch.tensor([0.2, 0.2, 0.2, 0.2])
    subject.load_state_dict({"rows_Nd": old_rows, "sum_d": old_rows.double().sum(0)})
    model_d = GOLDEN_MODEL - GOLDEN_RATE * subject.step(GOLDEN).direction_d
    expected_d = torch.tensor([0.04400000, -0.21266667, 0.24600000, -0.02066667])
    torch.testing.assert_close(model_d, expected_d, atol=1e-6, rtol=0)


def test_the_average_is_corrected_by_the_stored_updates_of_the_others() -> None:
    assert directions(
        policy(),
        senders((0, 8.0), (1, 4.0)),  # ybar = 0, so (8 + 4) / 2; then y = (8, 4, 0, 0), ybar = 3
        senders((0, 2.0), (2, 6.0)),  # 3 + ((2 - 8) + (6 - 0)) / 2 = 3; then y = (2, 4, 6, 0), ybar = 3
        senders((3, 4.0)),  # 3 + (4 - 0) = 7; then y = (2, 4, 6, 4), ybar = 4
        senders(),  # ybar
    ) == [6.0, 3.0, 7.0, 4.0]


def test_full_participation_gives_the_average() -> None:
    """Property (h) of the appendix: ybar + mean(g - y) = mean(g)."""
    all_clients = [[(i, float(i + value)) for i in range(4)] for value in (1, 5, 2)]
    assert directions(policy(), *(senders(*each) for each in all_clients)) == [2.5, 6.5, 3.5]


def test_both_updates_of_a_client_count_and_the_last_is_stored() -> None:
    subject = policy()
    subject.step(senders((0, 4.0), (1, 0.0)))  # y = (4, 0, 0, 0), ybar = 1
    # 1 + ((7 - 4) + (10 - 0) + (1 - 4)) / 3 = 1 + 10/3
    step = subject.step(senders((0, 7.0), (2, 10.0), (0, 1.0)))
    torch.testing.assert_close(step.direction_d, torch.tensor([1 + 10 / 3]))
    assert step.weights_K.tolist() == [1 / 3] * 3
    assert subject.state_dict()["rows_Nd"].flatten().tolist() == [1.0, 0.0, 10.0, 0.0]
    assert directions(subject, senders()) == [11.0 / 4]
