"""The rate per round at which a policy approaches the optimum, and the distance at which it ends.

Source: FedAsync (Xie et al., 2019), docs/methods/policies.md#fedasync

Legend: R rounds.
"""

from collections.abc import Callable, Mapping
from math import log
from typing import Any

import numpy as np

from unstale.config.settings import Settings
from unstale.policies.client_models import FedAsyncSettings
from unstale.policies.registry import settings_of
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners import analytic
from unstale_papers.theory.predictions import mixing_rate
from unstale_papers.theory.problems import Floats

BEGUN = 1e-2  # of the first squared distance, from which on only the slowest direction is left
ABOVE_END = 100.0  # of the last squared distance, down to which the rate is that of the approach


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """Simulate FedAsync on quadratics.

    options: of `analytic.run`. found: `squared distance`, |x - x*|^2 averaged over the last fifth of the rounds;
    `rate`, the fall of log |x - x*| per round, None where it ends before a hundredth of the first one; `predicted
    rate`, of `predictions.mixing_rate`; `rate over the predicted one`; `rate without staleness`,
    -log(1 - alpha (1 - (1 - eta_l mu)^H)). Raises UserError.
    """
    started_s = now_s()
    trajectory = analytic.run(settings, options, on_progress)
    distances_R = trajectory.squared_distances_R
    end = float(distances_R[-max(1, len(distances_R) // 5) :].mean())
    policy, training = settings.policy, settings.training
    chosen = settings_of(policy.name, policy.settings, profile=policy.profile, synchronous=False)
    assert isinstance(chosen, FedAsyncSettings)
    contraction = (1 - training.learning_rate * options["curvature"][0]) ** (training.steps or 1)
    rate = _rate(distances_R, end)
    predicted = mixing_rate(chosen.alpha, contraction, settings.clients, chosen.exponent)
    return Record(
        found={
            "squared distance": end,
            "rate": rate,
            "predicted rate": predicted,
            "rate over the predicted one": None if rate is None else rate / predicted,
            "rate without staleness": -log(1 - chosen.alpha * (1 - contraction)),
            "curves": {"squared distance": analytic.curve(distances_R)},
            **trajectory.notes,
        },
        seconds=now_s() - started_s,
    )


def _rate(distances_R: Floats, end: float) -> float | None:
    """Half the slope of the logarithm of the squared distance between `BEGUN` and `ABOVE_END`."""
    below = np.flatnonzero(distances_R < BEGUN * distances_R[0])
    ended = np.flatnonzero(distances_R < ABOVE_END * end)
    if not len(below) or not len(ended) or ended[0] - below[0] < 2:
        return None
    rounds_R = np.arange(below[0], ended[0])
    found = analytic.slope(rounds_R, np.log(distances_R[rounds_R]))
    return None if found is None else -found / 2
