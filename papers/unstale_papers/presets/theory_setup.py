"""Shared parts of the presets on theorems: problems, settings and sources.

Source: ours, docs/methods/experiments.md#theory-experiments
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from unstale.config.settings import Settings
from unstale_papers.preset import Source

QUADRATIC: Mapping[str, Any] = MappingProxyType(
    {"objective": "quadratic", "dimension": 10, "heterogeneity": 1.0, "curvature": [0.5, 2.0]}
)
LOGISTIC: Mapping[str, Any] = MappingProxyType({"objective": "logistic", "dimension": 10, "heterogeneity": 1.0})
EQUAL_CLIENTS = {"heterogeneity": 0.0}

PROBLEM = Source(
    key="objective",
    value="mean of quadratics (x - b_i)^T A_i (x - b_i) / 2",
    tag="[P]",
    why="The eigenvalues of each A_i are between 0.5 and 2, and its axes random. b_i is normal around a common centre. "
    "The optimum is the solution of a linear system in float64.",
)
FIRST = Source(key="first model", value="0", tag="[P]")
PRECISION = Source(
    key="precision",
    value="gradients in float64, models and updates in float32",
    tag="[P]",
    why="The policies, the coordinator and the simulator are the ordinary ones, whose vectors are float32: squared "
    "distances below about 1e-10 are rounding.",
)


def settings_of(policy: str, chosen: Mapping[str, Any], training: Mapping[str, Any], **others: Any) -> Settings:
    """Settings of a run without a data set. Clients send gradients, if `training` does not say otherwise."""
    rounds = others["rounds"]
    return Settings(
        policy={"name": policy, "settings": dict(chosen)},
        training={"name": "gradient", "steps": None, **training},
        evaluate_every=rounds,
        **others,
    )
