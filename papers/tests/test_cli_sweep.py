"""`unstale sweep` in subprocesses: its output, report and errors."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import hill
from unstale.cli import main
from unstale.config.settings import Settings
from unstale_papers.preset import Cell, Preset
from unstale_papers.presets.registry import PRESETS
from unstale_papers.runners import MEASUREMENTS, measure
from unstale_papers.table_metrics import measure as measure_called

PATIENCE_S = 300.0
RATE = "training.learning_rate"
PROGRAM = """
import sys
from pathlib import Path
from helpers import hill
from test_cli_sweep import small
from unstale.cli import main
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.presets.registry import PRESETS

MEASUREMENTS[hill.NAME] = hill.MODULE
PRESETS["hilly"] = lambda: hill.preset(Path.cwd())
PRESETS["small"] = small
sys.exit(main.run(["sweep", *sys.argv[1:]]))
"""


def small() -> Preset:
    """Two methods on digits, computed in a second."""
    return Preset(
        name="small", paper="FedHist", item="Table 0", title="digits", measures=("final accuracy",),
        rows=("method",), columns=(), sources=(),
        cells=tuple(
            Cell(
                labels={"method": method},
                settings=Settings(
                    clients=6, rounds=8, evaluate_every=4, model={"name": "logreg"}, partition={"name": "iid"},
                    trigger={"name": "k-async", "k": 2}, policy={"name": method},
                ),
            )
            for method in ("fedavg", "dynsgd")
        ),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _with_the_hill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MEASUREMENTS, hill.NAME, hill.MODULE)
    monkeypatch.setitem(PRESETS, "hilly", lambda: hill.preset(tmp_path))
    monkeypatch.chdir(tmp_path)


def swept(folder: Path, *arguments: str, preset: str = "hilly", code: int = 0) -> str:
    """Run `unstale sweep PRESET` in the folder and return its output."""
    here = os.pathsep.join([str(Path(__file__).parent), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, preset, "--device", "cpu", "--processes", "1", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": here, "COLUMNS": "120"},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def found(text: str) -> dict[str, Any]:
    """Parse the last line of the --json output."""
    parsed: dict[str, Any] = json.loads(text.splitlines()[-1])
    assert parsed["event"] == "found"
    return parsed


def test_a_sweep_prints_its_candidates_the_best_and_the_confidence(tmp_path: Path) -> None:
    out = swept(tmp_path, "--over", f"{RATE}=0.001,0.01,0.1", "--cells", "method=one", "--seeds", "2")
    lines = out.splitlines()
    assert lines[0] == f"3 candidates, every combination of {RATE}: 0.001, 0.01, 0.1"
    assert lines[1] == (
        "Measured on the last 10 % of each class of the training set, or of each group where the test set is of the "
        "same groups, which clients do not get (data.validation 0.1). The test set is not looked at."
    )
    assert lines[2] == "hilly: 3 cells with 2 seeds are 6 jobs, full size, on cpu by 1 process"
    # 0.01 has 0.80 and 0.81, the others 0.1 less in each seed.
    assert (
        f"method=one: best is {RATE} 0.01 with 80.50 ± 0.71 %. The next one, {RATE} 0.001, with 70.50 ± 0.71 %, is "
        "behind by more than the seeds' spread (paired t-test over 2 seeds, p = " in out
    )
    assert sorted(hill.calls(tmp_path)) == [f"one {rate} {seed} 0.1" for rate in (0.001, 0.01, 0.1) for seed in (0, 1)]
    swept(tmp_path, "--over", f"{RATE}=0.001,0.01,0.1,0.03", "--cells", "method=one", "--seeds", "2")
    assert len(hill.calls(tmp_path)) == 8, "a completed job is not computed again"


def test_cells_searched_together_share_a_candidate_in_json(tmp_path: Path) -> None:
    over = ("--over", f"{RATE}=0.001,0.01,0.1", "--json")
    apart = found(swept(tmp_path, *over))
    assert [one["best"] for one in apart["groups"]] == [[{RATE: 0.01}], [{RATE: 0.1}]]
    assert (apart["preset"], apart["measure"], apart["toward"], apart["validation"]) == (
        "hilly", "final accuracy", None, 0.1,
    )  # fmt: skip
    (both,) = found(swept(tmp_path, *over, "--together"))["groups"]
    # 0.01: 0.8 and 0.7. 0.1: 0.7 and 0.8. 0.001: 0.7 and 0.6.
    assert both["best"] == [{RATE: 0.01}, {RATE: 0.1}]
    assert "2 cells together: best is" in both["says"]
    assert [one["mean"] for one in both["candidates"]] == pytest.approx([0.75, 0.75, 0.65])


def test_the_nearest_candidate_to_a_number_is_best(tmp_path: Path) -> None:
    (one,) = found(
        swept(tmp_path, "--over", f"{RATE}=0.001,0.01,0.1,1", "--cells", "method=one", "--toward", "61", "--json")
    )["groups"]  # fmt: skip
    assert one["best"] == [{RATE: 1.0}]
    assert one["candidates"][0]["off"] == pytest.approx(0.01)
    assert f"{RATE} 1.0 with 60.00 %, 1.00 points off the target" in one["says"]
    assert f"It has the greatest {RATE} of all that were tried, so a better one may lie beyond." in one["says"]


def test_more_draws_continue_a_smaller_sweep(tmp_path: Path) -> None:
    over = ("--over", f"{RATE}=0.001..0.1", "--cells", "method=one")
    output = swept(tmp_path, *over, "--random", "3")
    assert output.startswith(
        f"3 candidates, what is different in 3 draws with seed 0 of {RATE}: from 0.001 to 0.1, every factor as likely "
        "as another\n"
    )
    first = hill.calls(tmp_path)
    swept(tmp_path, *over, "--random", "5")
    assert hill.calls(tmp_path)[:3] == first
    assert len(set(hill.calls(tmp_path))) == len(hill.calls(tmp_path)) == 5


def test_a_sweep_writes_a_report_to_check_in(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=[0])
    out = swept(
        tmp_path, "--over", f"{RATE}=0.01,2", "--cells", "method=one", "--data", "digits=mine.npz", "--scale-rounds",
        "0.5", "--out", "found.md", "--store", "kept", code=1,
    )  # fmt: skip
    assert "failed: ZeroDivisionError: as instructed" in out
    text = (tmp_path / "found.md").read_text().replace("\\", "")
    assert text.startswith(f"# hilly: a search over {RATE}\n\nFedHist, Table 0: two hills\n")
    for sentence in (
        f"- The same again: unstale sweep hilly --over {RATE}=0.01,2 --cells method=one --scale-rounds 0.5 --data "
        "digits=mine.npz --device cpu\n",
        "- Measured on the last 10 % of each class of the training set, or of each group where the test set is of the "
        "same groups, which clients do not get (data.validation 0.1). The test set is not looked at.\n",
        f"- Tried: 2 candidates, every combination of {RATE}: 0.01, 2.0.\n",
        "- Best is the highest.\n",
        "- Not full size: rounds x 0.5. The keys above have their values at full size.\n",
        "- Data: digits. digits is read from mine.npz (SHA-256 ",
        "- Seeds: 0. 1 run took 0:00:02 of computing.\n",
        f"method=one: best is {RATE} 0.01 with 80.00 %. No other candidate has a number. It has the least {RATE} of "
        "all that were tried, so a better one may lie beyond.\n",
        "| 0.01 | 80.00 | 1 of 1 | best |\n| 2.0 | – | 0 of 1 | 1 failed |\n",
        f"These are the cells as the preset has them: a candidate has other values at {RATE}.",
        "| rounds | 35 | 70 | ours, [P] |\n",
        "| data.validation | 0.1 | – | – |\n",
    ):
        assert sentence in text
    assert str(tmp_path / "mine.npz") not in text, "the path means nothing on other machines"


def refusal(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    assert main.run(["sweep", *arguments]) == 2
    return capsys.readouterr().err.removeprefix("unstale: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["hilly"], "missing option '--over'; see unstale sweep --help"),
        (["hily", "--over", f"{RATE}=0.1,0.2"], "unknown preset 'hily'; did you mean 'hilly'?"),
        (["hilly", "--over", "training.rate=0.1,0.2"],
         "--over: unknown key 'rate' in training; expected one of "),
        (["hilly", "--over", f"{RATE}=0.1,0.2", "--cells", "method=two"],
         "--cells has method=two; expected one of one, other"),
        (["hilly", "--over", "policy.settings.alpha=0.1,0.2"],
         "method=one policy.settings.alpha=0.1: unknown setting 'alpha' of policy 'fedavg'; expected one of weighting"),
        (["hilly", "--over", "policy.settings.weighting=uniform,some"],
         "method=one policy.settings.weighting=some: setting 'weighting' of policy 'fedavg' is 'some', expected one of "
         "uniform, samples"),
        (["hilly", "--over", "training.mu=0.1,0.2"],
         "method=one training.mu=0.1: training 'sgd' takes no training.mu, got 0.1; leave it out"),
        (["hilly", "--over", "run.checkpoint_every=10,20"], "--over: run.checkpoint_every changes nothing of what "),
        (["hilly", "--over", f"{RATE}=0.1,0.2", "--validation", "1"],
         "--validation: data.validation is '1', expected a number > 0 and < 1 or null"),
        (["hilly", "--over", f"{RATE}=0.1,0.2", "--toward", "9000", "--measure", "rounds to 40 %"],
         "--toward comes to 9000 rounds for method=one, whose runs have 70; run more of them (--scale-rounds), or name "
         "another number"),
        (["hilly", "--over", f"{RATE}=0.1,0.2", "--out", "no/where.md"],
         "--out is no/where.md, expected a file in a folder that exists; name another"),
        (["gi-t3", "--over", "policy.settings.x=1,2", "--cells", "method=GI", "--data", "mnist=mine.npz"],
         "staleness=10 method=GI policy.settings.x=1: unknown setting 'x' of policy 'direct'"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_error_line_before_the_run_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "mine.npz").touch()
    assert refusal(capsys, [*arguments, "--device", "cpu"]).startswith(sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.npz"]


@pytest.mark.slow
def test_a_real_search_reports_the_results_of_its_runs(tmp_path: Path) -> None:
    labels = np.arange(300) % 3
    images = (40 * labels[:, None, None] + np.arange(300 * 64).reshape(300, 8, 8) * 7919 % 100).astype(np.uint8)
    np.savez(
        tmp_path / "mine.npz", x_train=images[:240], y_train=labels[:240], x_test=images[240:], y_test=labels[240:]
    )  # fmt: skip
    parsed = found(
        swept(
            tmp_path, "--over", f"{RATE}=0.001,0.1", "--over", "training.steps=1,4", "--data", "digits=mine.npz",
            "--validation", "0.2", "--json", preset="small",
        )
    )  # fmt: skip
    assert [one["cells"] for one in parsed["groups"]] == [["method=fedavg"], ["method=dynsgd"]]
    for group, cell in zip(parsed["groups"], small().cells, strict=True):
        means = [one["mean"] for one in group["candidates"]]
        assert means == sorted(means, reverse=True)
        assert len(means) == 4
        best = group["candidates"][0]
        changed = {"learning_rate": best["candidate"][RATE], "steps": best["candidate"]["training.steps"]}
        settings = cell.settings.model_dump() | {
            "training": {**cell.settings.training.model_dump(), **changed},
            "data": {"name": "npz", "path": str(tmp_path / "mine.npz"), "validation": 0.2},
            "run": {"durability": "off"}, "simulation": {"backend": "loop"},
        }  # fmt: skip
        record = measure("run", Settings(**settings), {}, on_progress=lambda _: None)
        assert measure_called("final accuracy").of(record, None) == best["mean"]
