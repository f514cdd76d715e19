"""Results of the worker on jobs and verdicts."""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from support.parts_of_runs import client_task
from support.running import PATIENCE_S
from support.wire import RUN, welcome
from unstale import translate
from unstale.client.worker import Durations, Worker
from unstale.errors import HangingError
from unstale.flat import FlatModel
from unstale.training.local import LocalUpdate
from unstale.training.measured import Measured
from unstale.training.workload import ClientTask, Declined, NotTrained, TrainingDiverged, TrainingFailed, Workload
from unstale_client.jobs import Crashed, Failed, Job, Ready, ReceivedModel, Result, Settlement
from unstale_client.outbox import Outbox
from unstale_proto.errors import Reason
from unstale_proto.messages import Task, Welcome

OTHER_RUN = "2" * 32


@dataclass
class FakeWorkload(Workload):
    """Records its calls. loss: of every task. error: raised by every task. versions: base versions of its trained
    tasks.
    """

    loss: float = 1.0
    error: NotTrained | None = None
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    settings: list[Mapping[str, Any]] = field(default_factory=list)

    @override
    def train(self, task: ClientTask) -> LocalUpdate:
        self.versions.append(task.version)
        self.settings.append(task.settings)
        parts = task.base_d.tolist(), lists(task.buffers_b), lists(task.extra_d)
        self.calls.append(("train", task.client_id, task.number, *parts))
        if self.error is not None:
            raise self.error
        return LocalUpdate(
            vector_d=torch.ones(2),
            kind="delta",
            num_examples=3,
            batch_examples=3,
            steps=1,
            loss=self.loss,
            learning_rate=task.learning_rate,
        )

    @override
    def steps_of(self, client_id: int) -> int:
        return 10 + client_id

    @override
    def keep(self, client_id: int, number: int) -> bool:
        self.calls.append(("keep", client_id, number))
        return False

    @override
    def drop(self, client_id: int, number: int) -> None:
        self.calls.append(("drop", client_id, number))

    @override
    def evaluate(self, client_id: int, base_d: Tensor, buffers_b: Tensor | None = None) -> Measured:
        self.calls.append(("evaluate", client_id, base_d.tolist(), lists(buffers_b)))
        return Measured(metrics={"accuracy": 0.5, "loss": 2.0}, num_examples=4)


def lists(tensor: Tensor | None) -> list[float] | None:
    return None if tensor is None else tensor.tolist()


def job(
    *numbers: float, number: int = 0, run: Welcome | None = None, evaluate: bool | None = None, wanted: bool = True
) -> Job:
    """A task of client 1 with these numbers as its payload."""
    task = Task(
        task_id=number + 1,
        number=number,
        version=3,
        learning_rate=0.5,
        signature="0" * 64,
        payload_bytes=4 * len(numbers),
        evaluate=evaluate,
    )
    frames = [memoryview(np.array(numbers, dtype="<f4").tobytes())]
    return Job(client_id=1, welcome=run or welcome(), task=task, model=ReceivedModel(frames), is_wanted=lambda: wanted)


def settlement(number: int, *, accepted: bool, run_id: str = RUN) -> Settlement:
    return Settlement(client_id=1, run_id=run_id, number=number, accepted=accepted)


def done(
    workload: FakeWorkload,
    *jobs: Job | Settlement,
    module: nn.Module | None = None,
    durations: Callable[[Welcome], Durations] | None = None,
) -> tuple[list[Result], list[str]]:
    """The results that a worker posts, in order, and the runs that it prepared."""
    workload.model = FlatModel(module or nn.Linear(1, 1))
    prepared: list[str] = []
    posted: list[Result] = []
    finished = threading.Event()

    def prepare(received: Welcome) -> Workload:
        prepared.append(received.run_id)
        return workload

    def is_last() -> bool:
        finished.set()
        return False

    def post(result: Result) -> None:
        posted.append(result)
        if isinstance(result, Crashed):
            finished.set()

    worker = Worker(prepare, post, durations)
    worker.start()
    for one in jobs:
        worker.submit(one)
    last = job(0.0, 0.0)
    worker.submit(Job(client_id=0, welcome=last.welcome, task=last.task, model=last.model, is_wanted=is_last))
    finished.wait()
    worker.close()
    for result in posted:
        if isinstance(result, Crashed):
            raise result.error
    return posted, prepared


def test_the_state_of_an_accepted_update_is_kept_and_any_other_dropped() -> None:
    workload = FakeWorkload()
    done(
        workload,
        job(1.0, 2.0, number=0),
        settlement(0, accepted=True),
        job(1.0, 2.0, number=1),
        settlement(1, accepted=False),
    )
    assert [call for call in workload.calls if call[0] != "train"] == [("keep", 1, 0), ("drop", 1, 1)]


def test_the_verdict_on_a_task_of_another_run_is_ignored() -> None:
    workload = FakeWorkload()
    done(
        workload,
        settlement(0, accepted=True),  # before any training in this process
        job(1.0, 2.0),
        settlement(0, accepted=True, run_id=OTHER_RUN),
    )
    assert [call[0] for call in workload.calls] == ["train"]


def test_a_verdict_is_applied_before_a_later_job() -> None:
    workload = FakeWorkload()
    done(workload, job(1.0, 2.0), settlement(0, accepted=True), job(3.0, 4.0, number=1))
    assert [call[0] for call in workload.calls] == ["train", "keep", "train"]


@pytest.mark.parametrize("loss", [inf, nan])
def test_a_task_that_diverges_fails_and_stores_no_state(loss: float) -> None:
    workload = FakeWorkload(loss)
    ((failed,), _) = done(workload, job(1.0, 2.0, number=4))
    assert isinstance(failed, Failed)
    assert failed.message == f"training diverged: mean loss {loss} from version 3"
    assert not failed.is_code_error
    assert workload.calls[1:] == [("drop", 1, 4)]


@pytest.mark.parametrize(
    ("error", "reason", "is_code_error"),
    [
        (Declined("the battery is low"), Reason.UNAVAILABLE, False),
        (TrainingFailed("ValueError: no rows"), Reason.NON_FINITE, True),
        (TrainingDiverged("the loss is nan"), Reason.NON_FINITE, False),
    ],
)
def test_a_task_without_an_update_goes_back_with_the_words_of_the_workload(
    error: NotTrained, reason: Reason, is_code_error: bool
) -> None:
    (results, _) = done(FakeWorkload(error=error), job(1.0, 2.0), job(1.0, 2.0, number=1))
    assert len(results) == 2  # the worker goes on
    for failed in results:
        assert isinstance(failed, Failed)
        assert (failed.message, failed.reason, failed.is_code_error) == (str(error), reason, is_code_error)
        assert failed.is_declined == isinstance(error, Declined)


def test_the_message_of_a_failed_training_fits_a_message() -> None:
    ((failed,), _) = done(FakeWorkload(error=TrainingFailed("x" * 2000)), job(1.0, 2.0))
    assert isinstance(failed, Failed)
    assert failed.message == "x" * 1000


def test_the_payload_is_model_buffers_and_second_vector() -> None:
    norm = nn.BatchNorm1d(1)  # weight and bias; running mean and variance
    workload = FakeWorkload()
    done(workload, job(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, run=welcome(extra=True, buffers=1)), module=norm)
    done(workload, job(1.0, 2.0, 3.0, 4.0, run=welcome(buffers=1)), module=norm)
    done(workload, job(1.0, 2.0, 5.0, 6.0, run=welcome(extra=True)))
    done(workload, job(1.0, 2.0))
    assert workload.calls == [
        ("train", 1, 0, [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]),
        ("train", 1, 0, [1.0, 2.0], [3.0, 4.0], None),
        ("train", 1, 0, [1.0, 2.0], None, [5.0, 6.0]),
        ("train", 1, 0, [1.0, 2.0], None, None),
    ]


def test_a_client_measures_the_model_when_its_task_asks_and_only_then() -> None:
    workload = FakeWorkload()
    ((asked, not_asked), _) = done(workload, job(1.0, 2.0, evaluate=True), job(3.0, 4.0, number=1))
    assert isinstance(asked, Ready) and isinstance(not_asked, Ready)
    assert asked.pending.update.evaluation is not None
    assert not_asked.pending.update.evaluation is None
    assert [call for call in workload.calls if call[0] == "evaluate"] == [("evaluate", 1, [1.0, 2.0], None)]


def test_another_run_gets_another_context_and_an_unwanted_job_is_skipped() -> None:
    workload = FakeWorkload()
    posted, prepared = done(
        workload,
        job(1.0, 2.0),
        job(1.0, 2.0, number=1),
        job(1.0, 2.0, run=welcome(OTHER_RUN)),
        job(9.0, 9.0, number=2, wanted=False),
    )
    assert prepared == [RUN, OTHER_RUN]
    assert len(posted) == len(workload.calls) == 3


@pytest.mark.parametrize("loss", [1.0, nan])
def test_a_result_contains_the_duration_on_the_device_of_its_client(loss: float) -> None:
    def durations(received: Welcome) -> Durations:
        return lambda client_id, number, steps: 100.0 * client_id + 10.0 * number + steps

    ((plain,), _) = done(FakeWorkload(loss), job(1.0, 2.0, number=3))
    ((slow,), _) = done(FakeWorkload(loss), job(1.0, 2.0, number=3), durations=durations)
    assert isinstance(plain, Ready | Failed) and isinstance(slow, Ready | Failed)
    assert (plain.duration_s, slow.duration_s) == (0.0, 100.0 + 30.0 + 11.0)


def test_the_settings_of_the_welcome_come_with_each_task() -> None:
    workload = FakeWorkload()
    received = welcome().model_copy(update={"settings": {"depth": 3}})
    done(workload, job(1.0, 2.0), job(1.0, 2.0, number=1, run=received))
    assert workload.settings == [{}, {"depth": 3}]


def test_an_exception_of_the_worker_is_posted() -> None:
    posted = []
    ended = threading.Event()

    def post(result: Result) -> None:
        posted.append(result)
        ended.set()

    def prepare(received: Welcome) -> Workload:
        raise RuntimeError("no such thing")

    worker = Worker(prepare, post)
    worker.start()
    worker.submit(job(1.0, 2.0))
    ended.wait()
    worker.close()
    (crashed,) = posted
    assert isinstance(crashed, Crashed)
    assert str(crashed.error) == "no such thing"


@pytest.mark.parametrize(("loss", "sent"), [(2.0, True), (inf, False), (nan, False)])
def test_an_evaluation_without_a_finite_loss_is_not_sent_and_its_update_is(loss: float, sent: bool) -> None:
    local = FakeWorkload().train(client_task(1, 0, torch.zeros(2), 0.5, version=3))
    evaluation = Measured(metrics={"accuracy": 0.5, "loss": loss}, num_examples=4)
    update = translate.to_update(job(1.0, 2.0).task, local, evaluation)
    assert (update.evaluation is not None) == sent
    assert update.payload_bytes == 8


@pytest.mark.parametrize(
    ("metrics", "sent"),
    [
        ({"mae": 1.0, "loss": 2.0, "r2": nan}, {"mae": 1.0, "loss": 2.0}),
        ({"perplexity": inf, "loss": inf}, None),
        ({"r2": nan}, None),
    ],
)
def test_metrics_that_are_not_finite_are_left_out(metrics: dict[str, float], sent: dict[str, float] | None) -> None:
    local = FakeWorkload().train(client_task(1, 0, torch.zeros(2), 0.5, version=3))
    update = translate.to_update(job(1.0, 2.0).task, local, Measured(metrics=metrics, num_examples=4))
    assert (None if update.evaluation is None else update.evaluation.by_name) == sent


class Hanging(FakeWorkload):
    """Its tasks wait until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go_on = threading.Event(), threading.Event()
        self.model = FlatModel(nn.Linear(1, 1))

    @override
    def train(self, task: ClientTask) -> LocalUpdate:
        self.began.set()
        assert self.go_on.wait(PATIENCE_S)
        return super().train(task)


class Timer:
    """A timer that the test fires."""

    made: ClassVar[list["Timer"]] = []

    def __init__(self, after_s: float, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.after_s, self.fire = after_s, lambda: function(*arguments)
        self.made.append(self)

    def start(self) -> None: ...

    def cancel(self) -> None: ...


class Limited:
    """A worker with a time limit of 10 s."""

    def __init__(self, workload: FakeWorkload, outbox: Outbox | None = None) -> None:
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self.worker = Worker(lambda _: workload, self._results.put, outbox=outbox, task_timeout_s=10.0)
        self.worker.start()

    def result(self) -> Result:
        return self._results.get(timeout=PATIENCE_S)

    @property
    def has_none(self) -> bool:
        return self._results.empty()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Timer]:
    Timer.made.clear()
    monkeypatch.setattr(threading, "Timer", Timer)
    return Timer.made


def test_a_task_that_exceeds_its_time_goes_back_and_the_worker_goes_on(timers: list[Timer]) -> None:
    workload = Hanging()
    limited = Limited(workload)
    limited.worker.submit(job(1.0, 2.0))
    assert workload.began.wait(PATIENCE_S)
    assert [timer.after_s for timer in timers] == [10.0, 20.0]
    timers[0].fire()
    failed = limited.result()
    assert isinstance(failed, Failed)
    assert (failed.message, failed.reason) == ("the task exceeds client.task_timeout_s, 10 s", Reason.NON_FINITE)
    assert failed.is_code_error
    workload.go_on.set()  # the task is given back: it has no other result
    limited.worker.submit(job(3.0, 4.0, number=1))
    ready = limited.result()
    assert isinstance(ready, Ready) and ready.job.task.number == 1
    for timer in timers:  # of tasks that have ended
        timer.fire()
    limited.worker.close()
    assert limited.has_none and limited.worker.error is None


def test_a_task_that_does_not_end_ends_the_process_and_touches_the_outbox_no_more(
    timers: list[Timer], tmp_path: Path
) -> None:
    workload, outbox = Hanging(), Outbox(tmp_path, 1, 1, durable=False)
    limited = Limited(workload, outbox)
    limited.worker.submit(job(1.0, 2.0, number=4))
    limited.worker.submit(job(1.0, 2.0, number=5))
    assert workload.began.wait(PATIENCE_S)
    for timer in timers:
        timer.fire()
    assert isinstance(limited.result(), Failed)
    crashed = limited.result()
    assert isinstance(crashed, Crashed) and isinstance(crashed.error, HangingError)
    assert str(crashed.error) == (
        "client 1: its task 4 still runs after twice client.task_timeout_s, 10 s, and cannot be ended; the process "
        "ends, start it again"
    )
    limited.worker.close()  # does not wait for the task
    outbox.close()
    workload.go_on.set()
    limited.worker._thread.join(PATIENCE_S)
    assert not limited.worker._thread.is_alive()
    assert not list(tmp_path.glob("*.update"))
    assert [call[0] for call in workload.calls] == ["train", "drop"] and limited.has_none


def test_an_error_goes_back_later_after_each_one_in_a_row() -> None:
    # The server gives another task at once, which the same error would end at once.
    workload = FakeWorkload(error=TrainingFailed("the app's data function: FileNotFoundError: 3.csv"))
    workload.model = FlatModel(nn.Linear(1, 1))
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()
    worker = Worker(lambda _: workload, results.put)
    worker.start()

    def pause_s(number: int) -> float:
        worker.submit(job(1.0, 2.0, number=number))
        result = results.get(timeout=PATIENCE_S)
        assert isinstance(result, Failed | Ready)
        return result.duration_s

    assert [pause_s(number) for number in range(5)] == [0.0, 0.25, 0.75, 1.0, 1.0]
    workload.error = Declined("battery")
    assert pause_s(5) == 0.0
    workload.error = None
    assert pause_s(6) == 0.0
    workload.error = TrainingFailed("again")
    assert pause_s(7) == 0.0
    worker.close()
