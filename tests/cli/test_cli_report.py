"""Output of a run: missing numbers, slow and closed readers, a model that cannot be saved."""

import io
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
from safetensors import safe_open

from unstale.cli import main, printing
from unstale.metrics.fairness import Fairness
from unstale.metrics.progress import Outcome, Progress
from unstale.metrics.spread import Report, Spread, spreads
from unstale.training import model_file
from unstale.training.measured import MainMetric

PATIENCE_S = 30.0  # a wait that takes so long has failed; nothing is measured by it
SMALL = ["simulate", "--clients", "4", "--rounds", "3", "--model", "logreg", "--device", "cpu"]


def at_version(version: int) -> Progress:
    return Progress(
        version=version,
        rounds=9,
        metrics={"accuracy": 0.5, "loss": 1.0},
        staleness_mean=nan,
        updates_per_s=2.0,
        clients={"working": 4, "left": 0},
        elapsed_s=1.0,
    )


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5000"), (None, "-"), (nan, "-"), (inf, "-"), (0, "0.0000")])
def test_a_figure_that_is_no_number_is_a_dash(value: float | None, text: str) -> None:
    assert printing.figure(value, ".4f") == text


@pytest.mark.parametrize(
    ("metrics", "clients", "training", "said"),
    [
        ({"mae": 0.25, "r2": nan}, {}, {}, "mae 0.2500  r2 -"),
        ({}, {"mae": 0.5}, {"loss": 2.0}, "clients mae 0.5000"),
        ({}, {}, {"loss": 2.0}, "training loss 2.0000"),
        ({}, {}, {}, "not measured"),
    ],
)
def test_a_progress_line_shows_the_metrics_that_there_are_by_name(
    metrics: dict[str, float],
    clients: dict[str, float],
    training: dict[str, float],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def of(values: dict[str, float]) -> dict[str, Spread]:
        return spreads([Report(0, 1, values)], MainMetric("mae", higher_is_better=False))

    now = replace(at_version(4), metrics=metrics, client_metrics=of(clients), training_metrics=of(training))
    printing.progress(now, as_json=False)
    assert capsys.readouterr().out.startswith(f"version     4/9  {said}  staleness -")
    printing.progress(now, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["accuracy"], told["metrics"].keys()) == (None, metrics.keys())


def test_missing_numbers_are_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    printing.outcome(
        Outcome(
            reason="shutdown",
            versions=0,
            metrics={},
            seconds=0.0,
            updates={"accepted": 0},
            staleness_mean=nan,
            overflows=0,
            model_digest="d",
        ),
        as_json=False,
        clock="",
    )
    assert capsys.readouterr().out == (
        "shutdown at version 0 after 0.0 s: test accuracy -, mean staleness -, updates: 0 accepted\nmodel digest d\n"
    )


class Stuck(io.StringIO):
    """A standard output whose reader does not read before it is `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        assert self.released.wait(PATIENCE_S), "the printing thread waits for the reader"
        return super().write(text)


def test_progress_does_not_wait_for_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Stuck()
    monkeypatch.setattr(sys, "stdout", output)
    with printing.ProgressPrinter(as_json=False) as printer:
        for version in range(3):
            printer(at_version(version))
        output.released.set()
    assert [line.split()[1] for line in output.getvalue().splitlines()] == ["0/9", "1/9", "2/9"]


def test_unread_progress_does_not_accumulate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printing, "WAITING_MAX", 2)
    printer = printing.ProgressPrinter(as_json=False)
    for version in range(5):
        printer(at_version(version))
    with printer:
        pass
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["0/9", "1/9"]


def test_a_run_continues_after_its_output_is_closed(tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "unstale", *SMALL, "--evaluate-every", "1", "--save-model", str(model)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "unstale: standard output: broken pipe; nothing more is printed\n")
    assert model.exists()


def test_the_model_is_saved_after_the_outcome_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    assert main.run([*SMALL, "--save-model", str(path)]) == 0
    digest = capsys.readouterr().out.split()[-1]
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["digest"] == digest

    def no_room(path: Path, content: bytes, *, keep: bool) -> None:
        if keep:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_file, "_write", no_room)
    assert main.run([*SMALL, "--save-model", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out.split()[-1] == digest
    assert captured.err == (
        f"unstale: save_model '{path}' cannot be written (no space left on device); name a file where you may write\n"
    )


def test_a_simulation_that_diverges_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*SMALL, "--model", "digits_cnn", "--lr", "1e5"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("unstale: training diverges: ")


def test_a_server_whose_data_cannot_be_partitioned_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    # digits has 1442 examples to train on: 1442 // 8 = 180
    assert main.run(["server", "--clients", "181", "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "unstale: 1442 examples cannot give 181 clients 8 each; take at most 180 clients or lower min_examples\n"
    )


@pytest.mark.parametrize(("oldest", "said"), [(20, "version 20"), (10, "versions 10 to 20")])
def test_the_spread_over_clients_names_the_versions(oldest: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    fairness = Fairness(
        clients=2,
        oldest_version=oldest,
        newest_version=20,
        mean=0.75,
        std=0.25,
        variance=0.03125,
        worst_tenth=0.5,
        worst_tenth_std=nan,
        best_tenth=1.0,
        best_tenth_std=nan,
    )
    end = Outcome(
        reason="finished",
        versions=20,
        metrics={"accuracy": 0.5, "loss": 1.0},
        seconds=2.0,
        updates={"accepted": 9},
        staleness_mean=0.0,
        overflows=0,
        model_digest="d",
        fairness=fairness,
    )
    printing.outcome(end, as_json=False, clock="")
    assert (
        f"on the own test examples of 2 clients, {said}: accuracy 0.7500 ± 0.2500, worst tenth 0.5000, "
        "best tenth 1.0000\n"
    ) in capsys.readouterr().out
    printing.outcome(end, as_json=True, clock="")
    assert json.loads(capsys.readouterr().out)["fairness"]["best_tenth_std"] is None
    missed = "run.until, mae < 0.5, was not reached in 20 rounds; the last mae is 0.7500"
    printing.outcome(replace(end, missed=missed), as_json=False, clock="")
    assert capsys.readouterr().out.splitlines()[1] == missed
