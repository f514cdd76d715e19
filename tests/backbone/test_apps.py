"""Apps over real sockets: laws of rounds, verdicts, private files, and disagreements about what is exchanged."""

import logging
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support import apps
from support.large import RunningClient
from support.processes import Process
from support.proxy import Proxy
from support.running import PATIENCE_S, RunningServer, until
from support.wire import RawClient
from unstale.cli import main
from unstale.client.service import ClientProcess
from unstale.client.worker import Worker
from unstale.client.workspace import training_context_of
from unstale.config.settings import Settings
from unstale.coordinator import events
from unstale.errors import UserError
from unstale.metrics.progress import Outcome, Progress
from unstale.simulator.assemble import simulation
from unstale_client.jobs import Job, Ready, ReceivedModel
from unstale_proto import codec
from unstale_proto.messages import Message, Welcome

pytestmark = pytest.mark.network


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    apps.write_tables(tmp_path, 3)
    monkeypatch.setenv(apps.FOLDER, str(tmp_path))
    return tmp_path


def app_run(name: str | None, *, server: dict[str, Any] | None = None, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "clients": 1,
        "rounds": 4,
        "evaluate_every": 1,
        "device": "cpu",
        "app": None if name is None else f"support.apps:{name}",
        "training": {"learning_rate": 0.125},
        "trigger": {"name": "sync"},
        "policy": {"name": "fedavg"},
        "run": {"durability": "off"},
        "server": {
            "address": "tcp://127.0.0.1:0",
            "http_address": None,
            "heartbeat_s": 0.2,
            "lease_s": 5.0,
            "linger_s": 5.0,
            "retry_s": 0.05,
            **(server or {}),
        },
    }
    return Settings(**{**values, **changes})


def over_sockets(settings: Settings, *, client: Settings | None = None, folder: Path | None = None) -> Outcome:
    """The outcome of a run with a server, and a process that hosts all clients. client: its own settings."""
    with RunningServer(settings) as server, RunningClient(client or settings, server.address, folder):
        outcome = server.end()
        server.server.save()
        return outcome


def simulated(settings: Settings) -> Outcome:
    return simulation(settings, on_progress=lambda _: None).run()


@pytest.mark.parametrize("app", ["regression", "measured", "normed", "last_layer", "half", "adapted"])
def test_one_client_makes_the_same_model_as_in_simulation(app: str, tmp_path: Path) -> None:
    # The simulation is the one whose laws tests/simulator/test_simulated_apps.py proves.
    settings = app_run(app)
    outcome = over_sockets(settings, folder=tmp_path / "outbox")
    assert outcome.model_digest == simulated(settings).model_digest
    assert outcome.metrics == simulated(settings).metrics
    assert outcome.updates == {"accepted": 4, "duplicate": 0, "rejected": 0}


def test_two_clients_with_files_of_their_own_make_the_weighted_mean(tmp_path: Path, files: Path) -> None:
    file = tmp_path / "model.safetensors"
    settings = app_run("regression", clients=2, save_model=str(file), rounds=1)
    over_sockets(settings)
    sizes, models = [12, 20], []
    for client in range(2):
        module = apps.model()
        torch.nn.utils.vector_to_parameters(first_version(tmp_path), module.parameters())
        apps.descend(module, apps.table(client), 0.125)
        models.append(module.state_dict())
    for name, tensor in load_file(file).items():
        mean = (sizes[0] * models[0][name] + sizes[1] * models[1][name]) / sum(sizes)
        torch.testing.assert_close(tensor, mean, rtol=1e-5, atol=1e-6)


def first_version(folder: Path) -> torch.Tensor:
    from unstale.config.workspace import make_workspace

    return make_workspace(app_run("regression")).model.parameters_d.clone()


def test_state_changes_with_the_verdict_and_metrics_of_clients_arrive(tmp_path: Path) -> None:
    apps.FOUND.clear()
    settings = app_run("refused", rounds=3)
    outcome = over_sockets(settings, folder=tmp_path / "outbox")
    assert outcome.updates["rejected"] == 2  # every second one
    assert apps.FOUND == [0, 1, 1, 2, 2]  # accepted updates before each task


def test_state_survives_the_end_of_a_client_process(tmp_path: Path) -> None:
    apps.FOUND.clear()
    settings = app_run("refused", rounds=1000, trigger={"name": "async"})
    folder = tmp_path / "outbox"
    with RunningServer(settings) as server:
        with RunningClient(settings, server.address, folder):
            until(lambda: max(apps.FOUND, default=0) >= 3)
        reached = max(apps.FOUND)
        del apps.FOUND[:]
        with RunningClient(settings, server.address, folder):
            until(lambda: apps.FOUND)
        assert apps.FOUND[0] >= reached


@pytest.mark.parametrize("lost", ["ack", "update", "task"])
@pytest.mark.parametrize("trigger", ["sync", "async"])
def test_a_state_counts_each_accepted_update_once_though_messages_are_lost(lost: str, trigger: str) -> None:
    settings = app_run("counting", clients=2, rounds=8, trigger={"name": trigger}, server={"heartbeat_s": 0.05})
    accepted, passed = apps.Accepted(2), 0

    def loses_every_second(message: Message, _: bool) -> bool:
        nonlocal passed
        passed += message.type == lost
        return message.type == lost and passed % 2 == 1

    with (
        RunningServer(settings, observe=accepted) as server,
        Proxy(server.address, loses_every_second) as proxy,
        RunningClient(settings, proxy.address),
    ):
        outcome = server.end()
    accepted.check()
    assert outcome.versions == 8
    assert passed > 8


def test_a_client_process_that_no_ack_ever_reaches_resumes_with_its_accepted_updates(tmp_path: Path) -> None:
    settings = app_run("counting", rounds=14, trigger={"name": "async"}, server={"heartbeat_s": 0.05})
    accepted, folder = apps.Accepted(1), tmp_path / "outbox"
    tasks, blocked = 0, threading.Event()

    def loses(message: Message, up: bool) -> bool:
        nonlocal tasks
        tasks += message.type == "task"
        if tasks == 7 and message.type == "task":
            blocked.set()
        return not up and (message.type == "ack" or (message.type == "task" and blocked.is_set()))

    with RunningServer(settings, observe=accepted) as server, Proxy(server.address, loses) as proxy:
        with RunningClient(settings, proxy.address, folder):
            assert blocked.wait(PATIENCE_S)
        assert [path.name for path in folder.glob("*.update")] == ["0-5.update"]
        before = len(apps.COUNTED)
        blocked.clear()
        tasks = 100
        with RunningClient(settings, proxy.address, folder):
            outcome = server.end()
    accepted.check()
    assert apps.COUNTED[before][2] == 5  # of the tasks 0 to 5, number 3 was rejected
    assert outcome.updates["accepted"] == 14


def test_a_server_resumes_a_run_of_an_app_which_the_report_shows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stored = app_run("measured", rounds=10_000, run={"directory": str(folder)})
    progress: list[Progress] = []
    with RunningServer(stored, progress.append) as server, RunningClient(stored, server.address):
        until(lambda: len(progress) > 3)
        server.server.stop()
        first = server.end()
    with RunningServer(stored, progress.append) as server:
        assert server.server.standing == f"going on at version {first.versions}"
    for app in ("regression", "measured"):
        recorded = tmp_path / app
        simulation(app_run(app, run={}), on_progress=lambda _: None, record_in=recorded).run()
        assert main.run(["report", str(recorded), "--out", str(tmp_path / f"{app}.html")]) == 0


def test_tasks_that_are_declined_or_raise_do_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for app in ("drawing", "failing"):
        outcome = over_sockets(app_run(app, clients=2, rounds=5))
        assert (outcome.reason, outcome.versions) == ("finished", 5)
    assert "ValueError: no rows" in caplog.text and "raise ValueError" in caplog.text
    assert "client 0: not now" in caplog.text


def test_a_training_that_hangs_ends_its_process_and_not_the_run() -> None:
    settings = app_run("hanging", clients=2, min_clients=1, trigger={"name": "async"})
    events_seen: list[events.Event] = []
    with RunningServer(settings, observe=lambda event, _: events_seen.append(event)) as server:
        command = ("client", "--app", "support.apps:hanging", "--server", server.address, "--first", "1")
        with Process(*command, "--client.task-timeout-s", "0.5", python_path=Path(apps.__file__).parents[1]) as hanging:
            assert hanging.end() == 3
            said = hanging.errors()
        assert [event.client_id for event in events_seen if isinstance(event, events.TaskRaised)] == [1]
        with RunningClient(app_run("hanging"), server.address):
            assert server.end().updates == {"accepted": 4, "duplicate": 0, "rejected": 0}
    assert "client 1: the task exceeds client.task_timeout_s, 0.5 s" in said
    assert said.splitlines()[-1].startswith(
        "unstale: client 1: its task 0 still runs after twice client.task_timeout_s"
    )


def test_an_older_client_cannot_take_part_in_a_run_of_an_app() -> None:
    with RunningServer(app_run("regression")) as server, RawClient(server.address) as client:
        said = client.join()
    assert isinstance(said, Welcome)
    assert (said.model, said.data, said.partition.name, said.training.name) == ("app", "private", "private", "app")
    assert (said.model_plan, said.data_plan, said.objective) == (None, None, None)


def test_only_exchanged_tensors_travel() -> None:
    with RunningServer(app_run("last_layer")) as server, RawClient(server.address) as client:
        said = client.join()
        task, vector = client.task()
    assert [tensor.name for tensor in said.tensors] == ["2.weight", "2.bias"]
    assert task.payload_bytes == vector.nbytes == 4 * (4 + 1)  # of 17 parameters
    worker = Worker(lambda welcome: training_context_of(welcome, app_run("last_layer")).workload, post=lambda _: None)
    model = ReceivedModel([memoryview(vector.tobytes())])
    ready = worker._result(Job(client_id=0, welcome=said, task=task, model=model, is_wanted=lambda: True))
    assert isinstance(ready, Ready)
    assert sum(map(len, ready.pending.parcel)) == ready.pending.update.payload_bytes == 4 * (4 + 1)
    assert len(codec.encode(ready.pending.update)) < 500


def refused(server: Settings, client: Settings) -> str:
    """What ends a client."""
    errors: list[BaseException] = []
    with RunningServer(server) as running:
        process = ClientProcess(
            server=running.address,
            client_ids=range(1),
            prepare=lambda welcome: training_context_of(welcome, client).workload,
            heartbeat_s=0.2,
            linger_s=0.2,
        )

        def run() -> None:
            try:
                process.run()
            except UserError as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        with ExitStack() as stack:
            stack.callback(process.stop)
            thread.start()
            thread.join(PATIENCE_S)
        assert not thread.is_alive()
    (error,) = errors
    assert isinstance(error, UserError) and "\n" not in str(error)
    return str(error)


def test_a_server_and_a_client_that_disagree_name_the_first_tensors_at_the_client() -> None:
    said = refused(app_run("normed"), app_run("regression"))
    assert said.startswith(
        "app 'support.apps:regression' and the server exchange different tensors: '2.weight' is a parameter of shape "
        "[1, 4] here and not exchanged there; '2.bias' is a parameter of shape [1] here and not exchanged there; "
        "'1.weight' is not exchanged here and a parameter of shape [4] there"
    )
    assert refused(app_run("regression"), app_run("last_layer")).count("not exchanged here") == 2


def test_a_client_with_another_frozen_backbone_is_refused_at_the_client() -> None:
    assert refused(app_run("adapted"), app_run("adapted_elsewhere")) == (
        "app 'support.apps:adapted_elsewhere' has other values, names or types of frozen parameters on this machine "
        "than on the server; load the same file on both sides, with the same version of PyTorch if a seed draws them"
    )


def test_an_app_on_one_side_only_is_refused_at_the_client() -> None:
    plain = app_run(None, model={"name": "logreg"})
    assert refused(app_run("regression"), plain).endswith("does not name; add --app, such as my_app:app")
    said = refused(plain, app_run("regression"))
    assert said.startswith(
        "app is 'support.apps:regression', but the server's run trains model 'logreg' on data 'digits'"
    )


def test_a_server_needs_no_code_where_a_file_has_the_first_version(tmp_path: Path) -> None:
    file, last = tmp_path / "first.safetensors", tmp_path / "last.safetensors"
    save_file(apps.with_buffers().state_dict(), file)
    server = app_run(None, initial=str(file), clients=2, evaluate_clients_every=1, save_model=str(last))
    outcome = over_sockets(server, client=app_run("normed", clients=2))
    same = over_sockets(app_run("normed", initial=str(file), clients=2))
    assert outcome.versions == 4
    assert [*outcome.client_metrics] == ["mae"]
    assert {name: tensor.shape for name, tensor in load_file(last).items()} == {
        name: tensor.shape for name, tensor in load_file(file).items() if tensor.is_floating_point()
    }
    assert same.updates["accepted"] == outcome.updates["accepted"]
