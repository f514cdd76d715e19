"""Apps of Flower in simulations and over sockets, with several versions of flwr."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from flower.environments import APPS, HERE, VERSIONS, Flower, hears_hello, new_app, outcome_of, python_of, reaches
from support.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.network]
SYNC = ["--trigger", "sync", "--policy", "fedavg", "--lr", "0.1", "--evaluate-every", "1"]
NORM = ["--flower", "norm:app", "--flower.model", "norm:Net"]
FEDBUFF = ["--policy", "fedbuff", "--k", "2", "--lr", "0.003", "--evaluate-every", "1"]
COUNTED = ["--flower", "counted:app", "--flower.model", "counted:model"]


@pytest.fixture(params=VERSIONS)
def flower(request: pytest.FixtureRequest) -> Flower:
    return Flower(python_of(request.param))


def quickstart(kind: str, folder: Path) -> list[str]:
    """Options of the app that `flwr new` writes, with a first model."""
    new_app(kind, folder)
    if kind != "numpy":
        return ["--flower", "quick.client_app:app"]
    (folder / "first.py").write_text("import numpy as np\n\n\ndef model():\n    return np.zeros((1, 1))\n")
    return ["--flower", "quick.client_app:app", "--flower.model", "first:model"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(APPS, tmp_path / "apps"))


def test_message_app_gives_the_model_of_a_loop_by_hand(flower: Flower, folder: Path) -> None:
    run = flower.simulate(
        folder, *NORM, *SYNC, "--num-partitions", "2", "--rounds", "4", "--save-model", "m.safetensors"
    )
    assert run["updates"] == {"accepted": 8, "duplicate": 0, "rejected": 0}
    expected = flower.script(folder, str(HERE / "bare_loop.py"), "4", "2", "0.1")
    found = load_file(folder / "m.safetensors")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6)  # sums in another order, in float32
    assert run["client_metrics"]["count"]["mean"] == 3  # a task begins with an evaluation, before its training
    assert run["client_metrics"]["own"]["mean"] == pytest.approx(5 / 3)  # (1 * 1 + 2 * 2) / 3 examples


@pytest.mark.parametrize("app", [NORM, COUNTED], ids=["message", "numpy-client"])
def test_sockets_and_simulation_give_the_same_digest(flower: Flower, folder: Path, app: list[str]) -> None:
    arguments = [*SYNC, "--rounds", "3"]
    simulated = flower.simulate(folder, *app, *arguments, "--num-partitions", "2")
    served = flower.over_sockets(folder, 2, app, arguments)  # the sum of two does not depend on their order
    assert served["model_digest"] == simulated["model_digest"]
    assert served["updates"] == simulated["updates"] == {"accepted": 6, "duplicate": 0, "rejected": 0}


def test_context_state_follows_the_verdicts_on_a_flaky_network(flower: Flower, folder: Path) -> None:
    script = (
        "import unstale; keys = dict(clients=3, policy='fedbuff', rounds=8, scenario='flaky', progress=False); "
        "run = unstale.simulate('counted:app', **keys, **{'flower.model': 'counted:model', 'trigger.k': 2}); "
        "print(run.updates.assign(is_accepted=run.updates.reason.isna())"
        "[['client_id', 'loss_nats', 'is_accepted']].to_json(orient='records'))"
    )
    updates = flower.script(folder, "-c", script)
    accepted: dict[str, int] = {}
    for update in updates:
        client = update["client_id"]
        if update["is_accepted"]:
            accepted[client] = accepted.get(client, 0) + 1
            assert update["loss_nats"] == accepted[client]  # the loss of this app is its count
    assert sum(accepted.values()) >= 16


def test_a_kill_of_server_and_client_changes_no_bit(folder: Path) -> None:
    flower = Flower(python_of(VERSIONS[-1]))
    arguments = [*SYNC, "--rounds", "20"]
    expected = flower.simulate(folder, *COUNTED, *arguments, "--num-partitions", "2")
    port = free_port()
    address, app = f"tcp://127.0.0.1:{port}", [*COUNTED, "--run-config", "pause-s=0.1"]
    with ExitStack() as stack:
        server = flower.server(stack, folder, *COUNTED, *arguments, "--clients", "2", port=port)
        clients = [flower.client(stack, folder, address, client, *app) for client in range(2)]
        reaches(server, 4)
        clients[0].kill()
        clients[0].wait()
        flower.client(stack, folder, address, 0, *app)
        reaches(server, 8)
        server.kill()
        server.wait()
        server = flower.server(stack, folder, *COUNTED, *arguments, "--clients", "2", port=port)
        outcome = outcome_of(server)
    assert outcome["model_digest"] == expected["model_digest"]
    assert outcome["updates"]["accepted"] == 40
    assert outcome["training_metrics"]["count"]["mean"] == 20  # of each client's `Context.state`


@pytest.mark.parametrize("kind", ["pytorch", "pytorch_msg_api"])
def test_quickstart_learns_under_fedbuff_with_stragglers(flower: Flower, tmp_path: Path, kind: str) -> None:
    app = quickstart(kind, tmp_path)
    run = flower.simulate(
        tmp_path, *app, *FEDBUFF, "--rounds", "8", "--num-partitions", "4", "--scenario", "slow-tenth"
    )
    assert run["updates"]["accepted"] >= 16
    assert run["updates"]["rejected"] <= 3  # by the other clients, when the run was finished
    assert run["training_metrics"]["loss"]["mean"] < 2.2  # ln 10 = 2.3 without training


@pytest.mark.parametrize("kind", ["pytorch_msg_api", "numpy"])
def test_killed_server_and_client_of_a_quickstart_lose_and_double_no_update(
    flower: Flower, tmp_path: Path, kind: str
) -> None:
    app, port, rounds = quickstart(kind, tmp_path), free_port(), 12
    scenario = ("--scenario", str(HERE / "stragglers.yaml"))
    of_server = (*app, *FEDBUFF, *scenario, "--rounds", str(rounds), "--clients", "3", "--run.keep-updates")
    of_client = (*app, *scenario, "--num-partitions", "3")
    address = f"tcp://127.0.0.1:{port}"
    with ExitStack() as stack:
        server = flower.server(stack, tmp_path, *of_server, port=port)
        clients = [flower.client(stack, tmp_path, address, client, *of_client) for client in range(3)]
        reaches(server, 2)
        clients[0].kill()
        clients[0].wait()
        flower.client(stack, tmp_path, address, 0, *of_client)
        reaches(server, 4)
        server.kill()
        server.wait()
        hears_hello(port, 0)
        outcome = outcome_of(flower.server(stack, tmp_path, *of_server, port=port))
    run = flower.script(tmp_path, str(HERE / "recomputed.py"), "unstale-run")  # checks each update and each version
    assert [len(updates) for updates in run["rounds"]] == [2] * rounds
    accepted = [update for updates in run["rounds"] for update in updates]
    assert len({update["task_id"] for update in accepted}) == len(accepted) == run["conservation"]["aggregated"]
    assert outcome["versions"] == rounds
    assert outcome["updates"]["accepted"] == len(accepted) + run["conservation"]["pending"]
    assert {update["client_id"] for update in accepted if update["base_version"] >= 4} >= {0, 1}
    assert max(update["staleness"] for update in accepted if update["client_id"] == 2) >= 1
    if kind == "numpy":
        return  # it reports no loss
    losses = [update["loss"] for update in accepted if update["client_id"] == 1]
    assert losses[-1] < losses[0]


def test_numpy_quickstart_reaches_its_constant_model(flower: Flower, tmp_path: Path) -> None:
    app = quickstart("numpy", tmp_path)
    run = flower.simulate(
        tmp_path, *app, *SYNC, "--num-partitions", "2", "--rounds", "4", "--save-model", "m.safetensors"
    )
    served = flower.over_sockets(tmp_path, 2, app, [*SYNC, "--rounds", "4"])
    assert served["updates"] == {"accepted": 8, "duplicate": 0, "rejected": 0}  # of zeros after the first round
    assert served["model_digest"] == run["model_digest"]
    assert load_file(tmp_path / "m.safetensors")["0"].tolist() == [[1.0]]  # `fit` returns ones


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("raises", "KeyError: 'no such file'"),
        ("empty", "the reply has 0 array records, expected one with all arrays of the model"),
        ("shape", "the reply has 'w' of shape [3], expected [2]"),
        ("name", "the reply has 1 arrays, without 'w', expected the 1 arrays of the model that was sent"),
        ("examples", "the reply has no 'num-examples' in a metric record"),
    ],
)
def test_a_failing_app_gives_its_tasks_back_with_the_cause(folder: Path, app: str, message: str) -> None:
    flower = Flower(python_of(VERSIONS[-1]))
    arguments = ("--flower", f"wrong:{app}", "--flower.model", "wrong:model", "--num-partitions", "2", "--rounds", "1")
    errors = flower.fails(folder, "simulate", *arguments)
    assert f"the app's train function: {'' if app == 'raises' else 'ValueError: '}{message}" in errors


def test_a_missing_model_is_one_sentence(folder: Path) -> None:
    errors = Flower(python_of(VERSIONS[-1])).fails(folder, "simulate", "--flower", "wrong:no_model")
    assert errors.startswith("unstale: app 'wrong:no_model' of Flower needs its first model")
    assert errors.count("\n") == 1
