"""Shapley values against games with known values, and the worth of updates against a run."""

from collections.abc import Callable
from math import sqrt

import pytest

from unstale.config import Settings
from unstale.errors import UserError
from unstale_papers.record import Record
from unstale_papers.runners import measure
from unstale_papers.runners.shapley import shapley_values

SETTINGS = Settings(
    clients=5,
    rounds=4,
    evaluate_every=4,
    model={"name": "logreg"},
    partition={"name": "classes", "classes": 2},
    training={"steps": 3, "batch_size": 32, "learning_rate": 0.1},
    policy={"name": "mifa", "settings": {"init": "force"}},
    trigger={"name": "sync", "k": None},
    run={"durability": "off"},
    simulation={"backend": "loop"},
)

Worth = Callable[[frozenset[int]], float]


def of_digits(silent: int, settings: Settings = SETTINGS) -> Record:
    return measure("Shapley", settings, {"silent": silent}, on_progress=lambda _: None)


def gloves(those: frozenset[int]) -> float:
    """Players 0 and 1 own a left glove each, 2 the right one; a pair is worth 1."""
    return float(2 in those and len(those) > 1)


def uneven(those: frozenset[int]) -> float:
    return sqrt(sum((player + 1) ** 2 for player in those))


def test_the_owner_of_the_only_right_glove_gets_two_thirds() -> None:
    """In the six orders, the right glove completes a pair in four, each left one in one."""
    assert shapley_values(3, gloves) == pytest.approx([1 / 6, 1 / 6, 4 / 6])


def test_in_an_additive_game_each_value_is_the_contribution() -> None:
    gains = [0.5, -0.25, 3.0, 0.0]
    assert shapley_values(4, lambda those: 7 + sum(gains[i] for i in those)) == pytest.approx(gains)


@pytest.mark.parametrize("worth", [gloves, uneven])
def test_values_sum_to_the_worth_of_all_minus_that_of_the_empty_set(worth: Worth) -> None:
    values = shapley_values(3, worth)
    assert sum(values) == pytest.approx(worth(frozenset({0, 1, 2})) - worth(frozenset()))


def test_symmetric_players_have_equal_values() -> None:
    values = shapley_values(4, lambda those: len(those & {1, 3}) * (1.0 + (0 in those)))
    assert values[1] == pytest.approx(values[3])


def test_a_null_player_has_value_zero() -> None:
    values = shapley_values(4, lambda those: uneven(those - {2}))
    assert values[2] == 0


def test_each_set_is_evaluated_once() -> None:
    asked: list[frozenset[int]] = []

    def worth(those: frozenset[int]) -> float:
        asked.append(those)
        return 0.0

    shapley_values(4, worth)
    assert len(asked) == len(set(asked)) == 16


def test_without_silent_clients_the_last_model_is_mifas() -> None:
    run = measure("run", SETTINGS, {}, on_progress=lambda _: None)
    assert of_digits(0).found["accuracy"] == run.accuracy_E[-1]


def test_the_share_is_of_all_clients_values_without_their_signs() -> None:
    found = of_digits(2).found
    values = found["Shapley values"]
    assert len(values) == 5
    assert found["Shapley value"] == values[0]
    assert found["Shapley share"] == values[0] / sum(map(abs, values))


def test_a_silent_client_keeps_its_first_update_and_changes_the_values() -> None:
    all_but_one, longer = of_digits(3).found, of_digits(30).found
    assert all_but_one == longer
    assert all_but_one["Shapley values"] != of_digits(0).found["Shapley values"]


def test_progress_goes_from_0_to_1() -> None:
    shares: list[float] = []
    measure("Shapley", SETTINGS, {"silent": 1}, on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_too_many_clients_are_refused() -> None:
    many = SETTINGS.model_copy(update={"clients": 20})
    with pytest.raises(UserError, match=r"clients is 20, whose sets are too many .* at most 12"):
        of_digits(0, many)
