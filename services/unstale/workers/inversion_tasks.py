"""Inverts groups of updates on a machine of a Ray cluster.

A worker receives the model's name and the shape of its data, and builds the model from its own installation. Then it
receives groups of inversions as tensors in the safetensors format.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save

from unstale import part_settings
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.remote_inversion import computed
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.network import LocalSteps, Network
from unstale.compensators.registry import find
from unstale.config.compensation import local_steps
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.learner.device import set_precision
from unstale.training.datasets import Dataset
from unstale.training.models import build
from unstale.workers import versions
from unstale.workers.program import Compute
from unstale_client.net.clock import now_s


def described(settings: Settings, dataset: Dataset) -> dict[str, Any]:
    """All that a worker needs of a run, as JSON has it."""
    chosen = settings.compensator
    inversion = part_settings.checked("compensator", chosen.name, find(chosen.name).Settings, chosen.settings)
    return {
        "versions": versions.versions(),
        "model": settings.model.model_dump(),
        "seed": settings.seed,
        "input_shape": list(dataset.input_shape),
        "classes": dataset.classes,
        "steps": asdict(local_steps(settings)),
        "inversion": {name: getattr(inversion, name) for name in InversionSettings.model_fields},
        "threads": settings.threads,
        "precision": settings.device_precision,
        "gpus": chosen.ray_gpus,
    }


def prepare(description: Mapping[str, Any]) -> Compute:
    """The function that inverts groups. description: from `described`. Builds the model.

    Raises UserError if this machine cannot invert the run's updates.
    """
    text = json.dumps(description)
    _bench(text, _gpu(description["gpus"]))
    return lambda group, _: invert(text, group)


def invert(description: str, group: bytes) -> bytes:
    """Do all iterations of a group. Ends this process if the GPU is not usable any more.

    description: From `described`, as JSON. group: `remote_inversion.packed` as safetensors. The result is
    `remote_inversion.computed` as safetensors, with the `seconds` that it took.
    """
    bench = _bench(description, _gpu(json.loads(description)["gpus"]))
    started_s = now_s()
    try:
        answer = computed(load(group), bench.network, bench.engine, bench.device)
    except torch.AcceleratorError:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the next task in this process would fail as well; the driver retries in another one
    finally:
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()  # the next task may have another GPU, and another task this share of it
    answer["seconds"] = torch.tensor(now_s() - started_s, dtype=torch.float64)
    return save(answer)


class _Bench(NamedTuple):
    network: Network
    engine: Engine
    device: torch.device


@lru_cache(maxsize=4)
def _bench(text: str, gpu: int | None) -> _Bench:
    """The model and engine of a run. gpu: its number, None for the CPU."""
    description = json.loads(text)
    versions.check(description["versions"])
    torch.set_num_threads(description["threads"])
    device = torch.device("cpu")
    if gpu is not None:
        device = torch.device("cuda", gpu)
        set_precision(device, description["precision"])
        torch.cuda.set_per_process_memory_fraction(description["gpus"], device)
    model = description["model"]
    name, shape, classes = model.pop("name"), tuple(description["input_shape"]), description["classes"]
    module = build(name, shape, classes, description["seed"], **model)
    network = Network(module.to(device), shape, classes)
    settings = InversionSettings(**description["inversion"])
    return _Bench(network, Engine(network, LocalSteps(**description["steps"]), settings), device)


def _gpu(gpus: float) -> int | None:
    """The GPU that this task has a share of, as PyTorch numbers it; None without one.

    The driver has Ray leave CUDA_VISIBLE_DEVICES alone: a process that has used one GPU stays with it, and its next
    task may have another GPU.
    """
    if not gpus:
        return None
    if not torch.cuda.is_available():
        raise UserError(
            f"compensator.ray_gpus is {gpus:g}, but PyTorch finds no GPU on a machine where Ray does, expected one "
            "that it can use; install a PyTorch for it, or set 0"
        )
    import ray  # on workers only

    number: str = ray.get_runtime_context().get_accelerator_ids()["GPU"][0]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",").index(number) if visible else int(number)
