"""Computes clients in a worker process of the backend `processes`. Vectors lie in shared memory, the rest is JSON."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.simulator.backends.backend import Computed, Job, Result, one_by_one
from unstale.simulator.backends.shared_memory import SharedRows
from unstale.training.local import LocalUpdate
from unstale.training.measured import Measured
from unstale.training.workload import Declined, NotTrained, TrainingDiverged, TrainingFailed, Workload
from unstale.workers.program import Compute, Progress

_KINDS = {kind.__name__: kind for kind in (Declined, TrainingDiverged, TrainingFailed)}  # a subclass comes first


def begin(settings: dict[str, Any]) -> Compute:
    """The function that computes requests. settings: `settings` of the run, the descriptor `rows`, and names of
    `modules` that register parts of the run.
    """
    for module in settings["modules"]:
        import_module(module)
    run_settings = Settings.model_validate(settings["settings"])
    workload = training_context(run_settings).workload
    model = workload.model
    rows = SharedRows(settings["rows"], model.dimension, model.buffers_b.numel(), extra=workload.needs_extra)
    os.close(settings["rows"])

    def compute(request: bytes, _: Progress) -> bytes:
        return json.dumps(_reply(json.loads(request), workload, rows, run_settings.client_settings)).encode()

    return compute


def request_of(jobs: Sequence[Job], verdicts: Sequence[tuple[int, int, bool]], rows: SharedRows) -> bytes:
    """A request: verdicts on clients' earlier tasks, then jobs. Writes the bases of the jobs to the rows."""
    for row, job in enumerate(jobs):
        rows.write(row, *job.base.parts)
    fields = [(job.client_id, job.number, job.version, job.learning_rate, job.evaluate) for job in jobs]
    return json.dumps({"verdicts": verdicts, "jobs": fields}).encode()


def results_of(reply: bytes, rows: SharedRows) -> list[Result]:
    """The results of a request. Copies the vectors, because the next request overwrites the rows."""
    results: list[Result] = []
    for row, fields in enumerate(json.loads(reply)):
        if "not_trained" in fields:
            results.append(_KINDS[fields["kind"]](fields["not_trained"]))
            continue
        vector_d, buffers_b, extra_d = rows.parts(row)
        evaluation = fields.pop("evaluation")
        if evaluation is not None:
            evaluation["class_accuracy"] = tuple(evaluation["class_accuracy"])
        local = LocalUpdate(
            vector_d=vector_d.clone(),
            buffers_b=buffers_b.clone() if len(buffers_b) else None,
            extra_d=None if extra_d is None else extra_d.clone(),
            **fields,
        )
        results.append(Computed(local=local, evaluation=None if evaluation is None else Measured(**evaluation)))
    return results


def _reply(
    request: dict[str, Any], workload: Workload, rows: SharedRows, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Compute a request. The results replace the bases in the rows."""
    for client_id, number, kept in request["verdicts"]:
        (workload.keep if kept else workload.drop)(client_id, number)
    jobs = [
        Job(
            client_id=client_id,
            number=number,
            base=rows.version(row),
            learning_rate=learning_rate,
            evaluate=evaluate,
            version=version,
            settings=settings,
        )
        for row, (client_id, number, version, learning_rate, evaluate) in enumerate(request["jobs"])
    ]
    reply: list[dict[str, Any]] = []
    for row, computed in enumerate(one_by_one(workload, jobs)):
        if isinstance(computed, NotTrained):
            kind = next((name for name, kind in _KINDS.items() if isinstance(computed, kind)), TrainingFailed.__name__)
            reply.append({"not_trained": str(computed), "kind": kind})
            continue
        local, evaluation = computed.local, computed.evaluation
        rows.write(row, local.vector_d, local.buffers_b, local.extra_d)
        fields = ("kind", "num_examples", "batch_examples", "steps", "loss", "learning_rate", "metrics")
        reply.append(
            {name: getattr(local, name) for name in fields}
            | {"evaluation": None if evaluation is None else asdict(evaluation)}
        )
    return reply
