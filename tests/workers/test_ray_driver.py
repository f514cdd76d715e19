"""The driver against a simulated Ray: tasks that hang, fail or run out of memory."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from unstale.errors import UserError
from unstale.workers.channel import Kind, receive, send
from unstale.workers.channel import Pipe as Side
from unstale.workers.pool import RayStart

module = pytest.importorskip("unstale.workers.ray_driver", reason="Ray is not installed", exc_type=ImportError)
exceptions = pytest.importorskip("ray.exceptions")

ONE, TWO, THREE = (digit * 56 for digit in "123")
LOST = "The worker died unexpectedly while executing this task"


@dataclass
class SimulatedRay:
    """machines: CPUs of each. checks: result of the first task on each, `None` for never; by default success. tasks:
    results of later tasks, in order: bytes, an error, None for never."""

    machines: dict[str, int] = field(default_factory=lambda: {ONE: 1, TWO: 1})
    checks: dict[str, Any] = field(default_factory=dict)
    tasks: list[Any] = field(default_factory=list)
    full: bool = False
    checked: list[str] = field(default_factory=list)
    ended: list[tuple[int, bool]] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    def begin(self, options: dict[str, Any]) -> int:
        where = options["scheduling_strategy"]
        if where != "SPREAD":
            assert not where.soft
            self.checked.append(where.node_id)
            self.results.append(self.checks.get(where.node_id, b""))
        elif self.full:
            raise exceptions.OutOfDiskError("The object cannot be created. Local disk is full")
        else:
            self.results.append(self.tasks.pop(0))
        return len(self.results) - 1

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        def options(**given: Any) -> Any:
            return SimpleNamespace(remote=lambda *_: self.begin(given))

        return lambda _: SimpleNamespace(options=options)

    def wait(self, references: Sequence[int], **_: Any) -> tuple[list[int], list[int]]:
        ready = [one for one in references if self.results[one] is not None]
        return ready, [one for one in references if one not in ready]

    def get(self, wanted: Any) -> Any:
        if isinstance(wanted, list):
            return [self.get(one) for one in wanted]
        result = self.results[wanted]
        if isinstance(result, Exception):
            raise result
        return result

    def cancel(self, reference: int, *, force: bool) -> None:
        self.ended.append((reference, force))

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "Alive": True, "Resources": {"CPU": cpus}} for name, cpus in self.machines.items()]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: ONE)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimulatedRay:
    cluster = SimulatedRay()
    monkeypatch.setattr(module, "ray", cluster)
    monkeypatch.setattr(module, "connect", lambda address, **_: None)
    return cluster


@pytest.fixture
def pipe() -> Iterator[tuple[Side, Side]]:
    ours, theirs = Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


def start(**given: Any) -> RayStart:
    return RayStart(
        **{
            "address": "auto",
            "key": "compensator.ray",
            "program": "",
            "cpus": 1,
            "gpus": 0.0,
            "advice": "lower threads",
            "attempts": 2,
            "task_s": 3600.0,
            **given,
        }
    )


def checked(pipe: tuple[Side, Side], **given: Any) -> Any:
    driver = module.Driver(start(**given), pipe[1])
    kind, capacity, _ = receive(pipe[0])
    assert (kind, capacity) == (Kind.READY, sum(driver._capacities().values()))
    return driver


def failed(error: Exception) -> Exception:
    return exceptions.RayTaskError("invert", "in the task", error)


def answer_to_a_task(pipe: tuple[Side, Side], **given: Any) -> tuple[Kind, str]:
    """The driver's last frame about one."""
    ours, _ = pipe
    subject = checked(pipe, **given)
    subject.submit(module.Task(number=7, content=b"task"))
    while subject._tasks:
        subject.poll()
    kind, number, content = receive(ours)
    assert number == 7
    return kind, content.decode()


def test_a_retry_succeeds(ray, pipe):
    ray.tasks = [exceptions.WorkerCrashedError(), b"done"]
    assert answer_to_a_task(pipe) == (Kind.DONE, "done")


def test_a_failure_of_the_only_attempt_loses_the_task(ray, pipe):
    ray.tasks = [exceptions.WorkerCrashedError()]
    assert answer_to_a_task(pipe, attempts=1) == (Kind.LOST, LOST)


def test_the_capacity_follows_the_machines(ray, pipe, monkeypatch):
    monkeypatch.setattr(module, "MACHINES_S", -1.0)
    ray.machines = {ONE: 3, TWO: 1}
    subject = checked(pipe, cpus=1)
    assert subject._capacity == 4
    ray.machines = {ONE: 2}
    subject.poll()
    assert receive(pipe[0])[:2] == (Kind.READY, 2)
    ray.machines = {}
    with pytest.raises(ConnectionError, match="no machine of the cluster is left"):
        subject.poll()


def test_a_cluster_without_the_needs_of_a_task_is_refused(ray, pipe):
    with pytest.raises(UserError) as caught:
        checked(pipe, gpus=0.5)
    assert str(caught.value) == (
        "compensator.ray is 'auto', but no machine of that cluster has the resources of a task (1 CPU and 0.5 of a "
        "GPU), expected at least one; lower threads"
    )


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (exceptions.WorkerCrashedError(), LOST),
        (exceptions.TaskCancelledError(error_message="Somebody else cancelled it"), "Somebody else cancelled it"),
        (failed(RuntimeError("no kernel. Try another")), "RuntimeError: no kernel"),
        (failed(UserError("a worker has torch 1.0")), "a worker has torch 1.0"),
    ],
    ids=["lost", "cancelled", "an error", "a refusal"],
)
def test_a_second_failure_loses_the_task_and_says_why(ray, pipe, error, why):
    ray.tasks = [error, error]
    assert answer_to_a_task(pipe) == (Kind.LOST, f"{why}; it was tried 2 times")


def test_a_hanging_task_is_ended_with_its_worker_retried_and_lost(ray, pipe):
    ray.tasks = [None, None]
    assert answer_to_a_task(pipe, task_s=-1.0) == (Kind.LOST, "there was no result in -1 s; it was tried 2 times")
    assert ray.ended == [(2, True), (3, True)]


def test_a_queued_task_is_not_treated_as_hanging(ray, pipe):
    subject = checked(pipe)
    ray.tasks = [None, b"done"]
    for number in range(2):
        subject.submit(module.Task(number=number, content=b""))
    subject._result_s -= 2 * 3600.0
    subject.poll()
    assert len(subject._tasks) == 1, "one has returned"
    assert ray.ended == []


def test_a_task_without_memory_is_lost(ray, pipe):
    ray.full = True
    assert answer_to_a_task(pipe) == (Kind.LOST, "The object cannot be created")


def test_a_cancelled_task_ends_with_its_worker(ray, pipe):
    ours, _ = pipe
    ray.tasks = [None]
    subject = checked(pipe)
    subject.submit(module.Task(number=7, content=b""))
    subject.cancel(7)
    assert ray.ended == [(2, True)]
    assert (subject._tasks, ours.poll()) == ({}, False)


def test_every_machine_that_fits_a_task_is_checked(ray, pipe):
    ray.machines = {ONE: 0, TWO: 1, THREE: 4}
    checked(pipe)
    assert ray.checked == [TWO, THREE]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (failed(UserError("a worker has torch 1.0")), "a worker has torch 1.0"),
        (
            failed(ModuleNotFoundError("No module named 'unstale'")),
            "compensator.ray is 'auto', but a worker of that cluster cannot load its program (ModuleNotFoundError: No "
            "module named 'unstale'), expected one with the same unstale; install it on all machines",
        ),
        (
            exceptions.WorkerCrashedError(),
            f"compensator.ray is 'auto', but the first task on a machine has failed ({LOST}), expected success; look "
            "at Ray's logs",
        ),
    ],
    ids=["a refusal", "an error", "lost"],
)
def test_an_unsuitable_machine_is_refused(ray, pipe, error, sentence):
    ray.checks = {TWO: error}
    with pytest.raises(UserError) as caught:
        checked(pipe)
    assert str(caught.value) == sentence


def test_a_busy_machine_is_skipped_when_another_is_ready(ray, pipe, monkeypatch):
    monkeypatch.setattr(module, "OTHERS_S", -1.0)
    ray.checks = {TWO: None}
    checked(pipe)


def test_a_cluster_of_busy_machines_is_refused(ray, pipe, monkeypatch):
    monkeypatch.setattr(module, "PREPARE_S", 0.01)
    ray.checks = {ONE: None, TWO: None}
    with pytest.raises(UserError) as caught:
        checked(pipe)
    assert str(caught.value) == (
        "compensator.ray is 'auto', but no worker of that cluster is ready within 0.01 s, expected one that is idle; "
        "look at `ray status` there"
    )


def test_the_check_ends_with_its_caller(ray, pipe):
    ray.checks = {ONE: None, TWO: None}
    pipe[0].close()
    with pytest.raises(EOFError):
        checked(pipe)


def test_the_driver_ends_with_its_parent_while_it_checks(ray, monkeypatch):
    monkeypatch.setattr(ray, "shutdown", lambda: None, raising=False)
    ours, theirs = Pipe()
    ray.checks = {ONE: None, TWO: None}
    send(ours, Kind.START, 0, json.dumps(asdict(start())).encode())
    ours.close()
    monkeypatch.setattr(module, "Connection", lambda descriptor: theirs)
    module.main(theirs.fileno())
    assert theirs.closed


def test_a_pause_before_the_connection_ends_with_the_parent(monkeypatch):
    monkeypatch.setattr(module, "Driver", lambda *_: pytest.fail("it has connected"))
    monkeypatch.setattr(module, "ray", SimpleNamespace(shutdown=lambda: None))
    ours, theirs = Pipe()
    send(ours, Kind.START, 0, json.dumps(asdict(start(pause_s=3600.0))).encode())
    ours.close()
    monkeypatch.setattr(module, "Connection", lambda descriptor: theirs)
    module.main(theirs.fileno())
    assert theirs.closed
