"""What becomes of tasks that hang, fail or find no place: a played Ray, and the courier that asks it for them."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from unstale.errors import UserError
from unstale.remote.frames import Kind, Start, hear, say
from unstale.remote.frames import Pipe as Side

module = pytest.importorskip("unstale.remote.courier", reason="Ray is not installed", exc_type=ImportError)
exceptions = pytest.importorskip("ray.exceptions")

ONE, TWO, THREE = (digit * 56 for digit in "123")
LOST = "The worker died unexpectedly while executing this task"


@dataclass
class PlayedRay:
    """machines: CPUs of each. checks: what comes of the first task on each, `None` for never; else it is well. tasks:
    what comes of those after them, one after the other: bytes, an error, None for never."""

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
        return [
            {"NodeID": name, "Alive": True, "Resources": {"CPU": cpus}}
            for name, cpus in self.machines.items()
        ]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: ONE)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedRay:
    cluster = PlayedRay()
    monkeypatch.setattr(module, "ray", cluster)
    monkeypatch.setattr(module, "connect", lambda address, **_: None)
    return cluster


@pytest.fixture
def pipe() -> Iterator[tuple[Side, Side]]:
    ours, theirs = Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


def checked(pipe: tuple[Side, Side]) -> Any:
    return module.Courier(Start(address="auto", description="", cpus=1, gpus=0.0), pipe[1])


def failed(error: Exception) -> Exception:
    return exceptions.RayTaskError("invert", "in the task", error)


def answer_to_a_group(pipe: tuple[Side, Side]) -> tuple[Kind, str]:
    """What the courier says of one, when all is said."""
    ours, _ = pipe
    subject = checked(pipe)
    subject._submit(module._Task(number=7, group=b"group"))
    while subject._tasks:
        subject._look()
    kind, number, content = hear(ours)
    assert number == 7
    return kind, content.decode()


def test_a_second_try_does(played, pipe):
    played.tasks = [exceptions.WorkerCrashedError(), b"done"]
    assert answer_to_a_group(pipe) == (Kind.DONE, "done")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (exceptions.WorkerCrashedError(), LOST),
        (
            exceptions.TaskCancelledError(error_message="Somebody else cancelled it"),
            "Somebody else cancelled it",
        ),
        (failed(RuntimeError("no kernel. Try another")), "RuntimeError: no kernel"),
        (failed(UserError("a worker has torch 1.0")), "a worker has torch 1.0"),
    ],
    ids=["lost", "cancelled", "an error", "a refusal"],
)
def test_a_second_failure_loses_the_group_and_says_why(played, pipe, error, why):
    played.tasks = [error, error]
    assert answer_to_a_group(pipe) == (Kind.LOST, f"{why}; it was tried 2 times")


def test_what_hangs_is_ended_with_its_worker_tried_again_and_lost(played, pipe, monkeypatch):
    monkeypatch.setattr(module, "TASK_S", -1.0)
    played.tasks = [None, None]
    assert answer_to_a_group(pipe) == (Kind.LOST, "nothing came of it in -1 s; it was tried 2 times")
    assert played.ended == [(2, True), (3, True)]


def test_what_waits_behind_others_does_not_hang(played, pipe):
    subject = checked(pipe)
    played.tasks = [None, b"done"]
    for number in range(2):
        subject._submit(module._Task(number=number, group=b""))
    subject._moved_s -= 2 * module.TASK_S
    subject._look()
    assert len(subject._tasks) == 1, "one has come back meanwhile"
    assert played.ended == []


def test_a_group_without_a_place_is_lost(played, pipe):
    played.full = True
    assert answer_to_a_group(pipe) == (Kind.LOST, "The object cannot be created")


def test_what_nobody_waits_for_ends_with_its_worker(played, pipe):
    ours, _ = pipe
    played.tasks = [None]
    subject = checked(pipe)
    subject._submit(module._Task(number=7, group=b""))
    subject._cancel(7)
    assert played.ended == [(2, True)]
    assert (subject._tasks, ours.poll()) == ({}, False)


def test_every_machine_that_can_do_a_task_is_looked_at(played, pipe):
    played.machines = {ONE: 0, TWO: 1, THREE: 4}
    checked(pipe)
    assert played.checked == [TWO, THREE]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (failed(UserError("a worker has torch 1.0")), "a worker has torch 1.0"),
        (
            failed(ModuleNotFoundError("No module named 'unstale'")),
            "compensator.ray is 'auto', but a worker of that cluster cannot do what is asked (ModuleNotFoundError: No "
            "module named 'unstale'), expected one with the same unstale; install it on all machines",
        ),
        (
            exceptions.WorkerCrashedError(),
            f"compensator.ray is 'auto', but a first task there has failed ({LOST}), expected one that ends; look at "
            "Ray's logs",
        ),
    ],
    ids=["a refusal", "an error", "lost"],
)
def test_one_machine_that_will_not_do_is_refused(played, pipe, error, sentence):
    played.checks = {TWO: error}
    with pytest.raises(UserError) as caught:
        checked(pipe)
    assert str(caught.value) == sentence


def test_a_machine_that_is_busy_is_not_waited_for_when_another_is_ready(played, pipe, monkeypatch):
    monkeypatch.setattr(module, "OTHERS_S", -1.0)
    played.checks = {TWO: None}
    checked(pipe)


def test_machines_that_are_all_busy_are_refused(played, pipe, monkeypatch):
    monkeypatch.setattr(module, "PREPARE_S", 0.01)
    played.checks = {ONE: None, TWO: None}
    with pytest.raises(UserError) as caught:
        checked(pipe)
    assert str(caught.value) == (
        "compensator.ray is 'auto', but no worker of that cluster is ready within 0.01 s, expected one that is idle; "
        "look at `ray status` there"
    )


def test_the_check_ends_with_whoever_waits_for_it(played, pipe):
    played.checks = {ONE: None, TWO: None}
    pipe[0].close()
    with pytest.raises(EOFError):
        checked(pipe)


def test_the_courier_ends_when_it_is_told_of_an_end_while_it_checks(played, monkeypatch):
    monkeypatch.setattr(played, "shutdown", lambda: None, raising=False)
    ours, theirs = Pipe()
    played.checks = {ONE: None, TWO: None}
    say(
        ours,
        Kind.START,
        0,
        json.dumps({"address": "auto", "description": "", "cpus": 1, "gpus": 0.0}).encode(),
    )
    ours.close()
    monkeypatch.setattr(module, "Connection", lambda descriptor: theirs)
    module.main(theirs.fileno())
    assert theirs.closed
