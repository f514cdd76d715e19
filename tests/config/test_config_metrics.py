"""The main metric of a run, and the value of a metric that ends it."""

from math import nan

import pytest

from unstale.config import Given, Settings
from unstale.config.load import load
from unstale.config.metrics import ACCURACY, Target, main_metric, target
from unstale.errors import UserError
from unstale.training.measured import MainMetric


def settings_until(text: str) -> Settings:
    return load(options={"run.until": Given(value=text, origin="--until")})


@pytest.mark.parametrize(
    ("text", "expected", "higher_is_better"),
    [
        ("mae < 0.2", Target("mae", "<", 0.2), False),
        (" val/f1>=9e-1 ", Target("val/f1", ">=", 0.9), True),
        ("loss<=-3", Target("loss", "<=", -3.0), False),
    ],
)
def test_a_target_is_a_name_a_sign_and_a_number_and_its_metric_is_the_main_one(
    text: str, expected: Target, higher_is_better: bool
) -> None:
    settings = settings_until(text)
    assert target(settings) == expected
    assert main_metric(settings) == MainMetric(expected.name, higher_is_better)


@pytest.mark.parametrize(
    ("objective", "name", "higher_is_better"),
    [
        ("classification", "accuracy", True),
        ("regression", "mae", False),
        ("language-model", "perplexity", False),
        ("no.such.module:Objective", "loss", False),
    ],
)
def test_the_metric_that_is_shown_first_is_that_of_the_objective(
    objective: str, name: str, higher_is_better: bool
) -> None:
    main = main_metric(Settings(objective={"name": objective}))
    assert (main.name, main.higher_is_better) == (name, higher_is_better)


def test_a_run_without_a_target_shows_its_accuracy_first() -> None:
    assert target(Settings()) is None
    assert main_metric(Settings()) == ACCURACY


@pytest.mark.parametrize("text", ["mae", "mae = 3", "mae < x", "mae < nan", "mae < inf", "MAE < 1", "< 3", "a b < 3"])
def test_an_invalid_target_is_reported_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError) as caught:
        settings_until(text)
    assert str(caught.value) == (
        f"--until: run.until is {text!r}, expected the name of a metric, one of < <= > >=, and a number, such as "
        "mae < 0.2 or null"
    )


@pytest.mark.parametrize(
    ("sign", "reached"), [("<", [True, False, False]), ("<=", [True, True, False]), (">", [False, False, True])]
)
def test_a_target_is_reached_on_its_side(sign: str, reached: list[bool]) -> None:
    assert [Target("mae", sign, 0.5).is_reached({"mae": value}) for value in (0.25, 0.5, 0.75)] == reached


def test_a_target_is_not_reached_by_another_metric_or_by_nan() -> None:
    assert not Target("mae", "<", 0.5).is_reached({"rmse": 0.1})
    assert not Target("mae", "<", 0.5).is_reached({"mae": nan})
