"""Jobs that other processes compute: the run that they make, their shares of the jobs, and results as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from torch import Tensor

from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.plugins import modules
from unstale.simulator.backends.backend import Computed, Job, Result
from unstale.training.local import LocalUpdate
from unstale.training.measured import Measured
from unstale.training.workload import Declined, NotTrained, TrainingDiverged, TrainingFailed, Workload

_KINDS = {kind.__name__: kind for kind in (Declined, TrainingDiverged, TrainingFailed)}  # a subclass comes first
_NUMBERS = ("kind", "num_examples", "batch_examples", "steps", "loss", "learning_rate", "metrics")


def described(settings: Settings) -> dict[str, Any]:
    """All that another process needs to make the workload of a run, as JSON has it."""
    return {"settings": settings.model_dump(mode="json", exclude_unset=True), "modules": modules()}


def workload_of(description: Mapping[str, Any]) -> tuple[Workload, Mapping[str, Any]]:
    """The workload of a run, and the settings that its server sends to clients. Raises UserError.

    description: of `described`, with names of `modules` that register parts of the run.
    """
    for module in description["modules"]:
        import_module(module)
    settings = Settings.model_validate(description["settings"])
    return training_context(settings).workload, settings.client_settings


def shares(jobs: Sequence[Job], count: int, steps_of: Callable[[int], int], *, is_fixed: bool) -> list[list[int]]:
    """Indexes of the jobs that each of so many processes computes, by their steps.

    Client i goes to process i mod P unless its share of the steps gets unfair. is_fixed: always to that one.
    """
    steps = [steps_of(job.client_id) for job in jobs]
    fair = -(-sum(steps) // count)
    indexes: list[list[int]] = [[] for _ in range(count)]
    load = [0] * count
    for index, job in enumerate(jobs):
        process = job.client_id % count
        if not is_fixed and load[process] + steps[index] > fair:
            process = load.index(min(load))
        indexes[process].append(index)
        load[process] += steps[index]
    return indexes


def fields_of(result: Result) -> dict[str, Any]:
    """A result without its vectors, as JSON has it."""
    if isinstance(result, NotTrained):
        kind = next((name for name, kind in _KINDS.items() if isinstance(result, kind)), TrainingFailed.__name__)
        return {"not_trained": str(result), "kind": kind}
    evaluation = None if result.evaluation is None else asdict(result.evaluation)
    return {name: getattr(result.local, name) for name in _NUMBERS} | {"evaluation": evaluation}


def result_of(
    fields: dict[str, Any],
    vector_d: Tensor,
    buffers_b: Tensor | None,
    extra_d: Tensor | None,
    state: Mapping[str, Tensor],
) -> Computed:
    """The result of `fields_of` and vectors."""
    evaluation = fields.pop("evaluation")
    if evaluation is not None:
        evaluation["class_accuracy"] = tuple(evaluation["class_accuracy"])
    return Computed(
        local=LocalUpdate(vector_d=vector_d, buffers_b=buffers_b, extra_d=extra_d, state=state, **fields),
        evaluation=None if evaluation is None else Measured(**evaluation),
    )


def not_trained(fields: Mapping[str, Any]) -> NotTrained | None:
    """The result of `fields_of` for a task without an update; None for another one."""
    return _KINDS[fields["kind"]](fields["not_trained"]) if "not_trained" in fields else None
