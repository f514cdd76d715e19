"""Measures of runs on problems with a known optimum, as rows for `table_metrics`. Pure."""

from typing import Literal

Better = Literal["higher", "lower"]

THEORY: tuple[tuple[str, str, int, Better, str, bool], ...] = (
    (
        "squared distance",
        "",
        3,
        "lower",
        "Squared distance of the model to the optimum, mean over the last fifth of the rounds",
        True,
    ),
    (
        "predicted squared distance",
        "",
        3,
        "lower",
        "Squared distance to the optimum of the point that the policy's mean weights predict",
        False,
    ),
    (
        "unexplained share",
        "",
        2,
        "lower",
        "Squared distance of the mean last model to the predicted point, over that to the optimum",
        False,
    ),
    (
        "order in T",
        "",
        3,
        "lower",
        "Slope of the logarithm of the squared distance over that of the round, from a fifth of the run on until 1e-9",
        False,
    ),
    (
        "exponent in K",
        "",
        3,
        "lower",
        "Slope of the logarithm of the mean squared gradient over that of the updates per round",
        True,
    ),
    (
        "exponent in T",
        "",
        3,
        "lower",
        "Slope of the logarithm of the mean squared gradient over that of the rounds of a run",
        True,
    ),
    (
        "mean squared gradient",
        "",
        3,
        "lower",
        "Squared length of the objective's gradient, mean over the rounds of the run with the greatest K or T",
        True,
    ),
    (
        "speed-up",
        "times",
        1,
        "higher",
        "Square of the ratio of the mean squared gradients with one and with the most updates per round: the ratio of "
        "the rounds to the same value, where the order is 1 / sqrt(K T)",
        True,
    ),
    (
        "mean staleness",
        "rounds",
        2,
        "higher",
        "Mean of s + 1 over the aggregated updates, without those of the first rounds",
        False,
    ),
    ("mean staleness over N/K", "", 3, "higher", "The same over N/K", False),
    (
        "first cycle over N/K",
        "",
        3,
        "higher",
        "Mean of s + 1 over the updates of the first N/K rounds, over N/K",
        False,
    ),
    ("rate", "", 3, "higher", "Fall of the logarithm of the distance to the optimum per round", True),
    ("predicted rate", "", 3, "higher", "The same of the mean recursion with staleness", False),
    ("rate over the predicted one", "", 3, "higher", "Measured over predicted rate", False),
    ("rate without staleness", "", 3, "higher", "The rate if every update were fresh", False),
)
"""Name, unit, digits, better direction, definition, and whether it ranks methods."""
