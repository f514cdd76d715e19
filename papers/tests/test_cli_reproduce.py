"""`unstale reproduce`: list, show, and runs in subprocesses that are stopped and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import stand_in
from support.running import until
from unstale.cli import main
from unstale_papers.jobs import Place, jobs
from unstale_papers.presets.registry import PRESETS
from unstale_papers.record import Record
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.scale import Scale
from unstale_papers.store import Result, Store

PATIENCE_S = 300.0
WRITTEN = "written: unstale-reproduction/full/tiny.html, and beside them Markdown, CSV and pictures"
PROGRAM = """
import sys
from pathlib import Path
from helpers import stand_in
from unstale.cli import main
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.presets.registry import PRESETS

folder, does, *arguments = sys.argv[1:]
MEASUREMENTS[stand_in.NAME] = stand_in.MODULE
PRESETS["tiny"] = lambda: stand_in.preset(Path(folder), **dict(word.split("=") for word in does.split()))
sys.exit(main.run(arguments))
"""


@pytest.fixture(autouse=True)
def _with_the_tiny_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MEASUREMENTS, stand_in.NAME, stand_in.MODULE)
    monkeypatch.setitem(PRESETS, "tiny", lambda: stand_in.preset(tmp_path))
    monkeypatch.chdir(tmp_path)


def started(folder: Path, does: str, *arguments: str, preset: str = "tiny") -> "subprocess.Popen[str]":
    """Start `unstale reproduce run PRESET` in the folder. does: options of the methods of `tiny`, as `beta=waits`."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), does, "reproduce", "run", preset, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
    )


def ran(folder: Path, does: str, *arguments: str, preset: str = "tiny", code: int = 0) -> tuple[str, str]:
    """Return its stdout and stderr."""
    with started(folder, does, *arguments, preset=preset) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == code, err
    return out, err


def facts(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(["reproduce", *arguments]) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    assert main.run(["reproduce", "run", *arguments]) == 2
    return capsys.readouterr().err.removeprefix("unstale: ").rstrip("\n")


# --- export, import ---


def test_an_imported_result_is_not_computed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(tmp_path, "", "--seeds", "1", "--device", "cpu")
    assert printed(capsys, "export", "results.jsonl", "tiny") == "written: results.jsonl, 3 results\n"
    assert printed(capsys, "export", "none.jsonl", "fh-t2") == "written: none.jsonl, 0 results\n"
    taken = printed(capsys, "import", "results.jsonl", "none.jsonl", "--store", "other")
    assert taken == "taken into other: 3 results; it had 0 more of these\n"
    out, _ = ran(tmp_path, "", "--seeds", "1", "--device", "cpu", "--store", "other")
    assert "of 3 jobs 0 done, 3 done before; kept in other" in out
    assert len(stand_in.calls(tmp_path)) == 3
    here, there = (tmp_path / store / "full/tiny.csv" for store in ("unstale-reproduction", "other"))
    assert there.read_bytes() == here.read_bytes()
    parsed = json.loads(printed(capsys, "import", "results.jsonl", "--store", "other", "--json"))
    assert parsed == {"event": "imported", "new": 0, "had": 3}
    parsed = json.loads(printed(capsys, "export", "results.jsonl", "--json"))
    assert parsed == {"event": "exported", "results": 3, "file": "results.jsonl"}


def test_an_export_without_a_store_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.run(["reproduce", "export", "results.jsonl"]) == 2
    assert capsys.readouterr().err.startswith("unstale: there is no store in unstale-reproduction, expected ")
    assert list(tmp_path.glob("*.jsonl")) == []


# --- run ---


def test_a_run_prints_its_progress_and_results(tmp_path: Path) -> None:
    out, err = ran(tmp_path, "", "--seeds", "2", "--processes", "1", "--device", "cpu")
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "tiny: 3 cells with 2 seeds are 6 jobs, full size, on cpu by 1 process"
    assert lines[1].startswith("[1/6] tiny: method=alpha, seed 0: 0.0 s, accuracy 0.0000")
    assert lines[6].startswith("[6/6] tiny: method=gamma, seed 1: 0.0 s, accuracy 2.1000")
    assert lines[7:] == ["of 6 jobs 6 done; kept in unstale-reproduction", WRITTEN]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calls", "unstale-reproduction"]
    again = ran(tmp_path, "", "--seeds", "2", "--device", "cpu")[0].splitlines()
    assert again[1:] == ["of 6 jobs 0 done, 6 done before; kept in unstale-reproduction", WRITTEN]
    assert len(stand_in.calls(tmp_path)) == 6


def test_limits_of_a_smaller_scale_are_printed_before_the_run(tmp_path: Path) -> None:
    lines = ran(tmp_path, "", "--seeds", "1", "--device", "cpu", "--scale-clients", "0.1")[0].splitlines()
    assert lines[0].startswith("tiny: 3 cells with 1 seed are 3 jobs, clients x 0.1, ")
    assert lines[1].startswith("A round has 1 update here, 5 at full size: ")
    assert lines[2].startswith("[1/3] ")


def test_a_page_shows_all_stored_results_after_a_partial_run(tmp_path: Path) -> None:
    where = tmp_path / "unstale-reproduction/full/tiny.md"
    for method, runs in (("alpha", "1 run"), ("beta", "2 runs")):
        ran(tmp_path, "", "--seeds", "1", "--cells", f"method={method}")
        page = where.read_text()
        assert re.search(rf"Python [0-9.]+: {runs}\n", page), page
    rows = [line for line in page.splitlines() if line.startswith(("| alpha", "| beta", "| gamma"))]
    assert rows == [
        "| alpha | 50.0 / no number / – |",
        "| beta | 50.0 / no number / – |",
        "| gamma | 50.0 / not run / – |",
    ]


def test_pages_are_written_without_computing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(tmp_path, "", "--seeds", "1", "--cells", "method=alpha", "--device", "cpu")
    where = tmp_path / "unstale-reproduction/full/tiny.md"
    before = where.read_text()
    where.unlink()
    assert printed(capsys, "run", "tiny", "--seeds", "1", "--device", "cpu", "--pages-only") == f"{WRITTEN}\n"
    assert where.read_text() == before
    assert len(stand_in.calls(tmp_path)) == 1
    assert refusal(capsys, ["tiny", "--pages-only", "--store", "none"]).startswith("there is no store in none, ")
    assert not (tmp_path / "none").exists()


def test_a_failed_job_exits_with_1_and_prints_its_traceback(tmp_path: Path) -> None:
    out, err = ran(tmp_path, "alpha=fails gamma=refuses", "--seeds", "1", "--device", "cpu", code=1)
    assert "tiny: method=alpha, seed 0: failed: ZeroDivisionError: as instructed" in out
    assert "tiny: method=gamma, seed 0: failed: the data is not there; get it" in out
    assert err.count("Traceback (most recent call last)") == 1
    assert out.splitlines()[-3:] == [
        "of 3 jobs 1 done, 2 failed; kept in unstale-reproduction",
        "repeat the command to compute the remaining jobs and to retry failed ones",
        WRITTEN,
    ]
    text = (tmp_path / "unstale-reproduction/full/tiny.md").read_text()
    assert "ZeroDivisionError: as instructed" in text


def test_json_output_describes_a_run(tmp_path: Path) -> None:
    out, _ = ran(
        tmp_path, "beta=fails", "--seeds", "1", "--cells", "method=alpha,beta", "--device", "cpu", "--json", code=1
    )
    parsed = facts(out)
    assert parsed[0] == {
        "event": "planned", "presets": ["tiny"], "jobs": 2, "seeds": 1, "scale": "full size", "lost": [], "data": {},
        "device": "cpu", "by": parsed[0]["by"],
    }  # fmt: skip
    by_event = {one["event"]: one for one in parsed}
    assert by_event["finished"]["cell"] == "method=alpha"
    assert by_event["finished"]["accuracy"] == 0.0
    assert by_event["failed"]["traceback"].endswith("ZeroDivisionError: as instructed\n")
    assert by_event["standing"]["counts"] == {"jobs": 2, "before": 0, "done": 1, "failed": 1}
    assert parsed[-1] == {"event": "written", "pages": ["unstale-reproduction/full/tiny.html"]}
    assert parsed[-2] == {
        "event": "ended", "jobs": 2, "before": 0, "done": 1, "failed": 1, "left": 0, "stopped": False,
    }  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_run_which_prints_how_to_resume(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "beta=waits", "--seeds", "1", "--processes", "2", "--device", "cpu") as process:
        until(lambda: {"beta 0", "gamma 0"} <= set(stand_in.calls(tmp_path)), "it computes")
        process.send_signal(number)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    stopped, how, written = out.splitlines()[-3:]
    assert written == WRITTEN
    assert stopped.startswith("stopped: of 3 jobs ")
    assert how == "repeat the command to compute the remaining jobs and to retry failed ones"


def test_a_killed_run_resumes_and_computes_no_cell_twice(tmp_path: Path) -> None:
    arguments = ["--seeds", "2", "--processes", "2", "--device", "cpu"]
    with started(tmp_path, "beta=waits", *arguments) as process:
        until(lambda: len(stand_in.calls(tmp_path)) >= 5, "both processes wait")
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
    began = stand_in.calls(tmp_path)
    (tmp_path / "go").touch()
    out, _ = ran(tmp_path, "beta=waits", *arguments)
    assert out.splitlines()[-2] == "of 6 jobs 3 done, 3 done before; kept in unstale-reproduction"
    again = stand_in.calls(tmp_path)[len(began) :]
    assert sorted(again) == ["beta 0", "beta 1", "gamma 1"]


@pytest.mark.slow
def test_a_cell_of_a_real_preset_runs_on_a_substituted_data_file(tmp_path: Path) -> None:
    counts = {"train": 900, "test": 50}
    images = {f"x_{part}": np.arange(n * 3072, dtype=np.uint8).reshape(n, 32, 32, 3) for part, n in counts.items()}
    np.savez(tmp_path / "mine.npz", **images, **{f"y_{part}": np.arange(n) % 10 for part, n in counts.items()})
    smaller = ["--scale-rounds", "0.0008", "--scale-clients", "0.1", "--cells", "beta=IID method=FedAvg"]
    parsed = facts(
        ran(
            tmp_path, "", *smaller, "--data", "cifar10=mine.npz", "--seeds", "1", "--device", "cpu", "--json",
            preset="fh-t2",
        )[0]
    )  # fmt: skip
    assert parsed[0]["data"]["cifar10"]["path"] == str(tmp_path / "mine.npz")
    assert parsed[0]["scale"] == "rounds x 0.0008, clients x 0.1"
    (lost,) = parsed[0]["lost"]
    assert lost.startswith("A round has 1 update here, 10 at full size: how a policy weighs ")
    (finished,) = (one for one in parsed if one["event"] == "finished")
    assert finished["cell"] == "beta=IID method=FedAvg"
    assert len(finished["model_digest"]) == 64
    assert 0 <= finished["accuracy"] <= 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tidy"], "unknown preset 'tidy'; did you mean 'tiny'?"),
        (["tiny", "--cells", "method=alhpa"], "--cells has method=alhpa; did you mean 'alpha'?"),
        (["tiny", "--cells", "method=x"], "--cells has method=x; expected one of alpha, beta, gamma"),
        (["tiny", "--cells", "beta=0.3"], "--cells has axis 'beta'; expected one of method"),
        (
            ["tiny", "--cells", "alpha"],
            "--cells has 'alpha', expected AXIS=VALUE,VALUE, such as method=FedHist,FedAvg; "
            "put a value with a space in quotes",
        ),
        (["tiny", "--cells", "method='a"], """--cells is "method='a", in which a quote does not end"""),
        (["tiny", "--scale", "2"], "--scale is 2, expected more than 0 and at most 1, such as 0.1"),
        (
            ["tiny", "--scale-data", "0"],
            "the scale of data is 0, expected more than 0 and at most 1",
        ),
        (
            ["tiny", "--scale-iterations", "2"],
            "the scale of iterations is 2, expected more than 0 and at most 1",
        ),
        (["tiny", "--data", "digits"], "--data is 'digits', expected NAME=FILE.npz, such as digits=mine.npz"),
        (
            ["tiny", "--data", "mnist=mine.npz"],
            "--data has 'mnist', which none of these presets is measured on; expected one of digits",
        ),
        (
            ["th-wkafl", "--data", "mnist=mine.npz"],
            "--data is 'mnist=mine.npz', but these presets are measured on no data set; leave it out",
        ),
        (["tiny", "--device", "tpu"], "device is 'tpu', expected auto, cpu, cuda, cuda:<number> or mps"),
        (
            ["tiny", "--ray", "auto", "--device", "cuda:1"],
            "--device is 'cuda:1' with --ray, expected cpu or cuda: Ray says which GPU a job has",
        ),
        (
            ["tiny", "--ray", "somewhere"],
            "--ray: compensator.ray is 'somewhere', expected auto, local, HOST:PORT or ray://HOST:PORT or null",
        ),
        (
            ["gi-t3", "--cache", "/nowhere"],
            "gi-t3 is measured on 'mnist', which is not in /nowhere; get it with: unstale data show mnist --cache "
            "/nowhere --download, or put a file in its place with --data mnist=FILE.npz",
        ),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_error_line_before_the_run_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    assert refusal(capsys, arguments) == sentence
    assert list(tmp_path.iterdir()) == []


def test_a_missing_data_file_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert refusal(capsys, ["tiny", "--data", "digits=mine.npz"]).startswith(
        f"--data: cannot read {tmp_path / 'mine.npz'}: no such file or directory"
    )


def test_a_data_file_may_be_given_that_the_chosen_cells_do_not_use(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.npz").write_bytes(b"not read before a job needs it")
    arguments = ["wk-t3", "--data", "emnist-mnist=mine.npz", "--cache", "/nowhere", "--cells", "data=CIFAR-10"]
    assert refusal(capsys, arguments).startswith("wk-t3 is measured on 'cifar10', which is not in /nowhere;")


def test_a_second_engine_in_the_same_store_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(Path("there")):
        assert refusal(capsys, ["tiny", "--store", "there"]).startswith("the store there is in use by another")


# --- list and show ---


def test_every_published_table_and_figure_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {one["name"]: one for one in json.loads(printed(capsys, "list", "--json"))}
    assert listed.keys() == PRESETS.keys()
    assert listed["fh-t1"]["cells"] == 144
    assert listed["fh-t2"] == {
        "name": "fh-t2", "paper": "FedHist", "item": "Table II, Fig. 3", "data": ["cifar10"], "cells": 24,
        "title": listed["fh-t2"]["title"], "seconds_of_a_seed": None,
    }  # fmt: skip
    assert "a seed takes" not in printed(capsys, "list"), "no duration is known"


def test_the_duration_of_a_seed_is_estimated_from_the_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    of = stand_in.preset(tmp_path)
    first, *_ = jobs(of, of.cells, seeds=[5], scale=Scale(), place=Place(cache="/data"))
    with Store.open(Path("unstale-reproduction")) as store:
        store.keep(first, Result(record=Record().to_json(), seconds=20.0, machine="", versions=""))
    listed = {one["name"]: one for one in json.loads(printed(capsys, "list", "--json"))}
    assert listed["tiny"]["seconds_of_a_seed"] == 60.0, "three cells"
    assert listed["fh-t2"]["seconds_of_a_seed"] is None
    output = printed(capsys, "list")
    assert "a seed takes" in output
    assert [line.split()[-2:] for line in output.splitlines() if line.split()[:1] == ["tiny"]] == [["60", "s"]]


def test_show_prints_own_choices_and_published_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    output = printed(capsys, "show", "tiny")
    assert "tiny: FedHist, Table 0: a table of nothing\n  3 cells on digits; measured: final accuracy\n" in output
    assert "  clients: 30 (ours, [P]). It is small.\n" in output
    assert "  rounds: 7 (paper)\n" in output
    assert output.count("  50.0") == 3
    parsed = json.loads(printed(capsys, "show", "tiny", "--json"))
    assert parsed["cells"][0]["labels"] == {"method": "alpha"}
    assert parsed["cells"][0]["settings"] == {"clients": 30, "rounds": 7, "policy.name": "fedavg"}
    assert parsed["cells"][0]["published"] == {"final accuracy": {"value": 0.5, "text": "50.0"}}
    assert [(one["key"], one["ours"]) for one in parsed["sources"]] == [("rounds", False), ("clients", True)]


def test_settings_are_shown_by_the_axis_that_determines_them(capsys: pytest.CaptureFixture[str]) -> None:
    output = printed(capsys, "show", "fh-t2")
    shared, by_method, by_beta, *_ = output.split("\nBy ")
    assert "clients 1000, rounds 5000" in shared
    assert "  FedProx: policy.name fedprox" in by_method
    assert "partition" not in by_method
    assert "  0.3: " in by_beta
    assert "partition.name iid" in by_beta.split("Where settings are from")[0]


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_can_be_shown(capsys: pytest.CaptureFixture[str], name: str) -> None:
    parsed = json.loads(printed(capsys, "show", name, "--json"))
    output = printed(capsys, "show", name)
    for cell in parsed["cells"]:
        for number in cell["published"].values():
            assert number["text"] in output
