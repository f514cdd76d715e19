"""Runs open jobs in processes of this machine or on a Ray cluster, and stores the results."""

import json
import queue
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Protocol

from unstale.errors import UserError, WorkerLostError
from unstale.settings.learning import DataSettings
from unstale.workers.pool import Pool
from unstale_client.net.clock import now_s
from unstale_papers import pools
from unstale_papers.durations import Durations, left_s
from unstale_papers.jobs import Job
from unstale_papers.record import Record
from unstale_papers.store import Result, Store

ATTEMPTS = 2  # another process may cause a kill; a job that ends two processes is the cause itself
REPORT_S = 60.0  # between two reports of progress
SHARE_MIN = 0.05  # of a job, from which on its progress predicts its duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of jobs, each counted once: all, done before, done now, failed."""

    jobs: int
    before: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a run. shares: done of each running job, from 0 to 1. left_s: seconds left; None if unknown."""

    counts: Counts
    shares: tuple[float, ...]
    left_s: float | None


class Watcher(Protocol):
    """Receives events, in the thread that runs."""

    def finished(self, job: Job, record: Record, seconds: float) -> None:
        """A job is done, and its result is stored."""

    def failed(self, job: Job, traceback: str) -> None:
        """A job has failed, and the failure is stored."""

    def again(self, job: Job, why: str) -> None:
        """A job was lost, and runs again."""

    def stands(self, standing: Progress) -> None:
        """After each of the above, and once a minute."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Run:
    """A job under way. share: what is done of it, from 0 to 1."""

    job: Job
    pool: Pool
    began_s: float
    share: float = 0.0


class Engine:
    """Runs each job once. A lost job does not affect others.

    processes: of this machine, each for one job at a time. gpu_share: of the GPU's memory, for each of them. first: one
    of them, started; it ends with the run. ray: address of a cluster that replaces them; gpus: of the cluster per job.
    """

    def __init__(
        self,
        store: Store,
        watcher: Watcher,
        *,
        processes: int = 1,
        gpu_share: float = 1.0,
        first: Pool | None = None,
        ray: str | None = None,
        gpus: float = 0.0,
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._processes = processes
        self._gpu_share = gpu_share
        self._ray = ray
        self._gpus = gpus
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pools: list[Pool] = []
        self._data: dict[Pool, DataSettings] = {}
        self._waiting: list[Job] = []
        self._running: list[_Run] = []
        self._count: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        self._durations = Durations(store.seconds())
        self._stopped = False
        self._reported_s = now_s()
        if first is not None:
            self._add(first)

    def stop(self) -> None:
        """End soon; what runs is lost. Any thread, any time, also in a signal handler."""
        self._events.put(self._stop)

    def run(self, jobs: Iterable[Job]) -> Counts:
        """Run until all are done or have failed, or `stop`. Jobs that failed before are retried. Call it once.

        Raises UserError when results cannot be stored, or no process computes.
        """
        planned = {job.digest: job for job in reversed(list(jobs))}  # of equal ones the first
        self._waiting = [job for job in reversed(planned.values()) if not self._store.has(job.digest)]
        self._count["jobs"] = len(planned)
        self._count["before"] = len(planned) - len(self._waiting)
        try:
            while not self._stopped and (self._waiting or self._running):
                self._start_pools()
                self._submit_jobs()
                self._handle_event()
        finally:
            for pool in self._pools:
                pool.close()
            self._pools.clear()
        return self._counts

    @property
    def _counts(self) -> Counts:
        return Counts(**{field.name: self._count[field.name] for field in fields(Counts)})

    def _start_pools(self) -> None:
        """Start a process per job up to the limit, or the cluster."""
        if self._ray is None:
            self._pools = [pool for pool in self._pools if pool.why_ended is None]
        count = 1 if self._ray else min(self._processes, len(self._waiting) + len(self._running))
        try:
            while len(self._pools) < count:
                self._add(pools.on_ray(self._ray, self._gpus) if self._ray else pools.local())
        except OSError as error:
            raise UserError(
                f"a process that computes does not start ({error.strerror}), expected room for {count}; lower "
                "--processes, or end others"
            ) from None

    def _add(self, pool: Pool) -> None:
        self._pools.append(pool)
        pool.ready.add_done_callback(lambda _: self._events.put(partial(self._on_ready, pool)))

    def _submit_jobs(self) -> None:
        for pool in self._pools:
            running = sum(run.pool is pool for run in self._running)
            for _ in range(min(pool.capacity - running, len(self._waiting))):
                self._submit(pool, self._next(pool))

    def _next(self, pool: Pool) -> Job:
        """The first waiting job, preferring within its seed the data that this process has loaded."""
        first = self._waiting[0]
        data = self._data.get(pool)
        near = (job for job in self._waiting if job.seed == first.seed and job.settings.data == data)
        job = next(near, first)
        self._waiting.remove(job)
        return job

    def _submit(self, pool: Pool, job: Job) -> None:
        self._data[pool] = job.settings.data
        run = _Run(job=job, pool=pool, began_s=now_s())
        self._running.append(run)
        order = json.dumps({**job.order, "gpu_share": self._gpu_share}).encode()
        future = pool.submit(order, lambda share: self._events.put(partial(self._on_share, run, share)))
        future.add_done_callback(lambda future: self._events.put(partial(self._on_end, run, future)))

    def _handle_event(self) -> None:
        """Wait for an event and handle it."""
        with suppress(queue.Empty):
            self._events.get(timeout=REPORT_S)()
        if now_s() - self._reported_s >= REPORT_S:
            self._report()

    def _stop(self) -> None:
        self._stopped = True

    def _on_ready(self, pool: Pool) -> None:
        """Raise UserError for a pool that does not become ready."""
        try:
            pool.ready.result()
        except WorkerLostError:
            self._check_cluster(pool)
            raise UserError(
                f"a process that computes did not begin (its process {pool.how_ended()}); see what it printed"
            ) from None

    def _check_cluster(self, pool: Pool) -> None:
        """Raise UserError for a cluster that is lost."""
        if self._ray is not None:
            raise UserError(
                f"the Ray cluster {self._ray} is lost (its process {pool.how_ended()}); results are kept: repeat "
                "the command to continue"
            )

    def _on_share(self, run: _Run, share: float) -> None:
        run.share = share

    def _on_end(self, run: _Run, future: "Future[bytes]") -> None:
        self._running.remove(run)
        try:
            reply = json.loads(future.result())
        except WorkerLostError as error:
            if run.pool.why_ended is not None:
                self._check_cluster(run.pool)
            self._lose(run.job, str(error))
        else:
            if "traceback" in reply:
                self._fail(run.job, reply["traceback"])
            else:
                self._keep(run.job, Result(**reply))
        self._report()

    def _keep(self, job: Job, result: Result) -> None:
        self._store.keep(job, result)
        self._durations.add(job.configuration, result.seconds)
        self._count["done"] += 1
        self._watcher.finished(job, Record.from_json(result.record), result.seconds)

    def _lose(self, job: Job, why: str) -> None:
        self._attempts[job.digest] += 1
        if self._attempts[job.digest] < ATTEMPTS:
            self._waiting.insert(0, job)
            self._watcher.again(job, why)
        else:
            self._fail(job, f"{why}; it was tried {ATTEMPTS} times")

    def _fail(self, job: Job, traceback: str) -> None:
        self._store.fail(job, traceback)
        self._count["failed"] += 1
        self._watcher.failed(job, traceback)

    def _report(self) -> None:
        self._reported_s = now_s()
        waiting = [self._durations.of(job.configuration) for job in self._waiting]
        at_a_time = sum(pool.capacity for pool in self._pools) or self._processes
        self._watcher.stands(
            Progress(
                counts=self._counts,
                shares=tuple(run.share for run in self._running),
                left_s=left_s([self._timed(run) for run in self._running], waiting, at_a_time),
            )
        )

    def _timed(self, run: _Run) -> tuple[float, float | None]:
        """Elapsed and total seconds of a job."""
        spent_s = now_s() - run.began_s
        return spent_s, spent_s / run.share if run.share >= SHARE_MIN else self._durations.of(run.job.configuration)
