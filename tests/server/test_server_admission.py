"""The claims of an update, against the limits of its task and of the run."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.running import RunningServer, small
from support.wire import RawClient, update_of
from unstale.learner.bounds import NormBounds
from unstale.learner.row_checks import Layout, Norms
from unstale.server.admission import Admission, Expected
from unstale_proto.errors import Reason
from unstale_proto.messages import OwnEvaluation, Task, Update

D = 650
TASK = Task(task_id=1, number=0, version=2, learning_rate=0.25, signature="a" * 64, payload_bytes=24)
RATES = (1.0, 0.5, 0.25, 0.125)
"""Of the tasks of versions 0 to 3."""


def claimed(**changes: Any) -> Update:
    return update_of(TASK, **changes)


def admission(**expected: Any) -> Admission:
    return Admission(NormBounds("adaptive", clients=5), Expected(**expected), rates=RATES)


def test_an_update_may_have_the_learning_rate_of_its_task_and_no_other() -> None:
    for rate in RATES:
        assert (admission().contradiction(0, claimed(learning_rate=rate)) is None) == (rate == 0.25)
    assert admission().contradiction(0, claimed(learning_rate=1e6)) == (
        "its learning rate is 1000000.0, expected 0.25, the rate of its task"
    )


def test_the_task_of_a_stale_client_has_the_rate_of_a_later_version() -> None:
    late = admission(late=1)
    for rate in RATES:
        assert (late.contradiction(0, claimed(learning_rate=rate)) is None) == (rate in (0.25, 0.125))


def test_a_version_that_is_not_there_is_for_the_coordinator_to_refuse() -> None:
    assert admission().contradiction(0, claimed(base_version=2**63 - 1, learning_rate=9.0)) is None


def test_an_update_is_of_the_kind_that_the_training_makes() -> None:
    assert admission(kind="gradient").contradiction(0, claimed(kind="gradient")) is None
    assert admission(kind="delta").contradiction(0, claimed(kind="gradient")) == (
        "its kind is 'gradient', expected 'delta', the kind of the run's training"
    )


def test_a_client_claims_no_more_examples_than_it_holds() -> None:
    held = admission(examples_max=[10, 20].__getitem__)
    assert held.contradiction(0, claimed(num_examples=10)) is None
    assert held.contradiction(1, claimed(num_examples=20)) is None
    assert held.contradiction(0, claimed(num_examples=11)) == (
        "it claims 11 examples, expected at most 10 from this client"
    )
    assert held.contradiction(0, claimed(num_examples=8, batch_examples=9)) == (
        "its batch has 9 examples, expected at most 8"
    )


@pytest.mark.parametrize("place", range(3))
def test_each_vector_of_a_payload_is_bounded(place: int) -> None:
    judge = admission()
    for client_id in range(5):
        judge.bounds.judged(client_id, 0, Norms(1.0, 1.0, 1.0), accepted=True)
    row_D = np.ones(3, dtype=np.float32)
    layout = Layout(1, buffers=1, extra=1)
    assert judge.screen(0, claimed(), row_D, layout)[1] is None
    row_D[place] = 1e15
    assert judge.screen(0, claimed(), row_D, layout)[1] is Reason.NORM_TOO_LARGE


# --- over sockets, with a run directory ---


def recorded(path: Path, query: str) -> list[Any]:
    database = sqlite3.connect(f"file:{path / 'run.db'}?mode=ro", uri=True)
    found = database.execute(query).fetchall()
    database.close()
    return found


def settings_in(path: Path, **changes: Any) -> Any:
    return small(rounds=100, run={"directory": str(path), "free_bytes_min": 0, "checkpoint_every": 4}, **changes)


def of_norm(norm: float) -> "np.ndarray[Any, Any]":
    return np.eye(1, D, dtype="<f4")[0] * np.float32(norm)


def test_an_unrequested_evaluation_is_dropped_and_the_update_counts(tmp_path: Path) -> None:
    with RunningServer(settings_in(tmp_path, clients=1)) as server, RawClient(server.address) as client:
        client.join()
        task, _ = client.task()
        assert task.evaluate is None
        own = OwnEvaluation(accuracy=1.0, loss=0.0, examples=1)
        assert client.answer(task, of_norm(1.0), evaluation=own).outcome == "accepted"
    assert recorded(tmp_path, "SELECT count(*) FROM updates WHERE reason IS NULL") == [(1,)]
    assert recorded(tmp_path, "SELECT count(*) FROM own_evaluations") == [(0,)]


def test_a_server_that_resumes_has_the_bounds_and_rates_of_the_one_that_died(tmp_path: Path) -> None:
    lived, copied = tmp_path / "lived", tmp_path / "copied"
    changes = {"clients": 3, "training": {"name": "gradient", "schedule": {"name": "inverse"}}}
    with RunningServer(settings_in(lived, **changes)) as server:
        clients = [RawClient(server.address, client_id) for client_id in range(3)]
        for client in clients:
            client.join()
        tasks = [client.task()[0] for client in clients]
        for norm in (1.0, 2.0, 3.0, 4.0):
            for client_id in range(3):
                ack = clients[client_id].answer(tasks[client_id], of_norm(norm + client_id))
                assert ack.outcome == "accepted"
                tasks[client_id], _ = clients[client_id].task()
        assert clients[1].answer(tasks[1], of_norm(2.0**30)).reason is Reason.NORM_TOO_LARGE
        assert clients[0].answer(tasks[0], of_norm(5.0)).outcome == "accepted"
        tasks[0], _ = clients[0].task()
        bounds = server.server._protocol._admission.bounds.state_dict()
        shutil.copytree(lived, copied)  # as kill -9 leaves it: behind a checkpoint there are updates
        for client in clients:
            client.__exit__()
    assert recorded(copied, "SELECT max(version) FROM checkpoints") == [(12,)]
    assert recorded(copied, "SELECT norm FROM updates WHERE reason = 'norm-too-large'") == [(2.0**30,)]
    with RunningServer(settings_in(copied, **changes)) as server, RawClient(server.address, 0) as client:
        assert server.server._protocol._admission.bounds.state_dict() == bounds
        client.join(holding=(tasks[0].task_id,))
        assert client.answer(tasks[0], of_norm(1.0)).outcome == "accepted"
