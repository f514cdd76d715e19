"""Closed forms against hand-computed values, enumeration and simulation."""

from itertools import product
from math import log

import numpy as np
import pytest

from unstale_papers.theory.predictions import available_weights, fedar_weights, mixing_rate


def test_fedar_weights_are_one_without_rho_and_for_a_client_that_is_always_available() -> None:
    available_N = np.array([0.1, 0.5, 1.0])
    assert fedar_weights(available_N, 0.0, 2.0).tolist() == pytest.approx([1, 1, 1])
    assert fedar_weights(available_N, 0.1, 2.0)[2] == pytest.approx(1)


def test_fedar_weights_with_rho_1_are_mean_times_between_two_updates() -> None:
    """E[tau + 1] = 1/p of a geometric absence; with psi_max 1 every weight is 1."""
    available_N = np.array([0.2, 0.5])
    assert fedar_weights(available_N, 1.0, 1e9).tolist() == pytest.approx([5, 2])
    assert fedar_weights(available_N, 1.0, 1.0).tolist() == pytest.approx([1, 1])


def test_fedar_weights_are_limited() -> None:
    """With p = 1/2, rho = 1 and psi_max = 2: 1/2 * 1 + 1/2 * 2."""
    assert fedar_weights(np.array([0.5]), 1.0, 2.0).tolist() == pytest.approx([1.5])


def test_weights_of_an_average_over_available_clients_are_those_of_an_enumeration() -> None:
    available_N = np.array([0.1, 0.4, 0.7, 1.0])
    expected = np.zeros(4)
    for present in product([0, 1], repeat=4):
        present_N = np.array(present)
        likely = np.prod(np.where(present_N == 1, available_N, 1 - available_N))
        expected += likely * present_N / max(present_N.sum(), 1)
    assert available_weights(available_N).tolist() == pytest.approx(expected.tolist())


def test_weights_of_an_average_over_available_clients_add_up_to_the_probability_of_any() -> None:
    available_N = np.linspace(0.1, 0.9, 9)
    assert available_weights(available_N).sum() == pytest.approx(1 - np.prod(1 - available_N))


def test_a_single_client_mixes_without_staleness() -> None:
    """x <- (1 - alpha) x + alpha c x."""
    assert mixing_rate(0.6, 0.5, 1, 0.5) == pytest.approx(-log(1 - 0.6 * 0.5))


def test_staleness_slows_mixing_down() -> None:
    rates = [mixing_rate(0.6, 0.5, clients, 0.0) for clients in (1, 2, 10, 50)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


def test_the_rate_solves_the_mean_recursion() -> None:
    """With lambda^-s summed as a geometric series: lambda = 1 - a + a c q / (1 - (1 - q) / lambda)."""
    alpha, contraction, clients = 0.3, 0.8, 10
    factor = np.exp(-mixing_rate(alpha, contraction, clients, 0.0))
    share = 1 / clients
    assert factor == pytest.approx(1 - alpha + alpha * contraction * share / (1 - (1 - share) / factor))
