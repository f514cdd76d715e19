"""The policies against slow second versions, written from the equations in float64, one number at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unstale.policies import UpdateBatch, create, names
from unstale.seeds import Stream, stream

RATE = 0.05
DIMENSION = 7


def fedavg(w, g, s, n):  # 2.1, uniform
    return [wj - RATE * sum(gi[j] for gi in g) / len(g) for j, wj in enumerate(w)]


def fedavg_samples(w, g, s, n):  # 2.1, samples
    return [
        wj - RATE * sum(ni * gi[j] for gi, ni in zip(g, n, strict=True)) / sum(n) for j, wj in enumerate(w)
    ]


def dynsgd(w, g, s, n):  # 2.7
    p = [1 / (si + 1) for si in s]
    return [
        wj - RATE * sum(pi * gi[j] for gi, pi in zip(g, p, strict=True)) / sum(p) for j, wj in enumerate(w)
    ]


def sasgd(w, g, s, n):  # 2.8, tau1 = s + 1
    return [
        wj - sum(RATE / (si + 1) * gi[j] for gi, si in zip(g, s, strict=True)) / len(g)
        for j, wj in enumerate(w)
    ]


def twafl(w, g, s, n):  # 2.9
    p = [ni * (math.e / 2) ** -si for ni, si in zip(n, s, strict=True)]
    return [
        wj - RATE * sum(pi * gi[j] for gi, pi in zip(g, p, strict=True)) / sum(p) for j, wj in enumerate(w)
    ]


def twafl_raw(w, g, s, n):  # 2.9, as the paper writes it
    p = [ni / sum(n) * (math.e / 2) ** -si for ni, si in zip(n, s, strict=True)]
    return [wj - RATE * sum(pi * gi[j] for gi, pi in zip(g, p, strict=True)) for j, wj in enumerate(w)]


def fedbuff(w, g, s, n):  # 2.18
    return [
        wj - RATE / len(g) * sum(gi[j] / math.sqrt(1 + si) for gi, si in zip(g, s, strict=True))
        for j, wj in enumerate(w)
    ]


def fedasync(w, g, s, n):  # 2.17, every update computed from the current model, eta_l = eta
    mixed = list(w)
    for gi, si in zip(g, s, strict=True):
        a = 0.6 * (si + 1) ** -0.5
        mixed = [(1 - a) * mj + a * (wj - RATE * gij) for mj, wj, gij in zip(mixed, w, gi, strict=True)]
    return mixed


CASES = [
    ("fedavg", {}, fedavg),
    ("fedavg", {"weighting": "samples"}, fedavg_samples),
    ("dynsgd", {}, dynsgd),
    ("dynsgd", {"normalise": False}, sasgd),
    ("sasgd", {}, sasgd),
    ("twafl", {}, twafl),
    ("twafl", {"normalise": False}, twafl_raw),
    ("fedbuff", {}, fedbuff),
    ("fedasync", {}, fedasync),
]


def test_every_policy_of_the_folder_has_an_oracle() -> None:
    assert {name for name, _, _ in CASES} == set(names())


@pytest.mark.parametrize(("name", "policy_settings", "oracle"), CASES)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    staleness=st.lists(st.integers(0, 40), min_size=1, max_size=8),
)
def test_a_step_is_the_equation(name, policy_settings, oracle, seed, staleness) -> None:
    rows = len(staleness)
    rng = stream(seed, Stream.BATCHES)
    w = rng.standard_normal(DIMENSION).astype(np.float32)
    g = rng.standard_normal((rows, DIMENSION)).astype(np.float32)
    n = rng.integers(1, 1000, rows)
    batch = UpdateBatch(
        version=0,
        matrix_Kd=torch.from_numpy(g),
        staleness_K=torch.tensor(staleness),
        num_examples_K=torch.from_numpy(n),
        loss_K=torch.ones(rows),
        client_ids_K=torch.arange(rows),
        rate=RATE,
    )
    step = create(name, dimension=DIMENSION, clients=8, **policy_settings).step(batch)
    actual = torch.from_numpy(w) - RATE * step.rate_factor * step.direction_d
    expected = oracle(w.tolist(), g.tolist(), staleness, n.tolist())
    torch.testing.assert_close(actual.double(), torch.tensor(expected).double(), atol=1e-6, rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), bases=st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_fedasync_is_the_sequential_mixture_of_models_from_any_bases(seed: int, bases: list[int]) -> None:
    """2.17 with base models 0..3, of which 0 is the current one, some of them shared, and a rate for each."""
    rows = len(bases)
    rng = stream(seed, Stream.BATCHES)
    models = [torch.from_numpy(rng.standard_normal(DIMENSION).astype(np.float32)) for _ in range(4)]
    g = torch.from_numpy(rng.standard_normal((rows, DIMENSION)).astype(np.float32))
    local_rates = [0.5 * RATE * (1 + i) for i in range(rows)]
    batch = UpdateBatch(
        version=0,
        matrix_Kd=g,
        staleness_K=torch.tensor(bases),
        num_examples_K=torch.ones(rows, dtype=torch.int64),
        loss_K=torch.ones(rows),
        client_ids_K=torch.arange(rows),
        model_d=models[0],
        base_models=tuple(models[base] for base in bases),
        rate=RATE,
        local_rates_K=torch.tensor(local_rates),
    )
    step = create("fedasync", dimension=DIMENSION, clients=8).step(batch)
    expected = models[0].double()
    for i, base in enumerate(bases):
        a = 0.6 * (base + 1) ** -0.5
        trained = models[base].double() - local_rates[i] * g[i].double()
        expected = (1 - a) * expected + a * trained
    actual = models[0].double() - RATE * step.direction_d.double()
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-6)
