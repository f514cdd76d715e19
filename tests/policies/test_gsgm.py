"""GSGM over whole cycles, by hand: one parameter, four clients, alpha 1/2."""

import math

import pytest
import torch

from support.updates import senders
from unstale.policies import Policy, UpdateBatch, create


def policy(**settings: object) -> Policy:
    return create("gsgm", dimension=1, clients=4, alpha=0.5, **settings)


def round_of(**gradients: float) -> UpdateBatch:
    """`round_of(c0=8.0, c3=4.0)`: the updates of clients 0 and 3, in this order of arrival."""
    return senders(*((int(name[1:]), gradient) for name, gradient in gradients.items()))


def directions(subject: Policy, *rounds: UpdateBatch) -> list[float]:
    return [subject.step(batch).direction_d.item() for batch in rounds]


def test_the_momentum_is_the_average_over_the_last_cycle() -> None:
    assert directions(
        policy(),
        round_of(c0=8.0, c1=4.0),  # q = 6;                A = (2/4) 6 = 3
        round_of(c2=2.0, c3=0.0),  # q = 1;                A = 3 + (2/4) 1 = 3.5, then M = 3.5, A = 0
        round_of(c1=1.0, c3=3.0),  # q = 2 + 3.5/2 = 3.75; A = 1.875
        round_of(c0=5.0),  # q = 5 + 3.5/2 = 6.75;         A = 1.875 + (1/4) 6.75 = 3.5625
        round_of(c2=1.0),  # q = 1 + 3.5/2 = 2.75;         A = 3.5625 + (1/4) 2.75 = 4.25, then M = 4.25
        round_of(c2=0.0),  # q = 4.25/2
    ) == [6.0, 1.0, 3.75, 6.75, 2.75, 2.125]


def test_in_the_released_code_the_momentum_never_reaches_the_model() -> None:
    subject = policy(released=True)
    assert directions(
        subject,
        round_of(c0=8.0, c1=4.0),  # q = 6;                A = 6/4 = 1.5
        round_of(c2=2.0, c3=0.0),  # the last one: M = 1.5, A = 0; q = 1 + 1.5/2 = 1.75; A = 1.75/4 = 0.4375
        round_of(c1=1.0, c3=3.0),  # q = 2 + 1.5/2 = 2.75; A = 0.4375 + 2.75/4 = 1.125
    ) == [6.0, 1.0, 2.0]
    state = subject.state_dict()
    assert state["momentum_d"].tolist() == [1.5]
    assert state["sum_d"].tolist() == [1.125]
    assert state["missing"] == [0, 2]


def test_the_profile_reference_matches_the_released_code() -> None:
    assert policy(profile="reference").settings.released
    assert not policy(profile="reference", released=False).settings.released


def test_a_client_counts_once_in_a_cycle() -> None:
    subject = policy()
    subject.step(round_of(c0=8.0))
    step = subject.step(senders((0, 100.0), (1, 4.0), (2, 2.0), (1, 100.0)))
    assert step.direction_d.tolist() == [(4.0 + 2.0) / 2]
    assert step.weights_K.tolist() == [0.0, 0.5, 0.5, 0.0]
    assert subject.state_dict()["missing"] == [3]


@pytest.mark.parametrize("released", [False, True])
def test_a_round_of_only_repeated_clients_ends_the_cycle(released: bool) -> None:
    # A = 8/4 = 2; then M = 2, and the round is the first of the next cycle: q = 8 + 2/2 = 9, A = 9/4.
    subject = policy(released=released)
    subject.step(round_of(c0=8.0))
    step = subject.step(senders((0, 8.0), (0, 100.0)))
    assert step.direction_d.tolist() == [8.0 if released else 9.0]
    assert step.weights_K.tolist() == [1.0, 0.0]
    state = subject.state_dict()
    assert (state["momentum_d"].item(), state["sum_d"].item()) == (8 / 4, 9 / 4)
    assert state["missing"] == [1, 2, 3]


def test_an_empty_round_keeps_the_model_and_the_cycle() -> None:
    subject = policy()
    subject.step(round_of(c0=8.0))
    before = subject.state_dict()
    step = subject.step(senders())
    assert step.direction_d.tolist() == [0.0]
    assert subject.state_dict() == before


def test_with_full_participation_the_momentum_is_the_last_step() -> None:
    all_clients = round_of(c0=4.0, c1=4.0, c2=4.0, c3=4.0)
    assert directions(policy(), all_clients, all_clients, all_clients) == [4.0, 4.0 + 4.0 / 2, 4.0 + 6.0 / 2]


@pytest.mark.parametrize("released", [False, True])
def test_a_step_that_overflows_float32_does_not_stay_in_the_momentum(released: bool) -> None:
    subject = policy(released=released)
    subject.load_state_dict({**subject.state_dict(), "momentum_d": torch.tensor([3e38])})
    subject.step(senders((0, math.inf if released else 3e38)))
    assert subject.state_dict()["sum_d"].tolist() == [0.0]
    assert subject.state_dict()["missing"] == [1, 2, 3]
