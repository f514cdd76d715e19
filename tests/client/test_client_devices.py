"""A client whose device is slower than this machine: its update is sent after the device time, and no sooner."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from support.idle_worker import IdleWorker
from support.wire import RUN, update_of, welcome
from unstale.client.stats import ClientStats
from unstale.metrics import catalogue
from unstale.metrics.observe import Observation
from unstale_client import loop
from unstale_client.actions import PendingUpdate
from unstale_client.jobs import Failed, Ready, Settlement
from unstale_client.loop import ClientLoop
from unstale_proto.errors import Reason
from unstale_proto.messages import Error, Message, Task, Update

pytestmark = pytest.mark.network

MODEL = [memoryview(bytes(8))]


def task(task_id: int) -> Task:
    return Task(task_id=task_id, number=task_id, version=0, learning_rate=0.1, signature="0" * 64, payload_bytes=8)


class HostedClient:
    """A process with one member client, on a simulated clock. It trains nothing: a test posts the results of the
    worker. sent: messages of the client since it joined."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.sent: list[Message] = []
        monkeypatch.setattr(loop, "now_s", lambda: self.now_s)
        self.process = ClientLoop(
            server="tcp://127.0.0.1:9",  # no server there
            client_ids=range(1),
            worker=IdleWorker,
            heartbeat_s=60.0,
            linger_s=0.0,
        )
        monkeypatch.setattr(self.process, "_send", self._send)
        assert isinstance(self.process._worker, IdleWorker)
        self.jobs: list[Any] = self.process._worker.submitted
        (self.client,) = self.process._clients.values()
        self.client.session.reachable(self.now_s)
        self.receive(welcome(run_id=RUN))
        self.sent.clear()

    def receive(self, message: Message, frames: Sequence[memoryview] = ()) -> None:
        self.process._execute(self.client, self.client.session.received(message, frames, self.now_s))

    def trained(self, duration_s: float) -> None:
        """The worker finishes its newest job."""
        job = self.jobs[-1]
        pending = PendingUpdate(run_id=RUN, number=job.task.number, update=update_of(job.task), parcel=MODEL)
        self.process._handle(Ready(job=job, pending=pending, duration_s=duration_s))

    def at(self, now_s: float) -> list[Message]:
        """The messages until then, without heartbeats."""
        self.now_s = now_s
        self.process._hand_over_if_due(self.client, now_s)
        sent, self.sent = [one for one in self.sent if one.type != "heartbeat"], []
        return sent

    def _send(self, _: Any, message: Message, __: Any) -> bool:
        self.sent.append(message)
        return True


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostedClient]:
    made = HostedClient(monkeypatch)
    yield made
    made.process.stop()
    made.process.run()  # ends at once, and closes its sockets


def test_an_update_is_sent_its_device_time_after_its_task_arrived(hosted: HostedClient) -> None:
    hosted.receive(task(1), MODEL)
    hosted.now_s = 103.0
    hosted.trained(duration_s=5.0)
    assert hosted.client.due_s <= 105.0
    assert hosted.at(104.9) == []
    (update,) = hosted.at(105.0)
    assert isinstance(update, Update) and update.task_id == 1
    assert hosted.at(106.0) == []  # once


def test_an_update_that_trained_longer_than_its_device_time_is_sent_at_once(hosted: HostedClient) -> None:
    hosted.receive(task(1), MODEL)
    hosted.now_s = 109.0
    hosted.trained(duration_s=5.0)
    assert [message.type for message in hosted.at(109.0)] == ["update"]


def test_a_newer_task_replaces_one_that_its_device_has_not_finished(hosted: HostedClient) -> None:
    hosted.receive(task(1), MODEL)
    hosted.trained(duration_s=5.0)
    hosted.now_s = 102.0
    hosted.receive(task(2), MODEL)
    assert hosted.jobs[1] == Settlement(client_id=0, run_id=RUN, number=1, accepted=False)
    assert hosted.at(105.0) == []
    hosted.trained(duration_s=5.0)
    (update,) = hosted.at(107.0)
    assert isinstance(update, Update) and update.task_id == 2


def test_a_failed_task_is_returned_after_its_device_time(hosted: HostedClient) -> None:
    hosted.receive(task(1), MODEL)
    hosted.process._handle(Failed(job=hosted.jobs[-1], message="loss is nan", duration_s=5.0))
    assert hosted.at(104.9) == []
    (error,) = hosted.at(105.0)
    assert isinstance(error, Error)
    assert (error.reason, error.task_id) == (Reason.NON_FINITE, 1)


def test_the_end_of_a_process_does_not_wait_for_devices(hosted: HostedClient) -> None:
    hosted.receive(task(1), MODEL)
    hosted.trained(duration_s=1e9)
    # The fixture ends it.


def outcomes(monkeypatch: pytest.MonkeyPatch, hosted: HostedClient) -> list[str]:
    """The outcomes of tasks that the client counts from here on."""
    counted: list[str] = []

    def record(observations: Iterable[Observation]) -> None:
        counted.extend(one.labels[0] for one in observations if one.metric is catalogue.CLIENT_TASKS)

    monkeypatch.setattr(hosted.process, "observer", ClientStats(record, lambda: 0.0))
    return counted


def test_a_task_has_one_outcome_although_its_update_is_not_sent(
    hosted: HostedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = outcomes(monkeypatch, hosted)
    hosted.receive(task(1), MODEL)
    hosted.trained(duration_s=5.0)
    hosted.receive(task(2), MODEL)  # before the device has finished the first
    assert counted == ["superseded"]
    second = hosted.jobs[-1]
    hosted.receive(task(3), MODEL)  # before the second is trained
    third = hosted.jobs[-1]
    for job in (second, third):
        hosted.jobs.append(job)
        hosted.trained(duration_s=0.0)
    assert counted == ["superseded", "superseded", "trained"]


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [({"reason": Reason.UNAVAILABLE}, "declined"), ({"is_code_error": True}, "code-error"), ({}, "failed")],
)
def test_tasks_without_an_update_are_counted_by_cause(
    failure: dict[str, Any], outcome: str, hosted: HostedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = outcomes(monkeypatch, hosted)
    hosted.receive(task(1), MODEL)
    failed = Failed(job=hosted.jobs[-1], message="no", **failure)
    hosted.process._handle(failed)
    hosted.process._handle(failed)  # too late
    assert counted == [outcome, "superseded"]
