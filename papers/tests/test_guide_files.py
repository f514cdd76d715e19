"""The files of the policy guide: rates, results of a store, and their agreement with evidence and page."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from unstale.errors import UserError
from unstale_papers.guide import __main__, document, experiment, tuning
from unstale_papers.guide.evidence import Evidence, Result, TaskMeasure, load
from unstale_papers.jobs import Job, Place, jobs
from unstale_papers.presets import guide
from unstale_papers.presets.guide import METHODS, Found, found_rates, preset
from unstale_papers.record import Record
from unstale_papers.scale import Scale
from unstale_papers.store import Result as StoredRun
from unstale_papers.store import Store

ROOT = Path(__file__).parents[2]
PLACE = Place(cache="/data")
RATE, MULTIPLIER, ALPHA = "training.learning_rate", "policy.server_multiplier", "policy.settings.alpha"


def test_written_rates_replace_those_of_their_task_alone(tmp_path: Path) -> None:
    found = Found(
        commands=("a command",),
        rates={"low": {"FedAvg": {RATE: 0.5}}},
        searched={"low": {"FedAvg": {RATE: (0.5, 1.0)}}},
    )
    experiment.write_rates({"text": found}, tmp_path / "rates.yaml")
    written = yaml.safe_load((tmp_path / "rates.yaml").read_text(encoding="utf-8"))
    assert written.pop("text") == {
        "commands": ["a command"],
        "rates": {"low": {"FedAvg": {RATE: 0.5}}},
        "searched": {"low": {"FedAvg": {RATE: [0.5, 1.0]}}},
    }
    before = yaml.safe_load(guide.RATES_FILE.read_text(encoding="utf-8"))
    before.pop("text", None)
    assert written == before


def test_the_command_writes_the_rates_of_all_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__main__, "RATES_FILE", tmp_path / "rates.yaml")
    monkeypatch.setattr(tuning, "tune", lambda task, _: Found(commands=(f"search {task}",)))
    __main__.tune(["digits", "text"], store=tmp_path)
    written = yaml.safe_load((tmp_path / "rates.yaml").read_text(encoding="utf-8"))
    assert [written[task]["commands"] for task in ("digits", "text")] == [["search digits"], ["search text"]]


def run(accuracy: float, *, diverged: bool = False) -> StoredRun:
    found = {"ended": "training diverged"} if diverged else {}
    record = Record(version_E=[0, 25], accuracy_E=[0.1, accuracy], found=found)
    return StoredRun(record=record.to_json(), seconds=1.0, machine="one core", versions="unstale 1")


def planned(task: str, seeds: int) -> list[Job]:
    own = preset(task)
    return jobs(own, own.cells, seeds=range(seeds), scale=Scale(), place=PLACE)


@pytest.fixture
def _with_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of digits: 0.5 for FedAvg at low staleness."""
    found = {"digits": Found(rates={"low": {"FedAvg": {RATE: 0.5, MULTIPLIER: 0.25}, "FedAsync": {ALPHA: 0.125}}})}
    monkeypatch.setattr(guide, "found_rates", lambda: found)
    monkeypatch.setattr(experiment, "found_rates", lambda: found)


@pytest.mark.usefixtures("_with_rates")
def test_the_evidence_has_the_final_number_of_every_run_and_its_rates(tmp_path: Path) -> None:
    every = planned("digits", 2)
    with Store.open(tmp_path) as store:
        for number, job in enumerate(every):
            store.keep(job, run(number / 1000, diverged=number == 3))
    found = experiment.collected(["digits"], tmp_path, PLACE, seeds=2)
    half = len(every) // 2  # the first seed of all cells stands before the second one
    assert [one.values for one in found.results[:5]] == [
        (0.0, half / 1000),
        (0.001, (half + 1) / 1000),
        (0.002, (half + 2) / 1000),
        (None, (half + 3) / 1000),
        (0.004, (half + 4) / 1000),
    ]
    assert [one.method for one in found.results[:2]] == ["FedAvg", "FedAsync"]
    assert found.results[0].condition == {"staleness": "low", "heterogeneity": "iid", "absence": "none"}
    assert found.results[0].rates == {RATE: 0.5, MULTIPLIER: 0.25}
    assert found.results[1].rates == {RATE: 0.3, ALPHA: 0.125}
    assert found.tasks["digits"] == TaskMeasure(
        title="digits", measure="final accuracy", better="higher", is_share=True
    )


@pytest.mark.usefixtures("_with_rates")
def test_missing_runs_are_an_error_with_their_number_and_the_command(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.keep(planned("digits", 1)[0], run(0.5))
    error = "71 of 72 runs of task 'digits' are missing; first: unstale reproduce run guide-digits --seeds 1"
    with pytest.raises(UserError, match=error):
        experiment.collected(["digits"], tmp_path, PLACE, seeds=1)


@pytest.mark.usefixtures("_with_rates")
def test_a_task_without_searched_rates_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'mnist' has no searched rates; first: python -m unstale_papers\.guide tune"):
        experiment.collected(["mnist"], tmp_path, PLACE, seeds=1)


def test_a_store_that_is_absent_and_an_unknown_task_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no store in"):
        experiment.collected(list(found_rates()), tmp_path / "none", PLACE, seeds=1)
    with pytest.raises(UserError, match="unknown task 'digit'; did you mean 'digits'"):
        experiment.check_tasks(["digit"])


def test_written_evidence_is_read_as_it_was(tmp_path: Path) -> None:
    written = synthetic()
    experiment.write_evidence(written, tmp_path / "evidence.json")
    assert load(tmp_path / "evidence.json") == written


def test_new_results_replace_those_of_their_task_and_keep_the_others() -> None:
    before = Evidence(tasks={"digits": ACCURACY, "text": ACCURACY}, results=(one("digits", 0.5), one("text", 0.25)))
    new = Evidence(tasks={"text": ACCURACY, "mnist": ACCURACY}, results=(one("text", 0.75), one("mnist", 1.0)))
    found = experiment.merged(before, new)
    assert list(found.tasks) == ["digits", "mnist", "text"]
    assert [(result.task, result.values) for result in found.results] == [
        ("digits", (0.5,)),
        ("mnist", (1.0,)),
        ("text", (0.75,)),
    ]


def test_results_with_another_number_of_seeds_are_refused() -> None:
    before = Evidence(tasks={"digits": ACCURACY}, results=(one("digits", 0.5),))
    new = Evidence(tasks={"text": ACCURACY}, results=(one("text", 0.5, 0.5),))
    with pytest.raises(UserError, match="write all tasks with results together: digits text"):
        experiment.merged(before, new)


ACCURACY = TaskMeasure(title="images", measure="final accuracy", better="higher", is_share=True)


def one(task: str, *values: float) -> Result:
    return Result(task=task, condition={"staleness": "low"}, method="FedAvg", values=values, rates={})


def synthetic(values: Mapping[str, float | None] | None = None) -> Evidence:
    """Digits with one seed in every condition. values: accuracy by method, 0.5 for the others."""
    given = values or {}
    return Evidence(
        tasks={"digits": TaskMeasure(title="digits", measure="final accuracy", better="higher", is_share=True)},
        results=tuple(
            Result(
                task="digits",
                condition={axis: label for axis, label in cell.labels.items() if axis != "method"},
                method=cell.labels["method"],
                values=(given.get(cell.labels["method"], 0.5),),
                rates={RATE: 0.5},
            )
            for cell in preset("digits").cells
        ),
    )


def searched(**low: tuple[float, ...]) -> dict[str, Found]:
    """Searches of the rates 0.1, 0.5 and 1 for digits. low: other rates by method, at low staleness."""
    grids = {level: {method: {RATE: (0.1, 0.5, 1.0)} for method in METHODS} for level in ("low", "high")}
    grids["low"] |= {method: {RATE: rates} for method, rates in low.items()}
    return {"digits": Found(commands=("unstale sweep guide-digits",), searched=grids)}


def test_the_page_has_a_decision_for_each_condition_and_every_value() -> None:
    text = document.text(synthetic({"REFL": 0.75, "WKAFL": None}), searched())
    assert "In 0 of 18 searches the best rate is at the edge" in text
    assert "**The figures are of 1 task: digits, with 1 seed.**" in text
    others = "FedAvg, FedAsync, FedBuff, DynSGD, FedHist, FedVARP and FedAR"
    assert text.count(f" | REFL | 1.0 | 0.00 | – | {others} |") == 10  # eight conditions, all together, and the task
    assert text.count("| REFL | 1.0 | 0.00 | – | – | 75.00 |") == 8
    assert text.count("| FedAvg | 2.0 | 25.00 | – | – | 50.00 |") == 8
    assert text.count("| WKAFL | 9.0 | – | – | – | diverged (1 of 1) |") == 8


def test_the_page_marks_rates_at_an_edge_of_what_was_searched() -> None:
    """0.5 is the highest rate that was searched for FedAR at low staleness, and for no other policy."""
    text = document.text(synthetic(), searched(FedAR=(0.1, 0.5)))
    assert "In 1 of 18 searches the best rate is at the edge" in text
    assert "| FedAR | 0.5* | 0.5 |" in text


def test_the_page_says_where_there_is_no_evidence() -> None:
    text = document.text(synthetic(dict.fromkeys(METHODS)), searched())
    assert text.count("| no evidence | – | – | – | – |") == 10
    assert text.count("no policy has a number from every run") == 8


def test_the_page_in_the_repository_is_that_of_the_evidence_in_the_package() -> None:
    assert (ROOT / "docs/policy-guide.md").read_text(encoding="utf-8") == document.text(load(), found_rates())


def test_the_evidence_in_the_package_has_the_rates_of_the_presets() -> None:
    for task in load().tasks:
        results = [one for one in load().results if one.task == task]
        for one, cell in zip(results, preset(task).cells, strict=True):
            assert {**one.condition, "method": one.method} == cell.labels
            assert one.rates == experiment.rates_of(cell)
