"""MLflow, TensorBoard and W&B have exactly the numbers of the journal, also of a run whose server was killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unstale
from support import line
from support.line import IN_ROUNDS
from support.running import PATIENCE_S, until
from support.scrape import get
from support.wandb_file import rows
from unstale.cli import main
from unstale.trackers import Round
from unstale.trackers.mlflow import MlflowTracker
from unstale.trackers.reader import JournalReader, Point

pytest.importorskip("mlflow")
pytest.importorskip("tensorboard")
pytest.importorskip("wandb")

pytestmark = pytest.mark.filterwarnings("default")  # the libraries warn of others

NAMES = ("mlflow", "tensorboard", "wandb")
Series = dict[str, list[tuple[int, float]]]
"""Version and value of each point, by the name of the number."""


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_ERROR_REPORTING": "false",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def points_of(folder: Path) -> list[Point]:
    reader = JournalReader(folder, folder.name)
    points = []
    while more := reader.read(is_last=True):
        points += more
    return points


def expected(folder: Path) -> Series:
    series: Series = {}
    for point in points_of(folder):
        for name, value in point.numbers.items():
            series.setdefault(name, []).append((point.version, value))
    return series


def of_mlflow(name: str) -> Iterator[Series]:
    """The metrics of each run with a name."""
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("unstale")
    assert experiment is not None
    for run in client.search_runs([experiment.experiment_id], f"tags.mlflow.runName = '{name}'"):
        of_run = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
        for version, elapsed_s in expected(Path(name))["round/elapsed_s"]:
            (point,) = [one for one in of_run["round/updates"] if one.step == version]
            assert point.timestamp - run.info.start_time == round(1000 * elapsed_s)
        assert run.data.params["policy.name"] == "fedavg" and run.info.status == "FINISHED"
        yield {key: [(one.step, one.value) for one in points] for key, points in of_run.items()}


def of_tensorboard(folder: Path) -> Series:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    accumulator.Reload()
    series = {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}
    times = {event.step: event.wall_time for event in series["round/elapsed_s"]}
    assert {version: rounded(time) for version, time in times.items()} == {
        event.step: event.value for event in series["round/elapsed_s"]
    }
    return {tag: [(event.step, event.value) for event in events] for tag, events in series.items()}


def rounded(value: float) -> float:
    """As float32, the type of TensorBoard's scalars."""
    return float(np.float32(value))


def as_float32(series: Series) -> Series:
    return {name: [(version, rounded(value)) for version, value in points] for name, points in series.items()}


def of_wandb() -> Series:
    (folder,) = Path("wandb").glob("offline-run-*")
    series: Series = {}
    for row in rows(folder):
        version = row.pop("version")
        for name, value in row.items():
            series.setdefault(name, []).append((version, value))
    return series


def test_a_run_and_its_export_have_the_numbers_of_the_journal() -> None:
    keys: dict[str, Any] = IN_ROUNDS | {"evaluate_every": 2, "evaluate_clients_every": 1}
    run = unstale.simulate(line.app, **keys, directory="run", progress=False, trackers=NAMES)
    assert run.digest == unstale.simulate(line.app, **keys, progress=False).digest
    series = expected(Path("run"))
    assert [version for version, _ in series["training/loss"]] == [1, 2, 3, 4]
    assert series["clients/value"] == list(zip(run.evaluations.version, run.evaluations.value, strict=True))
    assert [*of_mlflow("run")] == [series]
    assert of_tensorboard(Path("tensorboard/run")) == as_float32(series)
    assert of_wandb() == series
    for name in NAMES[:2]:
        assert main.run(["export", "run", "--to", name]) == 0
    assert [*of_mlflow("run")] == [series, series]
    assert of_tensorboard(Path("tensorboard/run-2")) == as_float32(series)


def test_mlflow_has_metrics_whose_names_it_refuses() -> None:
    """Clients choose names of metrics. MLflow refuses all numbers of a request for an empty part or a dot in one."""
    unstale.simulate(line.app, **{**IN_ROUNDS, "rounds": 1}, directory="run", progress=False)
    reader = JournalReader(Path("run"), "run")
    (one,) = [point for point in reader.read(is_last=True) if isinstance(point, Round)]
    tracker = MlflowTracker()
    tracker.on_start(reader.run)
    tracker.on_round(replace(one, training={"a//b": 1.0, "../central/value": 2.0, "c/./d/": 3.0, "e..f": 4.0}))
    tracker.flush()
    tracker.on_finish(reader.finish())
    (series,) = of_mlflow("run")
    found = {name: points for name, points in series.items() if not name.startswith(("round/", "policy/"))}
    names = ("training/a/b", "training/central/value", "training/c/d", "training/e..f")
    assert found == {name: [(1, float(value))] for value, name in enumerate(names, 1)}


def test_the_commands_of_the_page_run() -> None:
    page = Path(__file__).parents[2] / "docs/trackers.md"
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    commands = [command for block in blocks for command in block.splitlines() if command.startswith("unstale ")]
    assert [main.run(shlex.split(command)[1:]) for command in commands] == [0, 0]
    series = expected(Path("digits"))
    assert len(series["round/updates"]) == 20
    for folder in ("digits", "digits-2"):
        assert of_tensorboard(Path("tensorboard", folder)) == as_float32(series)


def test_the_page_of_tensorboard_shows_the_points() -> None:
    unstale.simulate(line.central, **IN_ROUNDS, directory="run", progress=False, trackers=["tensorboard"])
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        "tensorboard",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as page:
        try:
            assert page.stderr is not None
            address = next(found[0] for text in page.stderr if (found := re.search(r"http://[\w.:]+/", text)))
            query = "data/plugin/scalars/scalars?run=run&tag=training%2Floss"
            points: list[list[float]] = []

            def is_loaded() -> bool:
                points[:] = json.loads(get(f"{address}{query}").text or "[]")
                return bool(points)

            until(is_loaded, "TensorBoard has read the file")
        finally:
            page.kill()
    expected_points = as_float32(expected(Path("run")))["training/loss"]
    assert [(version, value) for _, version, value in points] == expected_points


def test_wandb_without_an_account_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    tracker = "{name: wandb, settings: {mode: online}}"
    assert main.run(["simulate", "--clients", "2", "--rounds", "1", "--trackers", tracker]) == 2
    refusal = "tracker 'wandb' has no API key; run `wandb login`, or set its mode to offline"
    assert capsys.readouterr().err.splitlines()[-1] == f"unstale: {refusal}"


SERVER = """
import sys, unstale
from support import line
from support.line import IN_ROUNDS
from unstale.trackers import tracking
tracking.POLL_S = 0.01
arguments = {name: value for name, value in IN_ROUNDS.items() if name != "scenario"} | {"rounds": int(sys.argv[1])}
server = unstale.serve(line.central, **arguments, evaluate_every=2, directory="run", background=True,
    server={"address": f"tcp://127.0.0.1:{sys.argv[2]}", "http_address": None, "linger_s": 0.1},
    trackers=["mlflow", "tensorboard", "wandb"])
print(server.address, flush=True)
print(server.wait().digest, flush=True)
"""


def started(stack: ExitStack, rounds: int, port: int) -> "subprocess.Popen[str]":
    # Without the variable by which this process shares its service of wandb.
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    paths = [*sys.path, str(Path(__file__).parents[1])]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(rounds), str(port)],
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.__exit__, None, None, None)
    stack.callback(process.kill)
    return process


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Clients:
    """Three clients of `support.line`, which wait before each task above a version."""

    def __init__(self, address: str) -> None:
        self.up_to = 0
        self._moved = threading.Condition()
        self._threads = [threading.Thread(target=self._descend, args=(address, client)) for client in range(3)]
        for thread in self._threads:
            thread.start()

    def allow(self, up_to: int) -> None:
        """Let the clients train up to a version."""
        with self._moved:
            self.up_to = up_to
            self._moved.notify_all()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _descend(self, address: str, client_id: int) -> None:
        with unstale.join(address, client_id=client_id, patience_s=PATIENCE_S) as client:
            for task in client:
                with self._moved:
                    self._moved.wait_for(lambda: task.version < self.up_to, PATIENCE_S)  # noqa: B023
                weights = {
                    name: value - task.learning_rate * (client_id + 1) for name, value in task.parameters.items()
                }
                task.send(weights, num_examples=client_id + 1, loss=client_id + 1.0)


@pytest.mark.network
@pytest.mark.timeout(300)
def test_after_sigkill_no_point_is_missing_and_none_is_doubled() -> None:
    rounds = 9
    assert versions_shown() == []  # which makes the tables of MLflow
    with ExitStack() as stack:
        server = started(stack, rounds, 0)
        address = line_of(server)
        clients = Clients(address)
        for up_to in (3, 6):
            clients.allow(up_to)
            until(lambda: len(rounds_stored()) >= up_to, f"version {up_to} is stored")  # noqa: B023
            if up_to == 3:
                until(lambda: 3 in versions_shown(), "MLflow has version 3")
            server.send_signal(signal.SIGKILL)
            server.wait()
            server = started(stack, rounds, int(address.rpartition(":")[2]))
            assert line_of(server) == address
        clients.allow(rounds)
        digest = line_of(server)
        clients.join()
        assert server.wait() == 0
    last = [point for point in points_of(Path("run")) if isinstance(point, Round)][-1]
    assert last.digest == digest
    series = expected(Path("run"))
    assert [version for version, _ in series["round/updates"]] == [*range(1, rounds + 1)]
    assert [version for version, _ in series["central/value"]] == [0, 2, 4, 6, 8, 9]
    assert [*of_mlflow("run")] == [series]
    (folder,) = Path("tensorboard").iterdir()
    assert len([*folder.iterdir()]) == 1 and of_tensorboard(folder) == as_float32(series)
    assert of_wandb() == series


def rounds_stored() -> list[int]:
    try:
        return [point.version for point in points_of(Path("run")) if isinstance(point, Round)]
    except unstale.UserError:  # the run has not begun
        return []


def versions_shown() -> list[int]:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("unstale")
    runs = client.search_runs([experiment.experiment_id]) if experiment is not None else []
    return [point.step for run in runs for point in client.get_metric_history(run.info.run_id, "round/updates")]
