"""Trackers receive exactly the numbers of the journal, and cannot stop a run."""

import logging
import re
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import unstale
from support import line
from support.journal import accepted
from support.line import IN_ROUNDS
from support.running import PATIENCE_S, RunningServer, small, until
from support.scrape import sample
from unstale.cli import main
from unstale.config import load
from unstale.journal.database import Database
from unstale.journal.history import History
from unstale.journal.rows import Batch, EvaluationRow, OwnEvaluationRow
from unstale.trackers import Evaluation, Finish, Round, TrackedRun, Tracker, reader, tracking
from unstale.training.measured import MainMetric

Point = Round | Evaluation


class Recording(Tracker):
    """Keeps all that it receives. fails: the number of calls of each method and version that raise first."""

    def __init__(self, fails: float = 0) -> None:
        self._fails = fails
        self._calls: dict[tuple[str, int], int] = {}
        self.runs: list[TrackedRun] = []
        self.points: list[Point] = []
        self.finishes: list[Finish] = []

    def _called(self, method: str, version: int = 0) -> None:
        calls = self._calls[method, version] = self._calls.get((method, version), 0) + 1
        if calls <= self._fails:
            raise RuntimeError(f"no\n{method}")

    def on_start(self, run: TrackedRun) -> None:
        self._called("start")
        self.runs.append(run)

    def on_round(self, applied: Round) -> None:
        self._called("round", applied.version)
        self.points.append(applied)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._called("evaluation", evaluation.version)
        self.points.append(evaluation)

    def flush(self) -> None:
        self._called("flush")

    def on_finish(self, finish: Finish) -> None:
        self._called("finish")
        self.finishes.append(finish)

    @property
    def rounds(self) -> list[Round]:
        return [point for point in self.points if isinstance(point, Round)]

    @property
    def evaluations(self) -> list[Evaluation]:
        return [point for point in self.points if isinstance(point, Evaluation)]


def descend(address: str, client_id: int) -> None:
    """The training of `support.line`."""
    with unstale.join(address, client_id=client_id, patience_s=PATIENCE_S) as client:
        for task in client:
            weights = {name: value - task.learning_rate * (client_id + 1) for name, value in task.parameters.items()}
            task.send(weights, num_examples=client_id + 1, loss=client_id + 1.0)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "POLL_S", 0.001)
    monkeypatch.setattr(tracking, "PAUSE_S_MAX", 0.001)


ROUND_COLUMNS = (
    *("version", "wait_s", "compensate_s", "aggregate_s", "updates", "learning_rate", "rate_factor", "overflowed"),
    "digest",
)


def check_equal(tracker: Recording, run: unstale.Run) -> None:
    """Compare with the tables of the result."""
    rounds = run.rounds
    for name in ROUND_COLUMNS:
        assert [getattr(one, name) for one in tracker.rounds] == rounds[name].tolist()
    assert [one.elapsed_s for one in tracker.rounds] == rounds.applied_elapsed_s.tolist()
    by_version = run.updates.dropna(subset="version").groupby("version")
    assert [one.staleness_mean_rounds for one in tracker.rounds] == by_version.staleness_rounds.mean().tolist()
    assert [one.staleness_max_rounds for one in tracker.rounds] == by_version.staleness_rounds.max().tolist()
    assert len(tracker.evaluations) == len(run.evaluations) > 1
    names = run.evaluations.columns[3:].tolist()
    for one, row in zip(tracker.evaluations, run.evaluations.to_dict("records"), strict=True):
        assert {"version": one.version, "elapsed_s": one.elapsed_s, "split": one.split} == {
            name: row[name] for name in ("version", "elapsed_s", "split")
        }
        assert dict(one.metrics) == {name: row[name] for name in names}


def test_a_simulation_gives_its_tables(tmp_path: Path) -> None:
    tracker = Recording()
    keys: dict[str, Any] = {"clients": 4, "rounds": 6, "evaluate_every": 2, "policy": "fedbuff", "model": "logreg"}
    run = unstale.simulate(**keys, directory=tmp_path / "run", progress=False, trackers=tracker)
    check_equal(tracker, run)
    ((start,), (finish,)) = tracker.runs, tracker.finishes
    assert (start.name, start.run_id, start.main.name) == ("run", None, "accuracy")
    assert start.settings["policy.name"] == "fedbuff" and "run.directory" not in start.settings
    assert finish == Finish(version=6, elapsed_s=run.evaluations.elapsed_s.iloc[-1], reason="finished")
    assert run.digest == unstale.simulate(**keys, progress=False).digest


@pytest.mark.parametrize("every", [1, 1000])
def test_metrics_of_clients_and_of_training_are_those_of_the_tables(every: int) -> None:
    tracker = Recording()
    keys = IN_ROUNDS | {"rounds": 5, "evaluate_every": 1, "evaluate_clients_every": every}
    run = unstale.simulate(line.app, **keys, progress=False, trackers=[tracker])
    split = "clients" if every == 1 else "training"
    assert [one.split for one in tracker.evaluations if one.split == split] == run.evaluations.split.tolist()
    shown = [one.metrics for one in tracker.evaluations if one.split == split]
    before = [one for one in tracker.evaluations if one.split != split]
    assert [one.numbers for one in before] == [{}] * len(before)  # the rounds have those of the training
    assert [dict(one) for one in shown] == run.evaluations[run.evaluations.columns[3:]].to_dict("records")
    # Clients c = 0, 1, 2 have c + 1 examples and the loss c + 1: (1 + 4 + 9) / 6.
    assert [one.training["loss"] for one in tracker.rounds] == pytest.approx([14 / 6] * 5)


def test_numbers_have_the_names_of_their_groups() -> None:
    tracker = Recording()
    unstale.simulate(line.central, **IN_ROUNDS, evaluate_every=4, progress=False, trackers=[tracker])
    first, last = tracker.rounds[0], tracker.evaluations[-1]
    assert first.numbers["round/updates"] == 3 and first.numbers["training/loss"] == pytest.approx(14 / 6)
    assert first.numbers["round/staleness_mean_rounds"] == 0
    assert last.numbers == pytest.approx(
        {"evaluation/elapsed_s": last.elapsed_s, "central/value": -4 * line.STEP, "central/loss": 1.0}
    )


def test_a_tracker_that_fails_changes_no_bit_and_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Recording(fails=float("inf"))
    run = unstale.simulate(line.central, **IN_ROUNDS, progress=False, trackers=[tracker])
    assert run.digest == unstale.simulate(line.central, **IN_ROUNDS, progress=False).digest
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert re.fullmatch(
        r"tracker '<Recording.*>' failed \(RuntimeError: no start\); the run continues, and failed calls are repeated",
        warning.getMessage(),
    )
    assert tracker.runs == tracker.points == tracker.finishes == []


def test_after_failures_each_point_is_given_once_and_in_order(tmp_path: Path) -> None:
    keys = IN_ROUNDS | {"evaluate_every": 1}
    unstale.simulate(line.central, **keys, progress=False, directory=tmp_path / "run")
    failing, other = Recording(fails=1), Recording()
    feed = tracking.Feed(failing, tmp_path / "run", "run")
    for _ in range(1 + 4 + 5 + 1 + 1):  # on_start, rounds, evaluations, flush, on_finish
        with pytest.raises(RuntimeError):
            feed.give(is_last=True)
    feed.give(is_last=True)
    tracking.Feed(other, tmp_path / "run", "run").give(is_last=True)
    assert failing.points == other.points and len(other.points) == 4 + 5
    assert [point.version for point in other.points] == [0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert failing.finishes == other.finishes and len(other.finishes) == 1


def test_reading_in_parts_gives_the_same_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = IN_ROUNDS | {"rounds": 7, "evaluate_every": 2, "evaluate_clients_every": 1}
    unstale.simulate(line.app, **keys, progress=False, directory=tmp_path / "run")
    at_once = reader.JournalReader(tmp_path / "run", "run").read(is_last=True)
    monkeypatch.setattr(reader, "ROUNDS_MAX", 2)
    parts = reader.JournalReader(tmp_path / "run", "run")
    points = [point for _ in range(6) for point in parts.read(is_last=True)]
    assert points == at_once and len([point for point in points if isinstance(point, Round)]) == 7


def test_a_journal_that_is_closed_while_it_is_opened_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unstale.simulate(line.central, **IN_ROUNDS, progress=False, directory=tmp_path / "run")
    points = reader.JournalReader(tmp_path / "run", "run")
    databases = iter([unstale.UserError("cannot be opened"), Database(tmp_path / "run/run.db", read_only=True)])

    def opened(path: Path, *, read_only: bool) -> Database:
        database = next(databases)
        if isinstance(database, Exception):
            raise database
        return database

    monkeypatch.setattr(reader, "Database", opened)
    assert len([point for point in points.read(is_last=True) if isinstance(point, Round)]) == 4


def test_an_evaluation_waits_for_answers_that_may_have_its_time(tmp_path: Path) -> None:
    database = Database(tmp_path / "run.db")
    history = History(MainMetric("mae", higher_is_better=False), every=1)

    def read(*, is_complete: bool) -> list[tuple[int, dict[str, float]]]:
        found = history.read(database, is_complete=is_complete)
        return [(row.version, dict(shown.metrics)) for row, shown in found]

    def answer(seq: int, at_s: float, value: float) -> Batch:
        update = accepted(seq, seq, client_id=seq)._replace(at_s=at_s)
        return Batch(updates=[update], own_evaluations=[OwnEvaluationRow(seq, seq, 1, {"mae": value}, 10)])

    database.store(answer(1, 1.0, 8.0), sync=False)
    database.store(Batch(evaluations=[EvaluationRow(1, 1.0, {}, (), 0.0)]), sync=False)
    assert read(is_complete=False) == [] and history.waits_at == 1
    database.store(answer(2, 1.0, 4.0), sync=False)
    database.store(answer(3, 2.0, 100.0), sync=False)
    assert read(is_complete=False) == [(1, {"mae": 6.0})] and history.waits_at is None
    database.store(Batch(evaluations=[EvaluationRow(2, 2.0, {}, (), 0.0)]), sync=False)
    assert read(is_complete=True) == [(2, {"mae": pytest.approx(112 / 3)})]
    database.close()


@pytest.mark.network
def test_a_server_counts_the_failures_of_a_tracker(tmp_path: Path) -> None:
    tracker = Recording(fails=float("inf"))
    name = unstale.plugins.name_of("tracker", tracker)
    run = {"directory": str(tmp_path / "run"), "durability": "normal"}
    settings = small(run=run, trackers=[name])
    with RunningServer(settings) as server:
        until(lambda: sample(server.http, "unstale_tracker_failures_total", tracker=name) > 1)
        assert server.is_alive


@pytest.mark.network
def test_a_server_that_is_stopped_says_so(tmp_path: Path) -> None:
    tracker = Recording()
    server = unstale.serve(
        line.central,
        **{key: value for key, value in IN_ROUNDS.items() if key != "scenario"},
        server={"address": "tcp://127.0.0.1:0", "http_address": None, "linger_s": 0.1},
        directory=tmp_path / "run",
        background=True,
        trackers=[tracker],
    )
    server.stop()
    server.wait()
    (start,) = tracker.runs
    with sqlite3.connect(f"file:{tmp_path / 'run/run.db'}?mode=ro", uri=True) as journal:
        ((run_id,),) = journal.execute("SELECT value FROM meta WHERE key = 'run_id'")
    assert start.run_id == run_id
    assert tracker.finishes == [Finish(version=0, elapsed_s=0.0, reason="shutdown")]


@pytest.mark.network
def test_a_resumed_run_is_given_again_and_a_rollback_is_another_run(tmp_path: Path) -> None:
    tracker = Recording()

    def served() -> unstale.Run:
        keys = {name: value for name, value in IN_ROUNDS.items() if name != "scenario"}
        local = {"address": "tcp://127.0.0.1:0", "http_address": None, "linger_s": 0.1}
        folder = tmp_path / "run"
        with unstale.serve(
            line.central, **keys, server=local, directory=folder, background=True, trackers=[tracker]
        ) as server:
            clients = [threading.Thread(target=descend, args=(server.address, client_id)) for client_id in range(3)]
            for client in clients:
                client.start()
            run = server.wait()
            for client in clients:
                client.join(PATIENCE_S)
        return run

    first, again = served(), served()
    assert first.digest == again.digest
    points = tracker.points[: len(tracker.points) // 2]
    assert [point.version for point in points] == [0, 1, 2, 3, 4, 4] and tracker.points == points * 2
    assert main.run(["rollback", str(tmp_path / "run"), "--to", "2"]) == 0
    served()
    one, other, rolled_back = tracker.runs
    assert one == other and rolled_back.run_id not in (None, one.run_id)
    rounds = tracker.rounds[-4:]
    assert rounds[:2] == tracker.rounds[:2] and [one.version for one in rounds] == [1, 2, 3, 4]
    assert [finish.reason for finish in tracker.finishes] == ["finished"] * 3


def test_a_tracker_that_hangs_does_not_hold_up_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "END_S", 0.01)
    released = threading.Event()

    class Hanging(Tracker):
        def on_round(self, applied: Round) -> None:
            released.wait()

    run = unstale.simulate(line.central, **IN_ROUNDS, progress=False, trackers=[Hanging()])
    released.set()
    assert len(run.rounds) == 4
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.startswith("tracker '<Hanging>' has taken nothing for 0.01 s after the run")


def test_the_key_takes_names_and_mappings() -> None:
    tensorboard = {"name": "tensorboard", "settings": {}}
    mlflow = {"name": "mlflow", "settings": {"experiment": "digits"}}
    for value in (["tensorboard", mlflow], [tensorboard, mlflow]):
        assert load(arguments={"trackers": value}).trackers == [tensorboard, mlflow]
    for text in ("mlflow, tensorboard", "[mlflow, tensorboard]"):
        names = [one["name"] for one in load(variables={"UNSTALE_TRACKERS": text}).trackers]
        assert names == ["mlflow", "tensorboard"]
    assert load(variables={"UNSTALE_TRACKERS": "[]"}).trackers == []


class Counting(Tracker):
    """Counts its rounds, all together and by its own setting."""

    rounds = 0

    def __init__(self, step: int = 1) -> None:
        self._step = step

    def on_round(self, applied: Round) -> None:
        type(self).rounds += self._step


@pytest.mark.parametrize(
    ("chosen", "rounds"),
    [
        (Counting, 4),
        ([Counting], 4),
        ({"name": Counting, "settings": {"step": 10}}, 40),
        ((Counting(), Counting(step=2)), 12),
        (None, 0),
        ([], 0),
    ],
)
def test_python_takes_classes_objects_and_mappings(
    chosen: object, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "rounds", 0)
    unstale.simulate(line.central, **IN_ROUNDS, progress=False, trackers=chosen)
    assert Counting.rounds == rounds


@pytest.mark.parametrize("chosen", [3, [3], [{"settings": {}}], [{"name": 3}], [object]])
def test_python_refuses_other_objects_in_one_sentence(chosen: object) -> None:
    with pytest.raises(unstale.UserError, match="tracker"):
        unstale.simulate(line.central, **IN_ROUNDS, progress=False, trackers=chosen)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main.run([*map(str, arguments)]) == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1, printed
    return printed


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("mlflo", "unknown tracker 'mlflo'; did you mean 'mlflow'?"),
        ("{name: tensorboard, settings: {floder: a}}", "unknown setting 'floder' of tracker 'tensorboard'"),
        ("{name: tensorboard, settings: {folder: [1]}}", "setting 'folder' of tracker 'tensorboard' is [1]"),
        ("{nmae: tensorboard}", "trackers is {'nmae': 'tensorboard'}, expected a list of names"),
        ("tensorboard, tensorboard", "at most 16 and each once"),
        ("3", "trackers is 3, expected a list of names"),
    ],
)
def test_mistakes_are_one_sentence_before_the_run(
    value: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", type(sys)("stand-in"))
    assert expected in refusal(capsys, "simulate", "--rounds", 1, "--clients", 2, "--trackers", value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("name", "module"), [("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")]
)
def test_a_missing_library_is_named_with_its_extra(
    name: str, module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert f"pip install 'unstale[{name}]'" in refusal(capsys, "simulate", "--rounds", 1, "--trackers", name)


def test_without_a_journal_trackers_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ("--trackers", "support.trackers:Lines", "--set", "run.durability=off")
    assert "trackers are set" in refusal(capsys, "simulate", *arguments)


def test_a_command_and_an_export_give_the_same_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tracker = "{name: support.trackers:Lines, settings: {file: live.txt}}"
    keys = ("--clients", 4, "--rounds", 5, "--model", "logreg", "--evaluate-every", 2)
    assert main.run([*map(str, ("simulate", *keys, "--run", "run", "--trackers", tracker))]) == 0
    live = Path("live.txt").read_text()
    assert len(live.splitlines()) == 5 + 4  # versions 0, 2, 4 and 5 are evaluated
    Path("live.txt").unlink()
    capsys.readouterr()
    assert main.run(["export", "run", "--to", "support.trackers:Lines"]) == 0
    assert capsys.readouterr().out == "support.trackers:Lines: 9 rounds and evaluations\n"
    assert Path("live.txt").read_text() == live
    assert main.run([*map(str, ("simulate", *keys, "--trackers", tracker))]) == 0  # not recorded
    assert Path("live.txt").read_text() == live + live


def test_an_export_to_a_tracker_that_fails_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unstale.simulate(line.central, **IN_ROUNDS, progress=False, directory=tmp_path / "run")
    refused = refusal(capsys, "export", tmp_path / "run", "--to", "support.trackers:Failing")
    assert "tracker 'support.trackers:Failing' failed (RuntimeError: no)" in refused
