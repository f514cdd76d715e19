"""The point at which a policy ends while clients are absent, beside the optimum and the point that its weights predict.

Source: ours, docs/methods/experiments.md#theory-experiments

Legend: N clients, R rounds, d parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unstale.config import build
from unstale.config.settings import Settings
from unstale.errors import unknown_name
from unstale.policies.fedar import FedArSettings
from unstale.policies.registry import settings_of
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners import analytic
from unstale_papers.theory.predictions import available_weights, fedar_weights
from unstale_papers.theory.problems import Floats

LAST = 5  # the last fifth of the rounds counts for means
FIRST = 5  # the first fifth of the rounds does not count for the order
PRECISE = 1e-9  # squared distances below it are rounding of float32

EQUAL = ("mifa", "fedvarp")
"""Policies in whose fixed point all clients count alike."""


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """Simulate, and compare the end with the optimum x* and with the predicted point w, where

        sum_i m_i grad f_i(w) = 0,   m_i the mean weight of client i in a step

    options: of `analytic.run`. found: `squared distance`, |x - x*|^2 averaged over the last fifth of the rounds;
    `predicted squared distance`, |w - x*|^2; `unexplained share`, |y - w|^2 / |y - x*|^2 for the mean y of the last
    fifth of the models, None where w is x*; `order in T`, the slope of log |x - x*|^2 over the logarithm of the round
    from a fifth of the rounds on, until it is below 1e-9, None with constant steps. Raises UserError.
    """
    started_s = now_s()
    trajectory = analytic.run(settings, options, on_progress)
    problem, distances_R = trajectory.problem, trajectory.squared_distances_R
    rounds = len(distances_R)
    last = max(1, rounds // LAST)
    predicted_d = problem.minimum(mean_weights(settings))
    mean_d = np.stack(trajectory.models[-last:]).mean(axis=0)
    bias = _squared(predicted_d - problem.optimum_d)
    decays = settings.training.schedule.name != "constant"
    return Record(
        found={
            "squared distance": float(distances_R[-last:].mean()),
            "predicted squared distance": bias,
            "unexplained share": _squared(mean_d - predicted_d) / _squared(mean_d - problem.optimum_d)
            if bias > PRECISE
            else None,
            "order in T": order_in_rounds(distances_R) if decays else None,
            "curves": {"squared distance": analytic.curve(distances_R)},
            **trajectory.notes,
        },
        seconds=now_s() - started_s,
    )


def mean_weights(settings: Settings) -> Floats:
    """m_i of a policy, up to a common factor, [N]. Raises UserError for a policy without a closed form."""
    available = build.coordinator_settings(settings).availability or (1.0,) * settings.clients
    policy = settings.policy
    if policy.name in EQUAL:
        return np.ones(settings.clients)
    if policy.name == "fedavg":
        return available_weights(np.array(available))
    if policy.name == "fedar":
        chosen = settings_of(policy.name, policy.settings, profile=policy.profile, synchronous=True)
        assert isinstance(chosen, FedArSettings)
        return fedar_weights(np.array(available), chosen.rho, chosen.psi_max)
    raise unknown_name("policy with a known fixed point", policy.name, (*EQUAL, "fedavg", "fedar"))


def order_in_rounds(distances_R: Floats) -> float | None:
    """The slope of logarithms from a fifth of the rounds on, as long as distances are no rounding."""
    rounded = np.flatnonzero(distances_R < PRECISE)
    end = int(rounded[0]) if len(rounded) else len(distances_R)
    rounds_R = np.arange(1 + len(distances_R) // FIRST, end + 1)
    if len(rounds_R) < 2:
        return None
    return analytic.slope(np.log(rounds_R), np.log(distances_R[rounds_R - 1]))


def _squared(vector_d: Floats) -> float:
    return float(vector_d @ vector_d)
