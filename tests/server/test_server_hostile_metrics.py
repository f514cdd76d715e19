"""Clients that invent metric names, numbers of examples and values, over sockets, beside honest ones."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from support.running import RunningServer, small
from support.scrape import families, get
from support.wire import RawClient
from unstale.journal.database import Database
from unstale.report.recorded import read
from unstale_proto.limits import INTEGER_MAX
from unstale_proto.messages import OwnEvaluation

pytestmark = pytest.mark.network

ONES = np.ones(650, dtype="<f4")
NAMES = 32


def named(http: str) -> dict[tuple[str, str], float]:
    """The exported metrics by split and name."""
    samples = families(http)["unstale_metric"].samples
    return {(one.labels["split"], one.labels["name"]): one.value for one in samples}


@pytest.mark.parametrize(("clients", "hostile"), [(11, 1), (20, 2)])
def test_a_tenth_of_the_clients_adds_no_name_and_does_not_decide_the_mean(
    tmp_path: Path, clients: int, hostile: int
) -> None:
    settings = small(
        clients=clients,
        rounds=999,
        evaluate_clients_every=1,
        trigger={"name": "k-async", "k": 1},
        run={"directory": str(tmp_path / "run")},
    )
    invented = 0

    def lie(client: RawClient) -> None:
        nonlocal invented
        task, _ = client.task()
        names = [f"x{invented + number}" for number in range(NAMES)]
        invented += NAMES
        metrics = {**dict.fromkeys(names[2:], -1e200), "mae": -1e200, "rmse": 2.0}
        own = OwnEvaluation(examples=INTEGER_MAX, metrics=metrics) if task.evaluate else None
        assert client.answer(task, ONES, metrics=dict.fromkeys(names, 1.0), evaluation=own).outcome == "accepted"

    def tell(client: RawClient) -> None:
        task, _ = client.task()
        own = OwnEvaluation(examples=100, metrics={"mae": 0.5, "rmse": 1.0}) if task.evaluate else None
        assert client.answer(task, ONES, metrics={"steps_per_s": 4.0}, evaluation=own).outcome == "accepted"

    with RunningServer(settings) as server, ExitStack() as stack:
        sockets = [stack.enter_context(RawClient(server.address, client_id)) for client_id in range(clients)]
        for client in sockets:
            client.join()
        for _ in range(5):  # they are first, and could fill 160 names
            for client in sockets[:hostile]:
                lie(client)
        for _ in range(2):
            for client in sockets[hostile:]:
                tell(client)
        for client in sockets[:hostile]:
            lie(client)
        honest = clients - hostile
        rmse = (honest * 100 * 1.0 + hostile * 500 * 2.0) / (honest * 100 + hostile * 500)
        expected = {
            ("clients", "mae"): 0.5,  # without the values of 1e200
            ("clients", "rmse"): pytest.approx(rmse),  # a weight is at most five medians
            ("training", "loss"): 1.0,
            ("training", "steps_per_s"): 4.0,
        }
        assert named(server.http) == expected
        shown = json.loads(get(f"{server.http}/status.json").text)["metrics"]
        assert {split: set(metrics) for split, metrics in shown.items() if split != "central"} == {
            "clients": {"mae", "rmse"},
            "training": {"loss", "steps_per_s"},
        }
    database = Database(tmp_path / "run" / "run.db", read_only=True)
    stored = {name for row in database.own_evaluations() for name in row.metrics}
    database.close()
    assert sum(name.startswith("x") for name in stored) >= NAMES - 2  # the journal has all
    run = read(tmp_path / "run", "run")
    assert set(run.own_metrics) == {"mae", "rmse"}
    assert {name: spread.p50 for name, spread in run.client_metrics.items()} == {"mae": 0.5, "rmse": 1.0}
