"""The worker thread: trains the tasks of all clients of this process, one at a time, on one model."""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from unstale import translate
from unstale.client.time_limit import TimeLimit
from unstale.errors import HangingError
from unstale.flat import FlatModel
from unstale.learner.device import compute_here
from unstale.training.local import LocalUpdate
from unstale.training.measured import Measured
from unstale.training.workload import ClientTask, Declined, NotTrained, Workload
from unstale_client.jobs import Crashed, Failed, Job, Ready, Result, Settlement
from unstale_client.net.clock import now_s
from unstale_client.outbox import Outbox, State
from unstale_client.update_store import UpdateStore
from unstale_client.vectors import Vector
from unstale_proto import encodings, limits
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained task."""

    job: Job
    local: LocalUpdate
    evaluation: Measured | None  # of the task's model on the client's own test examples, if requested
    duration_s: float = 0.0  # simulated time of the task on the client's device


Durations = Callable[[int, int, int], float]
"""Seconds that a task takes on a client's device, by client id, number of the task, and local steps."""


PAUSE_S, PAUSE_MAX_S = 0.25, 1.0
"""Of a client whose code raises again and again."""


class Worker:
    """Works on submitted jobs until `close`.

    Args:
        prepare: makes the workload of a welcome; raises UserError.
        post: takes results, in the worker's thread.
        durations: makes the simulated durations of a welcome's run, called after `prepare`; None for no delay.
        outbox: stores updates and states, for this thread alone while it runs; None for memory alone.
        task_timeout_s: as `TimeLimit.limit_s`.
    """

    def __init__(
        self,
        prepare: Callable[[Welcome], Workload],
        post: Callable[[Result], None],
        durations: Callable[[Welcome], Durations] | None = None,
        outbox: Outbox | None = None,
        task_timeout_s: float | None = None,
    ) -> None:
        self._prepare = prepare
        self._store = UpdateStore(outbox)
        self._folder = None if outbox is None else outbox.folder
        self._durations = durations
        self._duration_s: Durations | None = None
        self._post = post
        self._ended = threading.Event()  # or a job exceeds its time limit twice
        self._time_limit = TimeLimit(task_timeout_s, post, self._ended.set)
        self._errors_in_a_row: dict[int, int] = {}  # by client, of the user's code
        self._jobs: queue.SimpleQueue[Job | Settlement | None] = queue.SimpleQueue()
        self._run_id = ""
        self._workload: Workload | None = None
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job | Settlement) -> None:
        """Queue a job or a settlement."""
        self._jobs.put(job)

    def close(self) -> None:
        """End after the current job, and drop the queue: the server gives those tasks again, and an update without a
        settlement is still in the outbox. Waits for no job that exceeds its time limit twice.
        """
        while not self._jobs.empty():
            self._jobs.get()
        self._jobs.put(None)
        self._ended.wait()
        if self.error is None:
            self._thread.join()

    @property
    def error(self) -> HangingError | None:
        """Of a job that does not end; None without one."""
        return self._time_limit.error

    def _run(self) -> None:
        try:
            compute_here()
            while (job := self._jobs.get()) is not None:
                if isinstance(job, Settlement):
                    self._store.settle(job)
                elif job.is_wanted():
                    result = self._result(job)
                    if self.error is not None:
                        return
                    if result is not None:
                        self._post(result)
        except BaseException as error:  # noqa: BLE001  (handed to the main thread, which raises it)
            self._post(Crashed(error=error))
        finally:
            self._ended.set()

    def _result(self, job: Job) -> Ready | Failed | None:
        """None for a job that exceeded its time limit: it is given back already."""
        began_s = now_s()
        trained = self._work(job)
        if trained is None or isinstance(trained, Failed):
            return trained
        return replace(self._stored(trained), computed_s=now_s() - began_s)

    def _work(self, job: Job) -> Trained | Failed | None:
        client_id, task = job.client_id, job.task
        workload = self._workload_for(job.welcome)
        duration_s = 0.0
        if self._duration_s is not None:
            duration_s = self._duration_s(client_id, task.number, workload.steps_of(client_id))
        try:
            model_D = job.model.vector(encodings.of_task(job.welcome, task), self._folder)
        except RemoteContractError as error:
            return Failed(job=job, message=f"the model cannot be decoded: {error}", duration_s=duration_s)
        base_d, buffers_b, extra_d = _received(workload.model, model_D, extra=bool(job.welcome.extra))
        given = ClientTask(
            client_id=client_id,
            number=task.number,
            version=task.version,
            base_d=base_d,
            learning_rate=task.learning_rate,
            buffers_b=buffers_b,
            extra_d=extra_d,
            settings=job.welcome.settings or {},
        )
        with self._time_limit.of(job):
            evaluation = workload.evaluate(client_id, base_d, buffers_b) if task.evaluate else None
            local = workload.outcome(given)
        if self._time_limit.is_exceeded:
            workload.drop(client_id, task.number)
            return None
        if isinstance(local, NotTrained):
            return self._not_trained(job, local, duration_s)
        self._errors_in_a_row.pop(client_id, None)
        if not isfinite(local.loss):
            workload.drop(client_id, task.number)
            return Failed(
                job=job,
                message=f"training diverged: mean loss {local.loss} from version {task.version}",
                duration_s=duration_s,
            )
        return Trained(job=job, local=local, evaluation=evaluation, duration_s=duration_s)

    def _not_trained(self, job: Job, error: NotTrained, duration_s: float) -> Failed:
        message = str(error)[: limits.TEXT_MAX]
        if isinstance(error, Declined):
            return Failed(job=job, message=message, reason=Reason.UNAVAILABLE, duration_s=duration_s)
        return Failed(
            job=job,
            message=message,
            is_code_error=error.is_code_error,
            duration_s=max(duration_s, self._pause_s(job.client_id)),
        )

    def _pause_s(self, client_id: int) -> float:
        """Time until an error goes to the server, which gives another task at once: longer after each one in a row."""
        before = self._errors_in_a_row.get(client_id, 0)
        self._errors_in_a_row[client_id] = before + 1
        return min(PAUSE_S * (2.0**before - 1), PAUSE_MAX_S)

    def _stored(self, trained: Trained) -> Ready:
        job, local = trained.job, trained.local
        parts = [part.numpy(force=True) for part in translate.payload_parts(local)]
        update = translate.to_update(job.task, local, trained.evaluation)
        pending = self._store.put(job, update, parts, _arrays(local.state))
        return Ready(job=job, pending=pending, duration_s=trained.duration_s)

    def _workload_for(self, welcome: Welcome) -> Workload:
        if self._workload is None or welcome.run_id != self._run_id:
            self._workload, self._run_id = self._prepare(welcome), welcome.run_id
            self._duration_s = None if self._durations is None else self._durations(welcome)
            self._store.begin(welcome.run_id, _StateInArrays(self._workload))
        return self._workload


@dataclass(frozen=True, slots=True)
class _StateInArrays:
    """The state of a workload's clients as arrays, for the files."""

    workload: Workload

    def keep(self, client_id: int, number: int) -> bool:
        return self.workload.keep(client_id, number)

    def drop(self, client_id: int, number: int) -> None:
        self.workload.drop(client_id, number)

    def kept(self, client_id: int) -> State:
        return _arrays(self.workload.kept(client_id))

    def restore(self, client_id: int, kept: State, pending: Mapping[int, State]) -> None:
        by_number = {number: _tensors(state) for number, state in pending.items()}
        self.workload.restore(client_id, _tensors(kept), by_number)


def _received(model: FlatModel, payload_D: Vector, *, extra: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The vectors of a task's payload, on the model's device: model [d], buffers [b] or None, extra [d] or None."""
    d, b = model.dimension, model.buffers_b.numel()
    received_D = torch.from_numpy(payload_D).to(model.buffers_b.device)
    return received_D[:d], received_D[d : d + b] if b else None, received_D[d + b :] if extra else None


def _arrays(state: Mapping[str, Tensor]) -> State:
    return {name: tensor.numpy(force=True) for name, tensor in state.items()}


def _tensors(state: State) -> dict[str, Tensor]:
    return {name: torch.from_numpy(vector_d) for name, vector_d in state.items()}
