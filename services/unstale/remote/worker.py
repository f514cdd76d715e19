"""What a worker of the cluster is told of a run, and what it does of it.

A worker is told the model's name and the shape of its data, and builds it from its own installation; then it gets
groups of inversions as tensors in the safetensors format.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

import torch
from safetensors.torch import load, save

from unstale import __version__, part_settings
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.remote_inversion import computed
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.local_update import LocalSteps
from unstale.compensators.network import Network
from unstale.compensators.registry import find
from unstale.config.compensation import local_steps
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.net.clock import now_s
from unstale.training.datasets import Dataset
from unstale.training.models import build


def described(settings: Settings, dataset: Dataset) -> str:
    """All that a worker is told of a run, as JSON."""
    chosen = settings.compensator
    inversion = part_settings.checked("compensator", chosen.name, find(chosen.name).Settings, chosen.settings)
    return json.dumps(
        {
            "versions": _versions(),
            "model": settings.model.model_dump(),
            "seed": settings.seed,
            "input_shape": list(dataset.input_shape),
            "classes": dataset.classes,
            "steps": asdict(local_steps(settings)),
            "inversion": {name: getattr(inversion, name) for name in InversionSettings.model_fields},
            "threads": settings.threads,
            "gpus": chosen.ray_gpus,
        }
    )


def prepare(description: str) -> None:
    """Build the model, so that the first inversion need not. Raises UserError when it cannot be done here."""
    _bench(description, _gpu(description))


def invert(description: str, group: bytes) -> bytes:
    """Do all iterations of a group. description: from `described`. group: as `away.packed` made it, and the answer as
    `away.computed` does, with the seconds that it took; both in the safetensors format. Ends this process where it can
    use its GPU no more."""
    bench = _bench(description, _gpu(description))
    started_s = now_s()
    try:
        answer = computed(load(group), bench.network, bench.engine, bench.device)
    except torch.AcceleratorError:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(
            1
        )  # the next task in it would fail as well; of a worker that is lost, the courier takes another
    finally:
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()  # the next task may be given another GPU, and another one this share of it
    answer["seconds"] = torch.tensor(now_s() - started_s, dtype=torch.float64)
    return save(answer)


class _Bench(NamedTuple):
    network: Network
    engine: Engine
    device: torch.device


@lru_cache(maxsize=4)
def _bench(description: str, gpu: int | None) -> _Bench:
    """Where inversions of a run are done; kept between them. gpu: its number, None for the CPU."""
    told = json.loads(description)
    _check_versions(told["versions"])
    torch.set_num_threads(told["threads"])
    device = torch.device("cpu")
    if gpu is not None:
        device = torch.device("cuda", gpu)
        torch.cuda.set_per_process_memory_fraction(told["gpus"], device)
    model = told["model"]
    name, shape, classes = model.pop("name"), tuple(told["input_shape"]), told["classes"]
    module = build(name, shape, classes, told["seed"], **model)
    network = Network(module.to(device), shape, classes)
    settings = InversionSettings(**told["inversion"])
    return _Bench(network, Engine(network, LocalSteps(**told["steps"]), settings), device)


def _versions() -> dict[str, str]:
    """Of what decides the bits; without the part that says for which device it was built."""
    return {"unstale": __version__, "torch": torch.__version__.partition("+")[0]}


def _check_versions(expected: Mapping[str, str]) -> None:
    for name, here in _versions().items():
        if here != expected[name]:
            raise UserError(
                f"a worker of the Ray cluster has {name} {here}, expected {expected[name]}, as where the run is; "
                "install the same on all machines"
            )


def _gpu(description: str) -> int | None:
    """The GPU that this task has a share of, as PyTorch numbers it; None without one.

    The courier has Ray leave CUDA_VISIBLE_DEVICES alone: a process that has begun to use one GPU would stay with it,
    and the next task in it may be given another.
    """
    gpus = json.loads(description)["gpus"]
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
