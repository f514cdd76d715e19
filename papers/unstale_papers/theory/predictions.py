"""Closed forms beside which runs on known problems are measured.

Source: ours, docs/methods/experiments.md#theory-experiments

Legend: N clients.
"""

from math import exp, log

import numpy as np
from numpy.polynomial.legendre import leggauss

from unstale_papers.theory.problems import Floats

_TAIL = 1e-16  # probability of absences that are not summed


def fedar_weights(available_N: Floats, rho: float, psi_max: float) -> Floats:
    """Mean weights of FedAR without a cutoff: of client i, which is available with probability p_i in each round,

        E psi_i = sum_{tau >= 0} p_i (1 - p_i)^tau min((tau + 1)^rho, psi_max)

    available_N: p_i, in (0, 1].
    """
    least = float(available_N.min())
    rounds = 1 if least == 1 else 1 + int(log(_TAIL) / log(1 - least))
    tau_T = np.arange(rounds)
    absent_NT = available_N[:, None] * (1 - available_N[:, None]) ** tau_T
    return np.asarray(absent_NT @ np.minimum((tau_T + 1.0) ** rho, psi_max))


def available_weights(available_N: Floats) -> Floats:
    """Mean weights of an average over the available clients A:

        E [i in A] / |A| = p_i E 1 / (1 + sum_{j != i} B_j) = p_i integral_0^1 prod_{j != i} (1 - p_j + p_j z) dz

    B_j: whether client j is available. The integrand is a polynomial, which Gauss's rule integrates exactly.
    """
    nodes, weights = leggauss(len(available_N) // 2 + 1)
    z_Z, weights_Z = (nodes + 1) / 2, weights / 2
    factors_NZ = 1 - available_N[:, None] + available_N[:, None] * z_Z
    others_NZ = np.stack([np.delete(factors_NZ, i, axis=0).prod(axis=0) for i in range(len(available_N))])
    return np.asarray(available_N * (others_NZ @ weights_Z))


def mixing_rate(alpha: float, contraction: float, clients: int, exponent: float) -> float:
    """Rate per round, in nats, at which FedAsync's mean model approaches the optimum of equal clients:

        1 = lambda solves lambda = E[1 - a_s] + contraction E[a_s lambda^-s], and the rate is -log lambda

    with a_s = alpha (s + 1)^-exponent and P(s) = (1 - 1/N)^s / N, of exponential durations. Stalenesses count as
    independent of each other. contraction: of a client's local training, (1 - eta_l mu)^H along the slowest direction.
    """
    share = 1 / clients
    rounds = 1 if clients == 1 else 1 + int(log(_TAIL) / log(1 - share))
    s_S = np.arange(rounds)
    likely_S = share * (1 - share) ** s_S
    mixed_S = likely_S * alpha * (s_S + 1.0) ** -exponent

    def excess(rate: float) -> float:
        """What is left of a distance after a round, less exp(-rate)."""
        late = float(mixed_S @ np.exp(rate * s_S))
        return 1 - float(mixed_S.sum()) + contraction * late - exp(-rate)

    low, high = 0.0, -log(1 - float(mixed_S.sum()) * (1 - contraction))  # that without staleness is more
    if clients > 1:
        high = min(high, -log(1 - share))  # beyond it the expectation is infinite
    for _ in range(200):  # bisection to float64: excess(0) < 0, and it grows
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return low
