"""Inversion tasks on a machine of a Ray cluster."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from support.compensation import CLASSES, SHAPE, context, network, received, settings
from unstale.compensators.inversion.inversions import Inversions
from unstale.compensators.inversion.remote_inversion import packed
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.training.models import build
from unstale.workers import inversion_tasks as worker
from unstale_client.net.clock import now_s

DATA: Any = SimpleNamespace(input_shape=SHAPE, classes=CLASSES)


def described(**compensator: Any) -> dict[str, Any]:
    own = {"images_max": 4, "iterations": 6, "iterations_min": 2}
    chosen = Settings(
        model={"name": "logreg"},
        training={"steps": 2},
        threads=torch.get_num_threads(),
        compensator={"name": "gradient-inversion", "settings": own, **compensator},
    )
    return worker.described(chosen, DATA)


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    worker._bench.cache_clear()


def test_a_task_builds_the_named_model_and_reports_its_duration():
    inversions = Inversions(settings(), context(network(build("logreg", SHAPE, CLASSES, 0)), clock=now_s))
    size = 17 * CLASSES
    update = received(vector_d=torch.ones(size), base_d=torch.zeros(size))
    answer = load(worker.prepare(described())(save(packed([inversions.begin(update)])), lambda _: None))
    assert answer["done_B"].tolist() == [6]
    assert answer["inputs_MBrX"].shape[1:] == (1, 4, *SHAPE)
    assert bool(answer["disparity_B"].isfinite().all())
    assert float(answer["seconds"]) > 0


@pytest.mark.parametrize("name", ["unstale", "torch"])
def test_another_version_is_refused(name):
    description = described()
    description["versions"][name] = "0.0.1"
    with pytest.raises(UserError) as caught:
        worker.prepare(description)
    here = described()["versions"][name]
    assert str(caught.value) == (
        f"a worker of the Ray cluster has {name} {here}, expected 0.0.1, as where the run is; install the same on all "
        "machines"
    )


def test_a_gpu_that_pytorch_does_not_find_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError) as caught:
        worker.prepare(described(ray_gpus=0.5))
    assert str(caught.value) == (
        "compensator.ray_gpus is 0.5, but PyTorch finds no GPU on a machine where Ray does, expected one that it can "
        "use; install a PyTorch for it, or set 0"
    )


@pytest.mark.parametrize(("visible", "given", "number"), [(None, "1", 1), ("2,3", "3", 1), ("2,3", "2", 0)])
def test_a_task_uses_the_gpu_assigned_by_ray(monkeypatch, visible, given, number):
    context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": [given]})
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert worker._gpu(0.5) == number
    assert worker._gpu(0.0) is None


class GpuWorker:
    """A worker on a simulated GPU, with its calls. error: of every inversion."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.happened: list[Any] = []
        bench = worker._Bench(Any, Any, torch.device("cuda", 1))
        monkeypatch.setattr(worker, "_gpu", lambda gpus: 1)
        monkeypatch.setattr(worker, "_bench", lambda description, gpu: bench)
        monkeypatch.setattr(worker, "computed", self._computed)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.happened.append("empty"))
        monkeypatch.setattr(worker.os, "_exit", self._exit)
        self._error = error

    def _computed(self, *_: Any) -> dict[str, torch.Tensor]:
        if self._error is not None:
            raise self._error
        return {}

    def _exit(self, code: int) -> None:
        self.happened.append(code)
        raise SystemExit(code)


def test_unused_gpu_memory_is_released(monkeypatch):
    there = GpuWorker(monkeypatch)
    worker.invert(json.dumps(described()), save({}))
    assert there.happened == ["empty"]


def test_gpu_memory_is_released_after_an_error(monkeypatch):
    there = GpuWorker(monkeypatch, RuntimeError("no such kernel"))
    with pytest.raises(RuntimeError, match="no such kernel"):
        worker.invert(json.dumps(described()), save({}))
    assert there.happened == ["empty"]


def test_a_worker_with_a_broken_gpu_ends(monkeypatch, capsys):
    there = GpuWorker(monkeypatch, torch.AcceleratorError("device-side assert triggered"))
    with pytest.raises(SystemExit):
        worker.invert(json.dumps(described()), save({}))
    assert there.happened[0] == 1
    assert "device-side assert triggered" in capsys.readouterr().err
