"""Apps of Flower in simulations and over sockets, with four versions of flwr."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from flower.environments import APPS, HERE, VERSIONS, Flower, fact_of, new_app, outcome_of
from support.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.network]
SYNC = ["--trigger", "sync", "--policy", "fedavg", "--lr", "0.1", "--evaluate-every", "1"]
NORM = ["--flower", "norm:app", "--flower.model", "norm:Net"]
COUNTED = ["--flower", "counted:app", "--flower.model", "counted:model"]


@pytest.fixture(params=VERSIONS)
def flower(request: pytest.FixtureRequest) -> Flower:
    return Flower(request.param)


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
    flower = Flower(VERSIONS[-1])
    arguments = [*SYNC, "--rounds", "20"]
    expected = flower.simulate(folder, *COUNTED, *arguments, "--num-partitions", "2")
    port = free_port()
    address, app = f"tcp://127.0.0.1:{port}", [*COUNTED, "--run-config", "pause-s=0.1"]
    with ExitStack() as stack:
        server = flower.server(stack, folder, *COUNTED, *arguments, "--clients", "2", port=port)
        clients = [flower.client(stack, folder, address, client, *app) for client in range(2)]
        while fact_of(server).get("version", 0) < 4:
            pass
        clients[0].kill()
        flower.client(stack, folder, address, 0, *app)
        while fact_of(server).get("version", 0) < 8:
            pass
        server.kill()
        server.wait()
        server = flower.server(stack, folder, *COUNTED, *arguments, "--clients", "2", port=port)
        outcome = outcome_of(server)
    assert outcome["model_digest"] == expected["model_digest"]
    assert outcome["updates"]["accepted"] == 40
    assert outcome["training_metrics"]["count"]["mean"] == 20  # of each client's `Context.state`


@pytest.mark.parametrize("kind", ["pytorch", "pytorch_msg_api"])
def test_quickstart_learns_under_fedbuff_with_stragglers(flower: Flower, tmp_path: Path, kind: str) -> None:
    new_app(kind, tmp_path)
    app = ["--flower", "quick.client_app:app"]
    arguments = ["--policy", "fedbuff", "--k", "2", "--rounds", "6", "--lr", "0.01", "--evaluate-every", "2"]
    simulated = flower.simulate(tmp_path, *app, *arguments, "--num-partitions", "4", "--scenario", "slow-tenth")
    served = flower.over_sockets(tmp_path, 4, app, arguments)
    for run in (simulated, served):
        assert run["updates"]["accepted"] >= 12
        assert run["updates"]["rejected"] <= 3  # by the other clients, when the run was finished
        assert run["training_metrics"]["loss"]["mean"] < 2.2  # ln 10 = 2.3 without training


def test_numpy_quickstart_reaches_its_constant_model(flower: Flower, tmp_path: Path) -> None:
    new_app("numpy", tmp_path)
    (tmp_path / "first.py").write_text("import numpy as np\n\n\ndef model():\n    return np.zeros((1, 1))\n")
    app = ["--flower", "quick.client_app:app", "--flower.model", "first:model"]
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
    flower = Flower(VERSIONS[-1])
    arguments = ("--flower", f"wrong:{app}", "--flower.model", "wrong:model", "--num-partitions", "2", "--rounds", "1")
    errors = flower.fails(folder, "simulate", *arguments)
    assert f"the app's train function: {'' if app == 'raises' else 'ValueError: '}{message}" in errors


def test_a_missing_model_is_one_sentence(folder: Path) -> None:
    errors = Flower(VERSIONS[-1]).fails(folder, "simulate", "--flower", "wrong:no_model")
    assert errors.startswith("unstale: app 'wrong:no_model' of Flower needs its first model")
    assert errors.count("\n") == 1
