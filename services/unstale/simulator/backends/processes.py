"""Backend `processes`: clients computed in this process and in worker processes, one on each core."""

import os
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from typing_extensions import override

from unstale.config.settings import Settings
from unstale.errors import UserError, WorkerLostError
from unstale.simulator.backends import client_worker
from unstale.simulator.backends.backend import Backend, Job, Result, one_by_one
from unstale.simulator.backends.shared_memory import ROWS, SharedRows, make_file
from unstale.simulator.backends.worker_jobs import described, shares
from unstale.training.workload import Workload
from unstale.workers import pool


class Processes(Backend):
    """The bits are those of `loop`, because every process computes the same with the same numbers.

    Workers need seconds to start. Until then this process computes everything, unless clients keep state: then process
    i mod P always computes client i, and the first job waits for all processes. Otherwise client i goes to that process
    unless its share of the steps gets unfair; this limits the processes that hold the client's examples.

    Each process holds the data set. Workers end with this process, however it ends, and with `close`.
    """

    def __init__(self, workload: Workload, settings: Settings, processes: int) -> None:
        """workload: of the settings, on the CPU. processes: P, with this one, >= 1."""
        self.at_a_time = processes
        self._workload = workload
        model = workload.model
        shape = model.dimension, model.buffers_b.numel(), workload.needs_extra
        self._workers = [_Worker(settings, *shape) for _ in range(processes - 1)]
        self._end_workers = weakref.finalize(self, _close, [worker.pool for worker in self._workers])

    @override
    def compute(self, jobs: Sequence[Job]) -> list[Result]:
        results: list[Result] = []
        for start in range(0, len(jobs), ROWS):
            results += self._compute(jobs[start : start + ROWS])
        return results

    def _compute(self, jobs: Sequence[Job]) -> list[Result]:
        if self._workload.keeps_state:
            self.wait()
        ready = [worker for worker in self._workers if worker.is_ready]
        own, *others = self._assigned(jobs, 1 + len(ready))
        pending = [
            (worker, indexes, worker.submit([jobs[index] for index in indexes]))
            for worker, indexes in zip(ready, others, strict=True)
            if indexes
        ]
        results = dict(zip(own, one_by_one(self._workload, [jobs[index] for index in own]), strict=True))
        for worker, indexes, future in pending:
            results.update(zip(indexes, worker.results(future), strict=True))
        return [results[index] for index in range(len(jobs))]

    @override
    def keep(self, client_id: int, number: int) -> None:
        self._settle(client_id, number, kept=True)

    @override
    def drop(self, client_id: int, number: int) -> None:
        self._settle(client_id, number, kept=False)

    def wait(self) -> None:
        """Wait until all workers are ready."""
        for worker in self._workers:
            worker.wait()

    @override
    def close(self) -> None:
        self._end_workers()

    def _settle(self, client_id: int, number: int, *, kept: bool) -> None:
        if not self._workload.keeps_state:
            return
        process = client_id % self.at_a_time
        if process:
            self._workers[process - 1].verdicts.append((client_id, number, kept))
        else:
            (self._workload.keep if kept else self._workload.drop)(client_id, number)

    def _assigned(self, jobs: Sequence[Job], count: int) -> list[list[int]]:
        """Indexes of the jobs that each of so many processes computes, this one first."""
        return shares(jobs, count, self._workload.steps_of, is_fixed=self._workload.keeps_state)


class _Worker:
    """A worker process. verdicts: on clients' tasks, sent with the next jobs."""

    def __init__(self, settings: Settings, dimension: int, buffers: int, extra: bool) -> None:
        self.verdicts: list[tuple[int, int, bool]] = []
        descriptor = make_file(dimension, buffers, extra=extra)
        self._rows = SharedRows(descriptor, dimension, buffers, extra=extra)
        self.pool = pool.local(
            f"{client_worker.__name__}:{client_worker.begin.__name__}",
            {**described(settings), "rows": descriptor},
            descriptors=(descriptor,),
        )
        os.close(descriptor)

    @property
    def is_ready(self) -> bool:
        if self.pool.ready.done():
            self.wait()
        return self.pool.capacity > 0

    def wait(self) -> None:
        self._result(self.pool.ready)

    def submit(self, jobs: Sequence[Job]) -> "Future[bytes]":
        """At most ROWS jobs, one request at a time."""
        verdicts, self.verdicts = self.verdicts, []
        return self.pool.submit(client_worker.request_of(jobs, verdicts, self._rows))

    def results(self, future: "Future[bytes]") -> list[Result]:
        return client_worker.results_of(self._result(future), self._rows)

    def _result(self, future: "Future[Any]") -> Any:
        try:
            return future.result()
        except WorkerLostError:
            message = f"a process that computes clients {self.pool.how_ended()}"
        if self.pool.exit_code() < 0:
            raise UserError(f"{message}; set simulation.processes to fewer, or simulation.backend to loop")
        raise RuntimeError(f"{message}; see what it printed")


def _close(pools: Sequence[pool.Pool]) -> None:
    for one in pools:
        one.close()
