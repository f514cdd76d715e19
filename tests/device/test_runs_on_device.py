"""Whole runs on the simulated device agree with those on the CPU, but for the order of some sums."""

from pathlib import Path
from typing import Any

import pytest
import torch

from device.parts import FEW_ITERATIONS, settings_of
from support.recorded import over_sockets
from support.simulated_device import CPU, CUDA, simulated_device
from unstale.conformance.kit import examine
from unstale.metrics.progress import Outcome
from unstale.policies import names
from unstale.simulator.assemble import simulation
from unstale.training.registry import TRAININGS

RUNS: dict[str, dict[str, Any]] = {
    **{f"training {name}": {"training": name} for name in TRAININGS},
    "batches of clients": {"simulation": {"backend": "vmap"}},
    "wkafl and inversions": {"policy": {"name": "wkafl"}, "compensator": {"name": "auto", "settings": FEW_ITERATIONS}},
    "fedhist and evaluations by clients": {"policy": {"name": "fedhist"}, "evaluate_clients_every": 2},
    "model with buffers": {"model": {"name": "device.parts:normalised"}},
    "lossy encoding": {"encoding": {"updates": "top-k", "models": "bfloat16", "fraction": 0.1}},
}


def outcome(where: torch.device, **changes: Any) -> Outcome:
    given = {"simulation": {"backend": "loop"}, "trigger": {"name": "k-async", "k": 2}, **changes}
    settings = settings_of(where, rounds=6, evaluate_every=3, **given)
    return simulation(settings, on_progress=lambda _: None).run()


@pytest.mark.parametrize("changes", RUNS.values(), ids=list(RUNS))
@pytest.mark.slow
def test_a_simulation_on_the_device_agrees_with_that_on_the_cpu(changes: dict[str, Any]) -> None:
    with simulated_device() as device:
        on_device = outcome(CUDA, **changes)
    assert device.launches > 50
    assert_agrees(on_device, outcome(CPU, **changes))


def assert_agrees(one: Outcome, other: Outcome) -> None:
    assert one.metrics == pytest.approx(other.metrics, rel=1e-3)
    assert (one.versions, one.updates) == (other.versions, other.updates)


@pytest.mark.network
def test_a_run_over_sockets_with_server_and_client_on_the_device_agrees_with_that_on_the_cpu(tmp_path: Path) -> None:
    changes = {
        "clients": 1,
        "rounds": 6,
        "evaluate_every": 3,
        "model": {"name": "digits_cnn"},
        "training": {"name": "sgd", "steps": 3, "learning_rate": 0.1, "batch_size": 8},
        "trigger": {"name": "sync"},
        "policy": {"name": "fedar", "optimiser": {"name": "adam"}},
        "run": {"checkpoint_every": 2},
    }
    with simulated_device() as device:
        on_device = over_sockets(tmp_path / "device", **changes, device="cuda")
    on_cpu = over_sockets(tmp_path / "cpu", **changes)
    assert device.launches > 100
    assert_agrees(on_device, on_cpu)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_policy_passes_the_conformance_cases_on_the_device(name: str) -> None:
    with simulated_device():
        rows = list(examine((name,), CUDA))
    assert [row for row in rows if row.verdict != "pass"] == []
    assert len(rows) > 30
