"""Simulated clients on a Ray cluster of two machines: the digest of the loop, also after losses."""

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.running import small
from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.errors import UserError
from unstale.simulator.assemble import simulation
from unstale.simulator.backends.ray_cluster import RayCluster
from unstale.simulator.simulation import Simulation
from workers.conftest import PATIENCE_S, Gate, remove

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'unstale[ray]'"),
]


def settings_of(address: str | None = None, **changes: Any) -> Settings:
    """A short run whose clients keep state."""
    return small(
        **{
            "clients": 6,
            "rounds": 4,
            "model": {"name": "workers.gated_model:trained"},
            "training": {"name": "scaffold", "steps": 2, "batch_size": 8},
            "policy": {"name": "scaffold"},
            "trigger": {"name": "k-async", "k": 3},
            "ray": address,
            **changes,
        }
    )


def of_app(app: str, address: str | None) -> Settings:
    return Settings(app=app, clients=4, rounds=3, device="cpu", trigger={"name": "k-async", "k": 2}, ray=address)


def made(settings: Settings) -> Simulation:
    return simulation(settings, on_progress=lambda _: None)


@pytest.fixture(scope="module")
def expected(surroundings: Path) -> str:
    """Of the run on one machine."""
    return made(settings_of()).run().model_digest


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"threads": 2}, r"no machine of that cluster has the resources of a task \(2 CPUs\), .+; lower threads"),
        ({"ray": "127.0.0.1:1"}, r"nothing answers there \(.+\), expected the head of a Ray cluster; start one .+"),
    ],
    ids=["no machine", "no cluster"],
)
def test_an_unsuitable_cluster_is_one_error_sentence(address: str, changes: dict[str, Any], sentence: str) -> None:
    settings = settings_of(**{"address": address, **changes})
    with pytest.raises(UserError, match=f"^ray is {settings.ray!r}, but {sentence}$"):
        made(settings)


def test_an_app_that_only_this_machine_has_is_one_error_sentence(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "only_here.py"
    file.write_text("from support.apps import drawing\n")
    settings = of_app("only_here:drawing", address)
    context = training_context(settings)
    file.unlink()
    with pytest.raises(UserError, match=r"^a worker of the Ray cluster cannot make the run: app 'only_here:drawing'"):
        RayCluster(context.workload, settings)


def test_an_app_with_state_and_draws_is_trained_on_the_cluster(address: str) -> None:
    there, here = (of_app("support.apps:drawing", cluster) for cluster in (address, None))
    assert made(there).run().model_digest == made(here).run().model_digest


def test_a_run_survives_a_killed_worker_and_a_killed_machine_bit_for_bit(
    nodes: "subprocess.Popen[str]", surroundings: Path, address: str, expected: str
) -> None:
    run = made(settings_of(address))
    gate = Gate(surroundings)
    try:
        with ThreadPoolExecutor(1) as thread:
            digest = thread.submit(lambda: run.run().model_digest)
            killed = next(iter(gate.waiting(2)))
            os.kill(killed, signal.SIGKILL)
            gate.waiting(3)  # the task is computed again, in another process
            remove(nodes, 1)
            gate.open()
            assert digest.result(PATIENCE_S) == expected
    finally:
        gate.end()
    with pytest.raises(ProcessLookupError):
        os.kill(killed, 0)
