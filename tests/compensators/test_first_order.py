"""First-order compensation: by hand, by the oracle, and in rounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from oracles import averages
from oracles.inversion_oracle import AdaptiveFirstOrder
from support.compensation import context, made, numbers, received, stale_round
from unstale.compensators import LocalSteps, Outcome


def played(subject, round_) -> Outcome:
    return subject.take(round_, subject.make(round_))


def test_one_update_by_hand():
    # u = 0.1 g. u~ = u + 4 u u (w_t - w_b), over 0.1 again: g~ = g + 4 * 0.1 g g (w_t - w_b).
    # g = (1, -2, 0), w_t - w_b = (0.5, -1, 3): (1 + 0.4 * 0.5, -2 + 0.4 * 4 * -1, 0) = (1.2, -3.6, 0).
    update = received(vector_d=torch.tensor([1.0, -2.0, 0.0]), base_d=torch.tensor([0.5, 1.0, -3.0]))
    outcome = played(made("first-order"), stale_round(update, model_d=torch.tensor([1.0, 0.0, 0.0])))
    assert outcome.vectors[0].tolist() == pytest.approx([1.2, -3.6, 0.0])
    (compensated,) = outcome.updates
    assert (compensated.method, compensated.share, compensated.iterations, compensated.disparity) == (
        "first-order",
        1.0,
        None,
        None,
    )


@pytest.mark.parametrize("lambda_u", [0.0, 0.5, 4.0])
def test_a_constant_lambda_is_the_oracles(lambda_u):
    updates = [received(client_id, local_rate=rate) for client_id, rate in ((0, 0.1), (1, 0.03))]
    round_ = stale_round(*updates)
    outcome = played(made("first-order", lambda_u=lambda_u), round_)
    for place, update in enumerate(updates):
        expected = averages.first_order(
            update.local_rate * update.vector_d.double().numpy(),
            round_.model_d.double().numpy(),
            update.base_d.double().numpy(),
            lambda_u,
        )
        np.testing.assert_allclose(update.local_rate * outcome.vectors[place].numpy(), expected, atol=1e-6)


def test_with_lambda_0_an_update_is_unchanged_to_the_bit():
    update = received()
    outcome = played(made("first-order", lambda_u=0.0), stale_round(update))
    assert torch.equal(outcome.vectors[0], update.vector_d)


def test_the_original_lambda_is_in_units_of_a_local_step():
    # 2.21: lambda = lambda_u eta_l k. With eta_l = 0.01 and k = 5, 0.04 / (0.01 * 5) = 0.8.
    update = received(local_rate=0.01)
    round_ = stale_round(update)
    h_d = update.vector_d / 5  # mean gradient of a local step
    h_d = h_d + 0.04 * h_d * h_d * (round_.model_d - update.base_d)
    outcome = played(made("first-order", lambda_u=0.8), round_)
    torch.testing.assert_close(outcome.vectors[0], 5 * h_d, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("steps", "k"),
    [
        (LocalSteps(steps=5), 5),
        (LocalSteps(epochs=2, batch_size=3), 6),  # 2 ceil(8 / 3)
        (LocalSteps(batch_size=4), 1),
    ],
    ids=str,
)
def test_an_adaptive_lambda_is_the_oracles_over_several_rounds(steps, k):
    subject = made("first-order", context(steps=steps), strength="adaptive")
    oracle = AdaptiveFirstOrder()
    for version in (2, 3, 4):
        updates = [received(client_id, base_version=version - 2, staleness=2) for client_id in (0, 1)]
        round_ = stale_round(*updates, version=version)
        outcome = played(subject, round_)
        for place, update in enumerate(updates):
            u_d = update.local_rate * update.vector_d
            expected_d = oracle.update(u_d, round_.model_d, update.base_d, rate=update.local_rate, steps=k)
            found_d = update.local_rate * outcome.vectors[place].double()
            torch.testing.assert_close(found_d, expected_d, atol=1e-6, rtol=1e-5)


def test_the_adaptive_strength_is_that_of_the_squares_that_came_before_the_update_and_its_own():
    # d = 1, k = 1, decay 1/2, lambda_0 = 1. Fresh g = 2: MS = 2. Stale g = 4: MS = 1 + 8 = 9, drift 6:
    # 4 + 1/3 * 16 * 6 = 36. Then a fresh g = 1: MS = 5, and a stale g = 1: MS = 3, drift 6: 1 + 6 / sqrt(3).
    subject = made("first-order", context(steps=LocalSteps(steps=1)), strength="adaptive", decay=0.5, lambda_0=1.0)

    def update(g: float, staleness: int):
        return received(vector_d=torch.tensor([g]), base_d=torch.zeros(1), staleness=staleness)

    model_d = torch.tensor([6.0])
    first = played(subject, stale_round(update(2.0, 0), update(4.0, 1), model_d=model_d))
    second = played(subject, stale_round(update(1.0, 0), update(1.0, 1), model_d=model_d))
    assert list(first.vectors) == list(second.vectors) == [1]
    assert first.vectors[1].item() == pytest.approx(36.0, rel=1e-5)
    assert second.vectors[1].item() == pytest.approx(1 + 6 / 3**0.5, rel=1e-5)


@pytest.mark.parametrize("strength", ["constant", "adaptive"])
def test_fresh_updates_stay(strength):
    fresh, stale = received(0, base_version=3, staleness=0), received(1)
    outcome = played(made("first-order", strength=strength), stale_round(fresh, stale))
    assert list(outcome.vectors) == [1]
    assert [compensated.method for compensated in outcome.updates] == ["none", "first-order"]


def test_an_update_without_a_base_is_unchanged_and_noted():
    gone = [received(client_id, is_kept=False) for client_id in (0, 2)]
    outcome = played(made("first-order"), stale_round(gone[0], received(1), gone[1]))
    assert list(outcome.vectors) == [1]
    assert [compensated.method for compensated in outcome.updates] == ["none", "first-order", "none"]
    assert dict(outcome.fallbacks) == {"no-base": 2}
    assert list(outcome.notes) == [
        "the base versions of some updates are no longer kept; these updates are not compensated"
    ]


def test_a_constant_lambda_keeps_no_state():
    subject = made("first-order")
    before = subject.state_dict()
    played(subject, stale_round(received()))
    assert subject.state_dict() == before == {"squares_d": None}


def test_it_continues_from_its_state_to_the_bit():
    rounds = [
        stale_round(received(0, base_version=version), received(1, base_version=version, staleness=0))
        for version in range(4)
    ]
    subject, other = (made("first-order", strength="adaptive") for _ in range(2))
    for round_ in rounds[:2]:
        played(subject, round_)
    played(other, stale_round(received(5)))
    other.load_state_dict(subject.state_dict())
    for round_ in rounds[2:]:
        assert torch.equal(played(subject, round_).vectors[0], played(other, round_).vectors[0])


def test_a_state_is_a_copy():
    subject, other = (made("first-order", strength="adaptive") for _ in range(2))
    played(subject, stale_round(received(0)))
    state = subject.state_dict()
    before = state["squares_d"].clone()
    other.load_state_dict(state)
    for one in (subject, other):
        played(one, stale_round(received(1)))
    assert torch.equal(state["squares_d"], before)


def test_its_arguments_are_not_written_to():
    update = received()
    round_ = stale_round(update)
    before = [tensor.clone() for tensor in (update.vector_d, update.base_d, round_.model_d)]
    played(made("first-order", strength="adaptive"), round_)
    after = (update.vector_d, update.base_d, round_.model_d)
    assert all(torch.equal(*pair) for pair in zip(after, before, strict=True))


def test_the_same_round_is_the_same_to_the_bit():
    round_ = stale_round(received(0), received(1))
    first, second = (played(made("first-order", strength="adaptive"), round_).vectors for _ in range(2))
    assert all(torch.equal(first[place], second[place]) for place in (0, 1))


def test_a_large_update_is_bent_more_than_a_small_one():
    # The correction is by the square: twice the update, four times the correction.
    update = received(vector_d=numbers(123, scale=0.1))
    round_ = stale_round(update, replace(update, vector_d=2 * update.vector_d))
    outcome = played(made("first-order"), round_)
    corrections = [outcome.vectors[place] - round_.updates[place].vector_d for place in (0, 1)]
    torch.testing.assert_close(corrections[1], 4 * corrections[0], atol=1e-6, rtol=1e-4)
