import pytest

from unstale.config.metrics import main_metric
from unstale.config.settings import Settings


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
