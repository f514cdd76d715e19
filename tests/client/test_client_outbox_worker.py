"""The state of a client survives a kill of its process at any point: neither lost nor counted twice."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.parts_of_runs import moon, scaffold, sgd
from support.wire import RUN, welcome
from unstale.client.worker import Trained, Worker
from unstale.config import Settings
from unstale.config.data import ClientData
from unstale.flat import FlatModel
from unstale.training import models
from unstale.training.datasets import load
from unstale.training.local import LocalTraining
from unstale.training.trainer import Trainer
from unstale_client import atomic_file
from unstale_client import outbox as outbox_module
from unstale_client.actions import PendingUpdate
from unstale_client.jobs import Job, ReceivedModel, Settlement
from unstale_client.outbox import Outbox
from unstale_proto.messages import EncodingPlan, Task, TensorSpec

TASKS = 4
REJECTED = 2  # the update of this task; the others are accepted

DATASET = load("digits")
CLIENT_DATA = ClientData.of(Settings(clients=1), DATASET)
MODEL = FlatModel(models.build("logreg", DATASET.input_shape, DATASET.classes, seed=0))
DIMENSION = MODEL.dimension


TENSORS = (TensorSpec(name="w", shape=(DIMENSION,), dtype="float32"),)


@dataclass(frozen=True)
class Method:
    """A training method and an encoding of updates."""

    training: LocalTraining
    encoding: EncodingPlan | None = None

    def __str__(self) -> str:
        return self.training.name if self.encoding is None else f"{self.training.name}, {self.encoding.updates}"

    @property
    def keeps(self) -> bool:
        """Whether the client has state after an update."""
        return self.training.keeps_state or self.encoding is not None


class Killed(BaseException):
    """The process was killed."""


@dataclass
class FakeServer:
    """Stores its first verdict on each update, and the received copies."""

    verdicts: dict[int, bool] = field(default_factory=dict)
    came: dict[int, list[bytes]] = field(default_factory=dict)

    def take(self, pending: PendingUpdate) -> bool:
        """Whether the first copy of the update was accepted."""
        self.came.setdefault(pending.number, []).append(b"".join(pending.parcel))
        return self.verdicts.setdefault(pending.number, pending.number != REJECTED)


def a_worker(folder: Path, training: LocalTraining) -> tuple[Worker, list[PendingUpdate]]:
    """A new worker, and the stored updates of client 0."""
    trainer = Trainer(DATASET, [np.arange(40)], MODEL, training, seed=0)

    outbox = Outbox(folder, 0, 1, durable=False)
    found = outbox.load().get(0, [])
    return Worker(lambda _: trainer, lambda result: None, outbox=outbox), found


def job(number: int, way: Method) -> Job:
    """The task of this number: every parameter and every entry of c is `number` / 100."""
    training = way.training
    fields = {"tensors": TENSORS, "encoding": way.encoding}
    numbers = DIMENSION * (2 if training.needs_extra else 1)
    task = Task(
        task_id=number + 1,
        number=number,
        version=number,
        learning_rate=0.1,
        signature="0" * 64,
        payload_bytes=4 * numbers,
    )
    frames = [memoryview(np.full(numbers, number / 100, dtype="<f4").tobytes())]
    return Job(
        client_id=0,
        welcome=welcome(extra=training.needs_extra or None).model_copy(update=fields),
        task=task,
        model=ReceivedModel(frames),
        is_wanted=lambda: True,
    )


def settle(worker: Worker, server: FakeServer, pending: PendingUpdate) -> None:
    """Send an update, and receive the verdict."""
    accepted = server.take(pending)
    worker._store.settle(Settlement(client_id=0, run_id=RUN, number=pending.number, accepted=accepted))


def run_process(folder: Path, way: Method, server: FakeServer) -> dict[str, list[float]]:
    """One process of the client until its tasks end. Returns the final state."""
    worker, found = a_worker(folder, way.training)
    for pending in found:
        settle(worker, server, pending)
    for number in range(len(server.verdicts), TASKS):
        trained = worker._work(job(number, way))
        assert isinstance(trained, Trained)
        settle(worker, server, worker._stored(trained).pending)
    worker._workload_for(welcome())
    return {name: vector_d.tolist() for name, vector_d in worker._store.kept(0).items()}


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> "Kills":
    return Kills(monkeypatch)


class Kills:
    """Kills the process before or after the n-th change of a file, and counts the changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes = 0
        self.dies_at: tuple[int, str] | None = None
        replace, unlink = os.replace, Path.unlink
        monkeypatch.setattr(atomic_file.os, "replace", lambda *names: self._change(lambda: replace(*names)))
        monkeypatch.setattr(outbox_module.Path, "unlink", lambda path, **how: self._change(lambda: unlink(path, **how)))

    def _change(self, change: Any) -> None:
        self._die("before")
        change()
        self._die("after")
        self.changes += 1

    def _die(self, when: str) -> None:
        if self.dies_at == (self.changes, when):
            self.dies_at = None
            raise Killed


def run_with_kills(
    folder: Path, way: Method, kills: Kills, places: Iterator[tuple[int, str]]
) -> tuple[dict[str, list[float]], FakeServer]:
    """The state of a client that is killed at each of the places, and then not."""
    server = FakeServer()
    for place in places:
        kills.changes, kills.dies_at = 0, place
        try:
            return run_process(folder, way, server), server
        except Killed:
            pass
    kills.dies_at = None
    return run_process(folder, way, server), server


SCAFFOLD, MOON, SGD = (training(steps=2, batch_size=8) for training in (scaffold, moon, sgd))
TOP_K = EncodingPlan(updates="top-k", models="float32", keep=7)
WAYS = [Method(MOON), Method(SCAFFOLD), Method(SGD, TOP_K), Method(SCAFFOLD, TOP_K), Method(SGD)]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_client_killed_at_any_file_change_stores_the_same_state(tmp_path: Path, kills: Kills, way: Method) -> None:
    undisturbed, server = run_with_kills(tmp_path / "undisturbed", way, kills, iter([(-1, "never")]))
    # Per task: the update is stored; if accepted, a state is stored; the update is deleted.
    assert kills.changes == (3 * TASKS - 1 if way.keeps else 2 * TASKS)
    assert bool(undisturbed) == way.keeps
    for change in range(kills.changes):
        for when in ("before", "after"):
            folder = tmp_path / f"{change}-{when}"
            kept, same = run_with_kills(folder, way, kills, iter([(change, when)]))
            assert kept == undisturbed, f"killed {when} change {change}"
            assert same.verdicts == server.verdicts
            for number, copies in same.came.items():
                assert set(copies) == set(server.came[number]), "a resent update is the same"
            left = {path.name for path in folder.iterdir()}
            assert left - {"lock", "0.state"} == set()


@pytest.mark.parametrize("way", WAYS[:4], ids=str)
def test_a_client_killed_repeatedly_stores_the_same_state(tmp_path: Path, kills: Kills, way: Method) -> None:
    undisturbed, _ = run_with_kills(tmp_path / "undisturbed", way, kills, iter([(-1, "never")]))
    again = iter([(change, when) for change in (0, 1, 2) for when in ("after", "before")] * TASKS)
    kept, server = run_with_kills(tmp_path / "killed", way, kills, again)
    assert kept == undisturbed
    assert server.verdicts == {number: number != REJECTED for number in range(TASKS)}


def test_a_verdict_before_the_trainer_exists_is_applied_later(tmp_path: Path) -> None:
    worker, _ = a_worker(tmp_path, SCAFFOLD)
    trained = worker._work(job(0, Method(SCAFFOLD, TOP_K)))
    assert isinstance(trained, Trained)
    worker._stored(trained)
    after, (pending,) = a_worker(tmp_path, SCAFFOLD)
    settle(after, FakeServer(), pending)
    assert (tmp_path / "0-0.update").exists()  # its last copy, until a trainer can store its state
    kept = after._workload_for(welcome()).kept(0)
    assert torch.equal(kept["control_d"], trained.local.state["control_d"])
    # The 7 numbers of the largest magnitude were sent, and the others are the residual.
    left_d, vector_d = torch.from_numpy(after._store.kept(0)["residual"]), trained.local.vector_d
    assert int((left_d == 0).sum()) - int((vector_d == 0).sum()) == 7
    assert torch.equal(left_d[left_d != 0], vector_d[left_d != 0])
    assert not (tmp_path / "0-0.update").exists()
