"""The worker thread: trains the tasks of all clients that this process hosts, one after the other, on one model."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from torch import Tensor

from unstale import translate
from unstale.client import residuals
from unstale.client.actions import PendingUpdate
from unstale.client.outbox import Outbox
from unstale.client.residuals import Residuals
from unstale.config.training_context import TrainingContext
from unstale.learner.device import compute_here
from unstale.net.clock import now_s
from unstale.training.evaluate import Evaluation
from unstale.training.local import LocalUpdate
from unstale.training.trainer import Trainer
from unstale_proto import encodings, limits, transfer
from unstale_proto.errors import RemoteContractError
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
    """What becomes of an update is known: what its client was to keep from it is kept if it was accepted.

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
class Ready:
    """The update of a job can be sent: it is stored, where there is an outbox. duration_s: as in `Trained`. computed_s:
    how long it really took here.
    """

    job: Job
    pending: PendingUpdate
    duration_s: float = 0.0
    computed_s: float = 0.0


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


Result = Ready | Failed | Crashed

Durations = Callable[[int, int, int], float]
"""Seconds that a task takes on a client's device, given client id, number of the task, and local steps."""


class Worker:
    """Takes jobs from `submit` until `close`; results leave through `post`, from the worker's thread.

    prepare: makes the workplace (data, shares, model) that a welcome describes; raises UserError where it cannot.
    durations: how long tasks of that run take on the clients' devices, asked for after `prepare`; None for no time.
    outbox: where updates and what clients keep are stored; this thread's own while it runs. None for memory alone.
    """

    def __init__(
        self,
        prepare: Callable[[Welcome], TrainingContext],
        post: Callable[[Result], None],
        durations: Callable[[Welcome], Durations] | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self._prepare = prepare
        self._outbox = outbox
        self._residuals = Residuals()
        self._early: list[Settlement] = []
        self._durations = durations
        self._duration_s: Durations | None = None
        self._post = post
        self._jobs: queue.SimpleQueue[Job | Settlement | None] = queue.SimpleQueue()
        self._run_id = ""
        self._context: TrainingContext | None = None
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job | Settlement) -> None:
        """Queue a job, or a verdict, in the order in which they came."""
        self._jobs.put(job)

    def close(self) -> None:
        """End after the job at hand. What waits is left undone: a job is not acknowledged, so somebody does it again;
        an update whose verdict waits is still in the outbox, and is sent again when there is a next time."""
        while not self._jobs.empty():
            self._jobs.get()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            compute_here()
            while (job := self._jobs.get()) is not None:
                if isinstance(job, Settlement):
                    self._settle(job)
                elif job.wanted():
                    began_s = now_s()
                    done = self._work(job)
                    if isinstance(done, Trained):
                        stored = self._stored(done)
                        self._post(replace(stored, computed_s=now_s() - began_s))
                    else:
                        self._post(done)
        except BaseException as error:  # noqa: BLE001  (handed to the main thread, which raises it)
            self._post(Crashed(error=error))

    def _work(self, job: Job) -> Trained | Failed:
        context = self._workplace_for(job.welcome)
        trainer = context.trainer
        duration_s = 0.0
        if self._duration_s is not None:
            steps = trainer.steps_of(job.client_id)
            duration_s = self._duration_s(job.client_id, job.task.number, steps)
        try:
            model = encodings.of_task(job.welcome, job.task).decode(job.model.frames)
            base_d, buffers_b, extra_d = context.received(model, extra=bool(job.welcome.extra))
        except RemoteContractError as error:
            return Failed(job=job, message=f"the model cannot be read: {error}", duration_s=duration_s)
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
            version=job.task.version,
        )
        if not isfinite(local.loss):
            trainer.drop(job.client_id, job.task.number)
            return Failed(
                job=job,
                message=f"training diverged: mean loss {local.loss} from version {job.task.version}",
                duration_s=duration_s,
            )
        return Trained(job=job, local=local, evaluation=evaluation, duration_s=duration_s)

    def _stored(self, trained: Trained) -> Ready:
        job, local = trained.job, trained.local
        encoding = encodings.of_update(job.welcome)
        parts = translate.payload_parts(local)
        parcel, left_out = self._residuals.encode(job.client_id, job.task.number, parts, encoding)
        checksum = _checksum(parcel)
        pending = PendingUpdate(
            run_id=job.welcome.run_id,
            number=job.task.number,
            update=translate.to_update(
                job.task, local, trained.evaluation, checksum=checksum, encoding=encoding
            ),
            parcel=parcel,
        )
        if self._outbox is not None:
            pending = self._outbox.put(job.client_id, pending, {**local.state, **left_out})
        return Ready(job=job, pending=pending, duration_s=trained.duration_s)

    def _settle(self, settlement: Settlement) -> None:
        client_id, number = settlement.client_id, settlement.number
        of = (client_id, settlement.run_id, number)
        outbox = self._outbox
        kept: Mapping[str, Tensor] | None = None
        if self._context is not None and settlement.run_id == self._run_id:
            trainer, accepted = self._context.trainer, settlement.accepted
            changed = self._residuals.settle(client_id, number, accepted=accepted)
            if not accepted:
                trainer.drop(client_id, number)
            elif trainer.keep(client_id, number) or changed:
                kept = {**trainer.kept(client_id), **self._residuals.kept(client_id)}
        elif outbox is not None and settlement.accepted and outbox.waits_for_state(*of):
            # Nobody is there yet who could keep it. Until then it waits on disk.
            self._early.append(settlement)
            return
        if outbox is not None and kept is not None:
            outbox.keep(*of, kept)
        elif outbox is not None:
            outbox.let_go(*of)

    def _workplace_for(self, welcome: Welcome) -> TrainingContext:
        if self._context is None or welcome.run_id != self._run_id:
            self._context, self._run_id = self._prepare(welcome), welcome.run_id
            self._duration_s = None if self._durations is None else self._durations(welcome)
            self._residuals.clear()
            self._take_up(self._context.trainer)
        return self._context

    def _take_up(self, trainer: Trainer) -> None:
        """Give clients what they had when the process died, with the verdicts that came before there was a trainer."""
        if self._outbox is None:
            return
        for client_id, kept, pending in self._outbox.restore(self._run_id):
            of_trainer = {number: residuals.without(state) for number, state in pending.items()}
            trainer.restore(client_id, residuals.without(kept), of_trainer)
            self._residuals.restore(client_id, kept, pending)
        early, self._early = self._early, []
        for settlement in early:
            if settlement.run_id == self._run_id:
                self._settle(settlement)


def _checksum(parcel: Sequence[memoryview]) -> str | None:
    """Of a payload that goes in chunks."""
    return transfer.checksum(parcel) if sum(map(len, parcel)) > limits.CHUNK_BYTES else None
