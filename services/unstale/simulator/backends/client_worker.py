"""Computes clients in a worker process of the backend `processes`. Vectors lie in shared memory, the rest is JSON."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from unstale.simulator.backends.backend import Computed, Job, Result, one_by_one
from unstale.simulator.backends.shared_memory import SharedRows
from unstale.simulator.backends.worker_jobs import fields_of, not_trained, result_of, workload_of
from unstale.training.workload import Workload
from unstale.workers.program import Compute, Progress


def begin(settings: dict[str, Any]) -> Compute:
    """The function that computes requests. settings: of `worker_jobs.described`, and the descriptor `rows`."""
    workload, client_settings = workload_of(settings)
    model = workload.model
    rows = SharedRows(settings["rows"], model.dimension, model.buffers_b.numel(), extra=workload.needs_extra)
    os.close(settings["rows"])

    def compute(request: bytes, _: Progress) -> bytes:
        return json.dumps(_reply(json.loads(request), workload, rows, client_settings)).encode()

    return compute


def request_of(jobs: Sequence[Job], verdicts: Sequence[tuple[int, int, bool]], rows: SharedRows) -> bytes:
    """A request: verdicts on clients' earlier tasks, then jobs. Writes the bases of the jobs to the rows."""
    for row, job in enumerate(jobs):
        rows.write(row, *job.base.parts)
    fields = [(job.client_id, job.number, job.version, job.learning_rate, job.evaluate) for job in jobs]
    return json.dumps({"verdicts": verdicts, "jobs": fields}).encode()


def results_of(reply: bytes, rows: SharedRows) -> list[Result]:
    """The results of a request. Copies the vectors, because the next request overwrites the rows."""
    return [not_trained(fields) or _computed(fields, row, rows) for row, fields in enumerate(json.loads(reply))]


def _computed(fields: dict[str, Any], row: int, rows: SharedRows) -> Computed:
    vector_d, buffers_b, extra_d = rows.parts(row)
    return result_of(
        fields,
        vector_d.clone(),
        buffers_b.clone() if len(buffers_b) else None,
        None if extra_d is None else extra_d.clone(),
        {},
    )


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
    for row, result in enumerate(one_by_one(workload, jobs)):
        if isinstance(result, Computed):
            rows.write(row, result.local.vector_d, result.local.buffers_b, result.local.extra_d)
        reply.append(fields_of(result))
    return reply
