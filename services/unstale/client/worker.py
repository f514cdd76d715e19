"""The worker thread: trains the tasks of all clients that this process hosts, one after the other, on one model."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from unstale.config.workplace import Workplace
from unstale.training.evaluate import Evaluation
from unstale.training.local import LocalUpdate
from unstale_proto.messages import Task, Welcome


@dataclass(eq=False, slots=True, weakref_slot=True)
class ReceivedModel:
    """A version as it came: payload frames. One for all hosted clients that were given it."""

    frames: Sequence[memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A task of one hosted client. wanted: asked again when its turn comes. received_s: when the task came, on the
    clock of whoever submits it.
    """

    client_id: int
    welcome: Welcome
    task: Task
    model: ReceivedModel
    wanted: Callable[[], bool]
    received_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The verdict on an update has come: what its client was to keep from it is kept if it was accepted.

    number: of the client's task.
    """

    client_id: int
    run_id: str
    number: int
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A job is done. evaluation: of the task's model on the client's own test examples, if the task asked for it.
    duration_s: how long the task takes on the client's device, however fast it was done here.
    """

    job: Job
    local: LocalUpdate
    evaluation: Evaluation | None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A job made nothing that could be sent: why, for people. duration_s: as in `Trained`."""

    job: Job
    message: str
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The worker is dead of this."""

    error: BaseException


Result = Trained | Failed | Crashed

Durations = Callable[[int, int, int], float]
"""Seconds that a task takes on a client's device, given client id, number of the task, and local steps."""


class Worker:
    """Takes jobs from `submit` until `close`; results leave through `post`, from the worker's thread.

    prepare: makes the workplace (data, shares, model) that a welcome describes; raises UserError where it cannot.
    durations: how long tasks of that run take on the clients' devices, asked for after `prepare`; None for no time.
    """

    def __init__(
        self,
        prepare: Callable[[Welcome], Workplace],
        post: Callable[[Result], None],
        durations: Callable[[Welcome], Durations] | None = None,
    ) -> None:
        self._prepare = prepare
        self._durations = durations
        self._duration_s: Durations | None = None
        self._post = post
        self._jobs: queue.SimpleQueue[Job | Settlement | None] = queue.SimpleQueue()
        self._run_id = ""
        self._workplace: Workplace | None = None
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job | Settlement) -> None:
        """Queue a job, or a verdict, in the order in which they came."""
        self._jobs.put(job)

    def close(self) -> None:
        """End after the job at hand. What waits is left undone: it is not acknowledged, so somebody does it again."""
        while not self._jobs.empty():
            self._jobs.get()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                if isinstance(job, Settlement):
                    self._settle(job)
                elif job.wanted():
                    self._post(self._work(job))
        except BaseException as error:  # noqa: BLE001  (handed to the main thread, which raises it)
            self._post(Crashed(error=error))

    def _work(self, job: Job) -> Result:
        workplace = self._workplace_for(job.welcome)
        trainer = workplace.trainer
        duration_s = 0.0
        if self._duration_s is not None:
            steps = trainer.steps_of(job.client_id)
            duration_s = self._duration_s(job.client_id, job.task.number, steps)
        base_d, buffers_b, extra_d = workplace.received(job.model.frames, extra=bool(job.welcome.extra))
        evaluation = None
        if job.task.evaluate:
            evaluation = trainer.evaluate_own(job.client_id, base_d, buffers_b)
        local = trainer.train(
            job.client_id,
            job.task.number,
            base_d,
            job.task.learning_rate,
            buffers_b=buffers_b,
            extra_d=extra_d,
        )
        if not isfinite(local.loss):
            trainer.drop(job.client_id, job.task.number)
            return Failed(
                job=job,
                message=f"training diverged: mean loss {local.loss} from version {job.task.version}",
                duration_s=duration_s,
            )
        return Trained(job=job, local=local, evaluation=evaluation, duration_s=duration_s)

    def _settle(self, settlement: Settlement) -> None:
        if self._workplace is None or settlement.run_id != self._run_id:
            return
        trainer = self._workplace.trainer
        settle = trainer.keep if settlement.accepted else trainer.drop
        settle(settlement.client_id, settlement.number)

    def _workplace_for(self, welcome: Welcome) -> Workplace:
        if self._workplace is None or welcome.run_id != self._run_id:
            self._workplace, self._run_id = self._prepare(welcome), welcome.run_id
            self._duration_s = None if self._durations is None else self._durations(welcome)
        return self._workplace
