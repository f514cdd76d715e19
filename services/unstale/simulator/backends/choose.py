"""Selects the backend of a run. Decision 0022 has the measurements."""

import os

import torch

from unstale.config.settings import Settings
from unstale.config.workspace import TrainingContext
from unstale.errors import UserError
from unstale.learner.device import cores
from unstale.plugins import is_local
from unstale.simulator.backends import vmap
from unstale.simulator.backends.backend import Backend, Loop
from unstale.simulator.backends.processes import Processes
from unstale.simulator.backends.ray_cluster import RayCluster
from unstale.training.nests import forward
from unstale.training.trainer import Trainer
from unstale.training.workload import Workload

_FLOPS_OF_A_TASK_MIN = 1e6
"""Below it a task takes 0.2 ms, and the transfer to another process costs as much as it saves."""

_SECONDS_OF_A_RUN_MIN = 10.0
"""Below it a run ends before worker processes, which start in some seconds, save much."""

_SECONDS_OF_A_STEP, _FLOPS_A_SECOND = 8e-4, 2.5e10
"""Duration of a step on one core, roughly: a constant, and floating-point operations at this rate."""

_BACKWARD = 3
"""Forward passes that a step costs, roughly."""


def choose(settings: Settings, context: TrainingContext, round_size: int) -> Backend:
    """The backend that `simulation.backend` names; for `auto` the cluster of `ray`, else the fastest: on CUDA `vmap`
    where it can compute the run, on the CPU one with the bits of `loop`.

    Args:
        settings: Of the run.
        context: Of the settings.
        round_size: Most updates of a round.

    Raises:
        UserError: The backend cannot compute this run.
    """
    name = settings.simulation.backend
    if name == "auto" and settings.ray is not None:
        _check_on_cpu(context, _local_part(settings), "ray", settings.ray)
        return RayCluster(context.workload, settings)
    is_batched = name == "auto" and context.device.type == "cuda" and vmap.expectation(context.workload) is None
    if name == "vmap" or is_batched:
        return vmap.Vmap(context.workload)
    processes = settings.simulation.processes or max(1, cores() // settings.threads)
    local = _local_part(settings)
    if name == "processes":
        _check_on_cpu(context, local, "simulation.backend", name)
        backend = Processes(context.workload, settings, processes)
        backend.wait()  # chosen by name: all processes work from the first job on
        return backend
    if name == "auto" and processes > 1 and local is None and _is_worth_it(settings, context.workload, round_size):
        return Processes(context.workload, settings, processes)
    return Loop(context.workload)


def _check_on_cpu(context: TrainingContext, local: str | None, key: str, value: str) -> None:
    """Raise UserError where other processes cannot train the clients. local: of `_local_part`. key, value: for the
    message.
    """
    if context.device.type != "cpu":
        raise UserError(
            f"{key} is {value!r}, which is for the CPU, with device {context.device}; set device to cpu, or "
            "simulation.backend to loop"
        )
    if local is not None:
        raise UserError(
            f"{key} is {value!r} with {local}, an object that other processes cannot import; define it in a module, or "
            "set simulation.backend to loop"
        )


def _local_part(settings: Settings) -> str | None:
    """The kind and name of a part that clients need, and that other processes cannot import; None if there is none."""
    chosen = {
        "app": settings.app or "",
        "model": settings.model.name,
        "data": settings.data.name,
        "partition": settings.partition.name,
        "training": settings.training.name,
        "objective": settings.objective.name,
    }
    local = [f"{kind} {name!r}" for kind, name in chosen.items() if is_local(kind, name)]
    return local[0] if local else None


def _is_worth_it(settings: Settings, workload: Workload, round_size: int) -> bool:
    if workload.model.buffers_b.device.type != "cpu" or os.name != "posix":
        return False
    if not isinstance(workload, Trainer):
        return False  # the duration of a step is not known
    steps = sum(map(workload.steps_of, range(settings.clients))) / settings.clients
    step_flops = _BACKWARD * settings.training.batch_size * _flops_of_an_example(workload)
    tasks = settings.rounds * round_size
    run_s = tasks * steps * (_SECONDS_OF_A_STEP + step_flops / _FLOPS_A_SECOND)
    return steps * step_flops >= _FLOPS_OF_A_TASK_MIN and run_s >= _SECONDS_OF_A_RUN_MIN


def _flops_of_an_example(trainer: Trainer) -> int:
    """Floating-point operations of a forward pass of one example."""
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, 0.1 s

    module, was_training = trainer.model.module, trainer.model.module.training
    module.eval()  # so that no buffer changes and nothing is drawn
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        inputs, _ = trainer.examples(0).batch(torch.tensor([0], device=trainer.examples(0).device))
        forward(module, inputs)
    module.train(was_training)
    return int(counter.get_total_flops())
