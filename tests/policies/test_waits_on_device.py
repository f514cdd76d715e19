"""How often a step waits for the device, with rows in many chunks of columns, beside the same step on the CPU."""

import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from support.simulated_device import CUDA, DeviceTensor, simulated_device
from unstale.policies import Policy, UpdateBatch, create, names, weights
from unstale.policies.fedhist import FedHist
from unstale.policies.stages import wrapped
from unstale.policies.wkafl import Wkafl
from unstale.settings.learning import OptimiserSettings

CPU = torch.device("cpu")
K, D, CLIENTS, ROUNDS = 6, 23, 24, 12
SETTINGS: dict[str, dict[str, Any]] = {"fedavg-is": {"probabilities": 0.5}, "mifa": {"init": "zeros"}}
WAITS = {  # a step's; 0 for the others
    "fedhist": 2,
    "geometric-median": 1,
    "gsgm": 1,
    "krum": 1,
    "multi-krum": 1,
    "refl": 1,
    "scaffold": 1,
    "wkafl": 1,
}
Change = Callable[[Policy[Any], Tensor], object]
"""Replaces rows of the matrix [K, d] of the next round."""


@pytest.fixture(autouse=True)
def _narrow_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes chunks of three columns: eight of them."""

    def chunks(_rows: int, columns: int, _numbers: int) -> Iterator[slice]:
        return (slice(start, min(start + 3, columns)) for start in range(0, columns, 3))

    monkeypatch.setattr(weights, "_chunks", chunks)


def batch(version: int, matrix_Kd: Tensor, where: torch.device) -> UpdateBatch:
    models = [torch.full((D,), float(age)).to(where) for age in range(3)]
    staleness_K = torch.arange(K) % 3
    return UpdateBatch(
        version=version,
        matrix_Kd=matrix_Kd.to(where),
        staleness_K=staleness_K,
        num_examples_K=torch.arange(1, K + 1),
        loss_K=torch.ones(K),
        client_ids_K=(torch.arange(K) + K * version) % CLIENTS,
        extra_Kd=matrix_Kd.to(where),
        model_d=models[0],
        base_models=tuple(models[s] for s in staleness_K.tolist()),
        rate=0.1,
        local_rates_K=torch.full((K,), 0.1),
    )


def policy(name: str, where: torch.device, settings: dict[str, Any]) -> Policy[Any]:
    return create(
        name,
        dimension=D,
        clients=CLIENTS,
        device=where,
        round_size=K,
        rounds=20,
        allocate=lambda rows, columns: torch.zeros(rows, columns, device=where),
        **{**SETTINGS.get(name, {}), **settings},
    )


def unchanged(_subject: Policy[Any], _matrix_Kd: Tensor) -> None:
    pass


def waits(
    name: str,
    change: Change = unchanged,
    *,
    stage: Callable[[Policy[Any]], Policy[Any]] = lambda inner: inner,
    **settings: Any,
) -> list[int]:
    """The waits of each step, whose results equal those of the CPU. change: by the policy on the CPU."""
    inner, counts = policy(name, CPU, settings), []
    reference = stage(inner)
    with simulated_device() as copies:
        subject = stage(policy(name, CUDA, settings))
        for version in range(ROUNDS):
            matrix_Kd = torch.randn(K, D, generator=torch.Generator().manual_seed(version))
            change(inner, matrix_Kd)
            expected, arrived = reference.step(batch(version, matrix_Kd, CPU)), batch(version, matrix_Kd, CUDA)
            copies.clear()
            step = subject.step(arrived)
            counts.append(copies.waits)
            assert isinstance(step.direction_d, DeviceTensor)
            torch.testing.assert_close(step.direction_d.host, expected.direction_d, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(step.weights_K, expected.weights_K, rtol=1e-5, atol=1e-5)
    return counts


@pytest.mark.parametrize("name", names())
def test_a_step_waits_at_most_twice_however_many_chunks_its_rows_have(name: str) -> None:
    assert set(waits(name)) == {WAITS.get(name, 0)}


@pytest.mark.parametrize("name", ["fedavg", "fedhist", "wkafl"])
def test_clipping_and_a_server_optimiser_wait_once_each(name: str) -> None:
    adam = OptimiserSettings(name="adam")
    stage = partial(wrapped, clip_norm=4.0, optimiser=adam)
    assert set(waits(name, stage=stage)) == {WAITS.get(name, 0) + 2}


def test_the_mean_length_of_the_updates_waits_once() -> None:
    assert set(waits("fedavg", stage=partial(wrapped, norm="mean-of-updates"))) == {1}


def nearly_cancelled(subject: Policy[Any], matrix_Kd: Tensor) -> None:
    """Makes an update that cancels what WKAFL adds to it, to 1e-3."""
    assert isinstance(subject, Wkafl)
    previous_d = subject.state_dict()["previous_d"]
    matrix_Kd[1] = matrix_Kd[1] * 1e-3 - subject.settings.alpha * previous_d


@pytest.mark.parametrize("momentum", ["estimate", "aggregate"])
@pytest.mark.parametrize("stage_two_round", [None, 4])
def test_wkafl_waits_once_and_once_more_to_clip(momentum: str, stage_two_round: int | None) -> None:
    settings = {"momentum": momentum, "stage_two_round": stage_two_round, "alpha": 0.8}
    assert set(waits("wkafl", **settings)) == {1}
    assert set(waits("wkafl", clip_bound=4.0, **settings)) == {2}


@pytest.mark.parametrize(("clip_bound", "most"), [(None, 1), (4.0, 2)])
def test_wkafl_waits_no_more_for_updates_that_cancel_the_previous_estimate(clip_bound: float | None, most: int) -> None:
    assert max(waits("wkafl", nearly_cancelled, alpha=0.8, clip_bound=clip_bound)) == most


def opposite_to_the_past(subject: Policy[Any], matrix_Kd: Tensor) -> None:
    """Makes an update that cancels the past direction which FedHist adds to it, to 1e-3."""
    assert isinstance(subject, FedHist)
    history_nd = subject.state_dict()["history_nd"]
    if len(history_nd):
        matrix_Kd[1] = matrix_Kd[1] * 1e-3 - subject.settings.alpha * history_nd[0]


@pytest.mark.parametrize("change", [unchanged, opposite_to_the_past])
@pytest.mark.parametrize("ina_norms", ["raw", "fused"])
@pytest.mark.parametrize("haa", ["full", "staleness"])
@pytest.mark.parametrize("compared_with", ["all", "later"])
def test_fedhist_waits_for_its_products_and_for_the_length_of_their_sum(
    change: Change, ina_norms: str, haa: str, compared_with: str
) -> None:
    settings = {"ina_norms": ina_norms, "haa": haa, "compared_with": compared_with, "alpha": 0.8}
    assert set(waits("fedhist", change, **settings)) == {2}


def test_fedhist_waits_once_more_if_two_past_directions_are_equally_unlike_an_update() -> None:
    def zero(_subject: Policy[Any], matrix_Kd: Tensor) -> None:
        matrix_Kd[2] = 0

    assert waits("fedhist", zero)[:4] == [2, 2, 3, 3]  # the first two rounds have fewer directions


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["fedavg", "fedhist", "krum", "refl", "wkafl"])
def test_on_a_gpu_steps_wait_as_often_and_equal_those_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dimension = 4_000_001  # of six rows: two chunks
    monkeypatch.undo()
    monkeypatch.setattr(sys.modules[__name__], "D", dimension)
    reference, subject = policy(name, CPU, {}), policy(name, torch.device("cuda"), {})
    for version in range(ROUNDS):
        matrix_Kd = torch.randn(K, dimension, generator=torch.Generator().manual_seed(version))
        expected, arrived = reference.step(batch(version, matrix_Kd, CPU)), batch(version, matrix_Kd, subject.device)
        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                direction_d = subject.step(arrived).direction_d
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert sum("synchroniz" in str(one.message) for one in caught) == WAITS.get(name, 0)
        torch.testing.assert_close(direction_d.cpu(), expected.direction_d, rtol=1e-4, atol=1e-5)
