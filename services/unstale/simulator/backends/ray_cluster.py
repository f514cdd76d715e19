"""Backend of the setting `ray`: clients computed by tasks on a Ray cluster."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future

from typing_extensions import override

from unstale.config.settings import Settings
from unstale.errors import WorkerLostError
from unstale.simulator.backends import ray_tasks
from unstale.simulator.backends.backend import Backend, Computed, Job, Result, one_by_one
from unstale.simulator.backends.worker_jobs import shares
from unstale.training.workload import Workload
from unstale.workers.pool import RayStart
from unstale.workers.program import described
from unstale.workers.ray_executor import RayExecutor

log = logging.getLogger("unstale.simulator")

ATTEMPTS = 4  # of a task, each in another worker; the next machine may be lost, too


class RayCluster(Backend):
    """The bits are those of `loop`: a task has all its inputs, so that a lost one is computed again elsewhere.

    Jobs are divided into one task for each that the cluster computes at a time, by their steps. The state of clients
    is in this process: it goes with each task, and comes back with its result. This process computes tasks that are
    lost on the cluster, and all tasks until a lost cluster has come back.
    """

    def __init__(self, workload: Workload, settings: Settings) -> None:
        """workload: of the settings, on the CPU, in its first state. Raises UserError if the cluster cannot be used."""
        assert settings.ray is not None
        self._workload = workload
        description = ray_tasks.described(settings, workload)
        self._executor = RayExecutor(
            RayStart(
                address=settings.ray,
                key="ray",
                program=described(f"{ray_tasks.__name__}:{ray_tasks.begin.__name__}", description),
                cpus=settings.threads,
                gpus=0.0,
                advice="lower threads",
                attempts=ATTEMPTS,
            )
        )
        self.at_a_time = max(2, self._executor.capacity)  # 1 would make a task of each job
        self._losses: set[str] = set()

    @override
    def compute(self, jobs: Sequence[Job]) -> list[Result]:
        count = max(1, self._executor.capacity)
        parts = list(filter(None, shares(jobs, count, self._workload.steps_of, is_fixed=False)))
        requests = [ray_tasks.request_of([jobs[index] for index in part], self._workload.kept) for part in parts]
        futures = [self._executor.submit(request) for request in requests]
        results: dict[int, Result] = {}
        for part, future in zip(parts, futures, strict=True):
            results.update(zip(part, self._results([jobs[index] for index in part], future), strict=True))
        return [results[index] for index in range(len(jobs))]

    @override
    def keep(self, client_id: int, number: int) -> None:
        self._workload.keep(client_id, number)

    @override
    def drop(self, client_id: int, number: int) -> None:
        self._workload.drop(client_id, number)

    @override
    def close(self) -> None:
        self._executor.close()

    def _results(self, jobs: Sequence[Job], future: "Future[bytes]") -> list[Result]:
        try:
            results = ray_tasks.results_of(future.result())
        except WorkerLostError as error:
            self._log(str(error))
            return list(one_by_one(self._workload, jobs))
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Computed):
                self._workload.client_state.put(job.client_id, job.number, result.local.state)
        return results

    def _log(self, loss: str) -> None:
        if loss not in self._losses:
            self._losses.add(loss)
            log.warning("clients are computed in this process, because their task on Ray is lost (%s)", loss)
