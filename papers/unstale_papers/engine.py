"""Has jobs done that are not done yet, by processes of this machine or a Ray cluster, and keeps what they came to."""

import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from multiprocessing.connection import wait
from typing import Any, Protocol

from unstale.errors import UserError
from unstale.net.clock import now_s
from unstale_papers import hands
from unstale_papers.durations import Durations, left_s
from unstale_papers.hands import EndedError, Hand
from unstale_papers.jobs import Job
from unstale_papers.record import Record
from unstale_papers.store import Result, Store

ATTEMPTS = 2  # a process may be killed for what another one did; a job that ends two of them does it itself
TELL_S = 60.0  # between two words on how it stands
SHARE_MIN = 0.05  # of a job, from which its own pace says how long it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Of jobs, each counted once: all, those that were done before, that were done, that failed."""

    jobs: int
    before: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How it stands. shares: of each job that runs, what is done, from 0 to 1. left_s: None where nothing says it."""

    counts: Counts
    shares: tuple[float, ...]
    left_s: float | None


class Watcher(Protocol):
    """Is told what happens, by the thread that runs."""

    def finished(self, job: Job, record: Record, seconds: float) -> None:
        """A job is done, and kept."""

    def failed(self, job: Job, traceback: str) -> None:
        """A job has failed, which is kept."""

    def again(self, job: Job, why: str) -> None:
        """A job was lost, and is tried again."""

    def stands(self, standing: Progress) -> None:
        """After each of the above, and else once a minute."""


class Engine:
    """Has jobs done, each once. A job that is lost costs no other one.

    processes: of this machine, each for one job at a time. first: one of them that has begun; it ends with the run.
    ray: address of a cluster that does them instead; gpus: of it for each job.
    """

    def __init__(
        self,
        store: Store,
        watcher: Watcher,
        *,
        processes: int = 1,
        first: Hand | None = None,
        ray: str | None = None,
        gpus: float = 0.0,
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._processes = processes
        self._ray = ray
        self._gpus = gpus
        self._hands = [] if first is None else [first]
        self._waiting: list[Job] = []
        self._count: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        self._began_s: dict[str, float] = {}
        self._durations = Durations(store.seconds())
        self._stop_here, self._stop_there = socket.socketpair()
        self._stopped = False
        self._told_s = now_s()

    def stop(self) -> None:
        """End soon; what runs is lost. Any thread, any time."""
        with suppress(OSError):  # it has ended
            self._stop_there.send(b"!")

    def run(self, jobs: Iterable[Job]) -> Counts:
        """Until all are done or have failed, or it is stopped. Jobs that failed before are tried again. Once.

        Raises UserError when what is computed cannot be kept, or nothing computes.
        """
        planned = {job.digest: job for job in reversed(list(jobs))}  # of equal ones the first
        self._waiting = [job for job in reversed(planned.values()) if not self._store.has(job.digest)]
        self._count["jobs"] = len(planned)
        self._count["before"] = len(planned) - len(self._waiting)
        try:
            while not self._stopped and (self._waiting or self._running):
                self._staff()
                self._give()
                self._hear()
        finally:
            for hand in self._hands:
                hand.close()
            self._hands.clear()
            self._stop_here.close()
            self._stop_there.close()
        return self._counts

    @property
    def _counts(self) -> Counts:
        return Counts(**{one.name: self._count[one.name] for one in fields(Counts)})

    @property
    def _running(self) -> list[tuple[Hand, Job]]:
        return [(hand, job) for hand in self._hands for job in hand.jobs.values()]

    def _staff(self) -> None:
        """As many processes as there are jobs, and no more than may be."""
        if self._ray is not None:
            self._hands = self._hands or [hands.on_ray(self._ray, self._gpus)]
            return
        wanted = min(self._processes, len(self._waiting) + len(self._running))
        try:
            while len(self._hands) < wanted:
                self._hands.append(hands.local())
        except OSError as error:
            raise UserError(
                f"a process that computes does not start ({error.strerror}), expected room for {wanted}; lower "
                "--processes, or end others"
            ) from None

    def _give(self) -> None:
        for hand in self._hands:
            while self._waiting and hand.is_free:
                job = self._next(hand)
                self._began_s[job.digest] = now_s()
                hand.give(job)

    def _next(self, hand: Hand) -> Job:
        """The first that waits, or of its seed the first with the data that this process has loaded."""
        first = self._waiting[0]
        near = (job for job in self._waiting if job.seed == first.seed and job.settings.data == hand.data)
        job = next(near, first)
        self._waiting.remove(job)
        return job

    def _hear(self) -> None:
        """Wait until somebody has something to say, and take it in."""
        by_pipe: dict[Any, Hand] = {hand.pipe: hand for hand in self._hands}
        ready = wait([*by_pipe, self._stop_here], TELL_S)
        if self._stop_here in ready:
            self._stopped = True
            return
        for pipe in ready:
            hand = by_pipe[pipe]
            try:
                self._take_in(hand, hand.hear())
            except EndedError as ended:
                self._replace(hand, str(ended))
        if now_s() - self._told_s >= TELL_S:
            self._tell()

    def _take_in(self, hand: Hand, words: dict[str, Any]) -> None:
        if "ready" in words:
            hand.capacity = words["ready"]
        elif "refused" in words:
            raise UserError(words["refused"])
        elif "share" in words:
            hand.shares[words["digest"]] = words["share"]
        else:
            job = hand.taken(words["digest"])
            if "lost" in words:
                self._lose(job, words["lost"])
            elif "traceback" in words:
                self._fail(job, words["traceback"])
            else:
                self._keep(job, words)
            self._tell()

    def _replace(self, hand: Hand, how: str) -> None:
        """A process has ended by itself."""
        if hand.where is not None:
            raise UserError(
                f"the Ray cluster {hand.where} is gone ({how}); what is done is kept, and the same command goes on"
            )
        if not hand.capacity:
            raise UserError(f"a process that computes did not begin ({how}); see what it printed")
        hand.close()
        self._hands.remove(hand)
        for job in list(hand.jobs.values()):
            self._lose(job, how)
        self._tell()

    def _keep(self, job: Job, words: dict[str, Any]) -> None:
        kept = Result(**{name: words[name] for name in ("record", "seconds", "machine", "versions")})
        self._store.keep(job, kept)
        self._durations.add(job.configuration, kept.seconds)
        self._count["done"] += 1
        self._watcher.finished(job, Record.from_json(kept.record), kept.seconds)

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

    def _tell(self) -> None:
        self._told_s = now_s()
        running = [(hand.shares.get(job.digest, 0.0), job) for hand, job in self._running]
        timed = [self._timed(job, share) for share, job in running]
        waiting = [self._durations.of(job.configuration) for job in self._waiting]
        at_a_time = sum(hand.capacity for hand in self._hands) or self._processes
        self._watcher.stands(
            Progress(
                counts=self._counts,
                shares=tuple(share for share, _ in running),
                left_s=left_s(timed, waiting, at_a_time),
            )
        )

    def _timed(self, job: Job, share: float) -> tuple[float, float | None]:
        """Seconds that it has taken, and takes in all."""
        spent_s = now_s() - self._began_s[job.digest]
        return spent_s, spent_s / share if share >= SHARE_MIN else self._durations.of(job.configuration)
