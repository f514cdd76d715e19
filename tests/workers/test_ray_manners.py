"""Warnings, refusals and checks of a run before it connects to a Ray cluster, and its stop without waiting."""

from concurrent.futures import Future, wait
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import torch

from support.compensation import CLASSES, SHAPE, context, inversion, network, numbers
from support.factories import with_buffers
from unstale.cli.inversion import announce
from unstale.compensators.inversion import remote_inversion
from unstale.config.compensation import compensator
from unstale.config.settings import Settings
from unstale.config.workspace import Workspace
from unstale.errors import UserError, WorkerLostError
from unstale.flat import FlatModel
from unstale.learner.learner import Learner
from unstale.learner.updates import Round, RoundUpdate
from unstale.policies import create
from unstale.privacy.audit import audit
from unstale.server.commands import Applied, ApplyCommand, ComputeResult
from unstale.server.compute import Compute

ON_RAY: dict[str, Any] = {"name": "gradient-inversion", "ray": "auto"}


class HangingMachines:
    """Other machines that never return a result."""

    def __init__(self) -> None:
        self.is_waited_for = Event()
        self._future: Future[bytes] = Future()

    def submit(self, group: bytes) -> "Future[bytes]":
        return self._future

    def wait(self, futures: list["Future[bytes]"], longest_s: float | None) -> Any:
        assert longest_s is None
        self.is_waited_for.set()
        return wait(futures, 60.0)

    def stop(self) -> None:
        self._future.set_exception(WorkerLostError("the run was stopped"))


def update(base_version: int, staleness: int) -> RoundUpdate:
    return RoundUpdate(
        client_id=0,
        task_id=1 + base_version + staleness,
        base_version=base_version,
        staleness=staleness,
        num_examples=8,
        batch_examples=8,
        loss=1.0,
        local_rate=0.1,
    )


def test_a_stopped_server_does_not_wait_for_other_machines(monkeypatch):
    elsewhere = HangingMachines()
    monkeypatch.setattr(remote_inversion, "wait", elsewhere.wait)
    learner = Learner(
        numbers(123, scale=0.3),
        create("fedavg", dimension=123, clients=1),
        learning_rate=lambda counted: 0.1,
        compensator=inversion(where=replace(context(network()), executor=elsewhere)),
    )
    letters: list[ComputeResult] = []
    compute = Compute(
        learner=learner, evaluate=lambda version: pytest.fail("not asked for"), post=letters.append, save=None
    )
    compute.start()
    for staleness in (0, 1):
        rows = numbers(1, 123, seed=staleness)
        compute.submit(ApplyCommand(round=Round(rows, ()), updates=(update(0, staleness),)))
    assert elsewhere.is_waited_for.wait(60.0), "no group was inverted"
    compute.close()
    assert not compute.is_alive()
    assert isinstance(letters[-1], Applied)
    assert letters[-1].result.compensation.fallbacks == {"worker-lost": 1}


def test_a_warning_names_updates_that_leave_the_server(capsys):
    announce(Settings(compensator={"name": "auto"}))
    assert "Ray" not in capsys.readouterr().err
    announce(Settings(compensator={**ON_RAY, "ray": "192.0.2.7:6379"}))
    printed = capsys.readouterr().err
    assert printed.endswith(
        " Updates and reconstructed data also go to the machines of the Ray cluster 192.0.2.7:6379, which may write "
        "them to disk (docs/inversions-on-ray.md).\n"
    )
    assert printed.count("\n") == 1


def test_an_audit_refuses_a_cluster():
    with pytest.raises(UserError) as caught:
        audit(Settings(compensator=ON_RAY), [1], updates_max=1)
    assert str(caught.value) == (
        "compensator.ray is 'auto', but an audit inverts in its own process, expected null; leave it out"
    )


@pytest.mark.parametrize(
    ("own", "sentence"),
    [({}, "has a layer of BatchNorm"), ({"switch": "oracle"}, "only a simulation knows true errors")],
    ids=["model", "settings"],
)
def test_settings_that_prevent_inversion_are_refused_before_connecting(own, sentence):
    data: Any = type("Data", (), {"input_shape": SHAPE, "classes": CLASSES})
    model = FlatModel(with_buffers(SHAPE, CLASSES))
    workspace = Workspace(dataset=data, client_data=data, model=model, device=torch.device("cpu"))
    chosen = Settings(compensator={**ON_RAY, "settings": own})
    with pytest.raises(UserError, match=sentence):
        compensator(chosen, workspace, connect=lambda settings, dataset: pytest.fail("it has connected"))
