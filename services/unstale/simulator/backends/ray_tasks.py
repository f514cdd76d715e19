"""Computes clients in tasks on a Ray cluster.

A request and a reply are tensors in the safetensors format, one of which is JSON. A request contains each base version
once, and the state of its clients: a worker keeps nothing of a task, so that any other worker computes the same.

Legend: d parameters, b numbers of the model's float buffers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import Tensor

from unstale import flat
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.learner.versions import Version
from unstale.simulator.backends.backend import Computed, Job, Result, one_by_one
from unstale.simulator.backends.worker_jobs import described as described_run
from unstale.simulator.backends.worker_jobs import fields_of, not_trained, result_of, workload_of
from unstale.training.trainer import Trainer
from unstale.training.workload import ClientTask, NotTrained, Workload
from unstale.workers import versions
from unstale.workers.program import Compute, Progress

_JSON = "json"

Tensors = dict[str, np.ndarray]


def described(settings: Settings, workload: Workload) -> dict[str, Any]:
    """All that a worker needs of a run, as JSON has it. workload: in its first state, in which it stays."""
    return {
        **described_run(settings.model_copy(update={"device": "cpu", "ray": None})),
        "versions": versions.versions(),
        "bits": bits(workload),
    }


def begin(description: Mapping[str, Any]) -> Compute:
    """The function that computes requests. description: from `described`.

    Raises UserError where this machine cannot train the clients, or not with the same bits.
    """
    versions.check(description["versions"])
    try:
        workload, client_settings = workload_of(description)
    except UserError as error:
        raise UserError(f"a worker of the Ray cluster cannot make the run: {error}") from error
    if bits(workload) != description["bits"]:
        raise UserError(
            "a worker of the Ray cluster computes another first model or update of client 0 than this process, "
            "expected the same bits; use machines with the same kind of processor, packages, code and data"
        )

    def compute(request: bytes, _: Progress) -> bytes:
        return _reply(request, workload, client_settings)

    return compute


def bits(workload: Workload) -> str:
    """Digest of the first model, and, in the built-in training, of an update of client 0.

    An app is not called, because its functions may have effects.
    """
    model = workload.model
    first_d, first_b = model.parameters_d.clone(), model.buffers_b.clone()
    parts = [first_d, first_b]
    if isinstance(workload, Trainer):
        task = ClientTask(
            client_id=0,
            number=0,
            version=0,
            base_d=first_d,
            learning_rate=0.01,
            buffers_b=first_b if len(first_b) else None,
            extra_d=torch.zeros_like(first_d) if workload.needs_extra else None,
        )
        outcome = workload.outcome(task)
        workload.drop(task.client_id, task.number)
        model.load(first_d, first_b)
        parts += [] if isinstance(outcome, NotTrained) else [outcome.vector_d]
    return flat.digest(*parts)


def request_of(jobs: Sequence[Job], kept: Callable[[int], Mapping[str, Tensor]]) -> bytes:
    """A request. kept: state of a client."""
    tensors: Tensors = {}
    bases: dict[int, int] = {}
    fields = []
    for index, job in enumerate(jobs):
        base = bases.setdefault(id(job.base), len(bases))
        if f"base {base} vector" not in tensors:
            tensors |= _named(f"base {base}", job.base.model_d, job.base.buffers_b, job.base.extra_d)
        tensors |= {f"state {index} {name}": tensor.numpy() for name, tensor in kept(job.client_id).items()}
        fields.append((job.client_id, job.number, job.version, job.learning_rate, job.evaluate, base))
    return _packed(fields, tensors)


def results_of(reply: bytes) -> list[Result]:
    """The results of a request."""
    results, tensors = _unpacked(reply)
    return [
        not_trained(fields) or result_of(fields, *_parts(f"result {index}", tensors), _state(index, tensors))
        for index, fields in enumerate(results)
    ]


def _reply(request: bytes, workload: Workload, settings: Mapping[str, Any]) -> bytes:
    fields, tensors = _unpacked(request)
    bases: dict[int, Version] = {}
    jobs = []
    for index, (client_id, number, version, learning_rate, evaluate, base) in enumerate(fields):
        if base not in bases:
            model_d, buffers_b, extra_d = _parts(f"base {base}", tensors)
            buffers_b = torch.empty(0) if buffers_b is None else buffers_b
            bases[base] = Version(model_d=model_d, buffers_b=buffers_b, extra_d=extra_d)
        workload.restore(client_id, _state(index, tensors), {})
        job = Job(
            client_id=client_id,
            number=number,
            base=bases[base],
            learning_rate=learning_rate,
            evaluate=evaluate,
            version=version,
            settings=settings,
        )
        jobs.append(job)
    answers: list[dict[str, Any]] = []
    made: Tensors = {}
    for index, (job, result) in enumerate(zip(jobs, one_by_one(workload, jobs), strict=True)):
        answers.append(fields_of(result))
        if isinstance(result, Computed):
            local = result.local
            made |= _named(f"result {index}", local.vector_d, local.buffers_b, local.extra_d)
            made |= {f"state {index} {name}": tensor.numpy() for name, tensor in local.state.items()}
        workload.drop(job.client_id, job.number)
        workload.restore(job.client_id, {}, {})
    return _packed(answers, made)


def _named(name: str, vector_d: Tensor, buffers_b: Tensor | None, extra_d: Tensor | None) -> Tensors:
    parts = {f"{name} vector": vector_d, f"{name} buffers": buffers_b, f"{name} extra": extra_d}
    return {part: tensor.numpy() for part, tensor in parts.items() if tensor is not None and tensor.numel()}


def _parts(name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return tensors[f"{name} vector"], tensors.get(f"{name} buffers"), tensors.get(f"{name} extra")


def _state(index: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"state {index} "
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _packed(fields: Any, tensors: Tensors) -> bytes:
    content: bytes = save(tensors | {_JSON: np.frombuffer(json.dumps(fields).encode(), dtype=np.uint8)})
    return content


def _unpacked(content: bytes) -> tuple[Any, dict[str, Tensor]]:
    tensors = load(content)
    fields = json.loads(tensors.pop(_JSON).tobytes())
    return fields, {name: torch.from_numpy(array) for name, array in tensors.items()}
