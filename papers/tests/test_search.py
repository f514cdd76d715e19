"""Candidates of a search, the data that it measures on, and the ranking of candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import hill
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale_papers.comparison import Comparison
from unstale_papers.jobs import Place, jobs
from unstale_papers.preset import Cell, Number, Preset
from unstale_papers.presets.registry import PRESETS
from unstale_papers.record import Record
from unstale_papers.runners import MEASUREMENTS, measure
from unstale_papers.scale import Scale
from unstale_papers.search import Candidate, Range, Search, candidates, check_different, named, overs, search
from unstale_papers.search_ranking import Outcome, Ranking, check_reach, goal

RATE, ALPHA = "training.learning_rate", "policy.settings.alpha"


@pytest.fixture(autouse=True)
def _with_the_hill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASUREMENTS, hill.NAME, hill.MODULE)


# --- candidates ---


def test_a_grid_is_every_combination_in_order() -> None:
    assert candidates(overs([f"{RATE}=0.003,0.01", f"{ALPHA}=0.1, 0.5"])) == [
        {RATE: 0.003, ALPHA: 0.1},
        {RATE: 0.003, ALPHA: 0.5},
        {RATE: 0.01, ALPHA: 0.1},
        {RATE: 0.01, ALPHA: 0.5},
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{RATE}=1,1e-3", [1.0, 0.001]),
        (f"{ALPHA}=1,1e-3,0.5", [1, 0.001, 0.5]),
        ("rounds=10,20", [10, 20]),
        ("policy.settings.normalise=true,false", [True, False]),
        ("policy.clip_norm=null,5", [None, 5.0]),
        ("policy.name=fedavg, dynsgd", ["fedavg", "dynsgd"]),
        ("policy.settings.some=[1,2],[3,4]", [[1, 2], [3, 4]]),
        ("policy.settings={alpha: 0.1, beta: 2},{alpha: 0.5}", [{"alpha": 0.1, "beta": 2}, {"alpha": 0.5}]),
        (f"{RATE}=0.1,0.10,0.2", [0.1, 0.2]),
    ],
)
def test_values_are_parsed_as_options(text: str, expected: list[Any]) -> None:
    (one,) = overs([text])
    assert list(one.values) == expected
    assert [type(value) for value in one.values] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("low", "high", "is_whole", "places"),
    [
        (0.001, 0.1, False, {0.0: 0.001, 0.25: 0.00316, 0.5: 0.01, 1.0: 0.1}),
        (1.0, 10.0, False, {0.5: 3.16}),
        (1.0, 9.9, False, {0.5: 5.45}),
        (-1.0, 1.0, False, {0.25: -0.5}),
        (0.0, 1.0, False, {0.123456: 0.123}),
        (0.123456, 0.2, False, {0.0: 0.123456}),
        (1, 3, True, {0.0: 1, 0.33: 1, 0.34: 2, 0.66: 2, 0.67: 3, 1.0: 3}),
        (100, 10_000, True, {0.0: 100, 0.5: 1000, 1.0: 10_000}),
    ],
)
def test_a_range_spanning_a_factor_of_ten_is_logarithmic_and_others_uniform(
    low: float, high: float, is_whole: bool, places: Mapping[float, float]
) -> None:
    drawn = Range(low=low, high=high, is_whole=is_whole)
    assert {place: drawn.at(place) for place in places} == places


RANGES = [f"{RATE}=0.001..0.1", "rounds=3..7", f"{ALPHA}=-2.0..2", "training.steps=1,5"]


def drawn(texts: Sequence[str], draws: int, seed: int = 0) -> list[Candidate]:
    return candidates(overs(texts), draws=draws, seed=seed)


def test_draws_lie_within_their_ranges_and_fill_them() -> None:
    every = drawn(RANGES, 300)
    rates = [one[RATE] for one in every]
    assert 0.001 <= min(rates) < 0.00125 < 0.08 < max(rates) <= 0.1
    assert 100 < sum(rate < 0.01 for rate in rates) < 200, "half of a logarithmic range"
    assert -2 <= min(one[ALPHA] for one in every) < -1.9 < 1.9 < max(one[ALPHA] for one in every) <= 2
    assert {one["rounds"] for one in every} == {3, 4, 5, 6, 7}
    assert {one["training.steps"] for one in every} == {1, 5}


def test_draws_depend_on_the_seed() -> None:
    assert drawn(RANGES, 20) == drawn(RANGES, 20)
    assert not [one for one in drawn(RANGES, 20, seed=1) if one in drawn(RANGES, 20)]


def test_more_draws_extend_fewer_draws() -> None:
    assert drawn(RANGES, 40)[:20] == drawn(RANGES, 20)


def test_the_draws_of_a_key_do_not_depend_on_other_keys_or_order() -> None:
    assert drawn(RANGES[::-1], 20) == drawn(RANGES, 20)
    assert [one[RATE] for one in drawn(RANGES[:1], 20)] == [one[RATE] for one in drawn(RANGES, 20)]


def test_duplicate_draws_are_tried_once() -> None:
    assert sorted(one["rounds"] for one in drawn(["rounds=1..3"], 50)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("texts", "draws", "sentence"),
    [
        (["rate"], None, "--over is 'rate', expected KEY=VALUE,VALUE or KEY=LOW..HIGH, such as "
         "training.learning_rate=0.003,0.01,0.03"),
        (["training.learing_rate=1,2"], None,
         "--over: unknown key 'learing_rate' in training; did you mean 'learning_rate'?"),
        (["training=1,2"], None,
         "--over: training is a group of keys, expected one of them, such as training.name"),
        ([f"{RATE}=0.1,-1"], None,
         "--over: training.learning_rate is '-1', expected a number > 0 and <= 1,000,000"),
        ([f"{RATE}=-1..1"], 5, "--over: training.learning_rate is '-1', expected a number > 0 and <= 1,000,000"),
        ([f"{RATE}=0.1..0.01"], 5, "--over: training.learning_rate is '0.1..0.01', expected the lower end first"),
        ([f"{ALPHA}=a..b"], 5,
         "--over: policy.settings.alpha is 'a..b', expected numbers at both ends, or a list of values"),
        ([f"{RATE}=0.1,,0.2"], None, "--over: training.learning_rate is '0.1,,0.2', expected VALUE,VALUE, such as "
         "training.learning_rate=0.003,0.01,0.03"),
        ([f"{RATE}=0.01..0.1"], None,
         "--over: training.learning_rate is a range, expected --random NUMBER with it, or a list of values"),
        ([f"{RATE}=0.1", f"{RATE}=0.2"], None,
         "--over has training.learning_rate twice, expected all of its values in one list"),
        ([f"{RATE}=0.1"], None, "--over comes to one candidate, expected two at least to choose from, such as "
         "training.learning_rate=0.003,0.01,0.03"),
        (["seed=1,2"], None, "--over has seed, which --seeds says; leave it out"),
        (["data.validation=0.1,0.2"], None, "--over has data.validation, which --validation says; leave it out"),
        ([f"rounds={','.join(map(str, range(1, 41)))}", f"clients={','.join(map(str, range(1, 41)))}"], None,
         "--over comes to 1,600 candidates, expected at most 1,000; leave values out, or have some of them drawn with "
         "--random NUMBER"),
    ],
)  # fmt: skip
def test_an_invalid_candidate_is_one_error_sentence(texts: list[str], draws: int | None, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        candidates(overs(texts), draws=draws)
    assert str(caught.value) == sentence


# --- cells ---


def hilly(tmp_path: Path, *texts: str) -> Search:
    of = hill.preset(tmp_path)
    return search(of, of.cells, candidates(overs(texts or [f"{RATE}=0.001,0.01,0.1"])), validation=0.25)


def test_every_candidate_is_a_cell_with_its_values_and_a_validation_split(tmp_path: Path) -> None:
    found = hilly(tmp_path)
    cells = found.planned.cells
    assert [cell.name for cell in cells[:3]] == [
        f"method=one {RATE}=0.001", f"method=one {RATE}=0.01", f"method=one {RATE}=0.1",
    ]  # fmt: skip
    assert [cell.settings.training.learning_rate for cell in cells] == [0.001, 0.01, 0.1] * 2
    assert {cell.settings.data.validation for cell in (*cells, *found.untouched.cells)} == {0.25}
    assert found.cells == list(hill.preset(tmp_path).cells), "the preset's own cells are unchanged"
    assert [cell.published for cell in cells[:3]] == [found.cells[0].published] * 3


def searchable(preset: Preset) -> list[Cell]:
    """Cells without variant data, of which no part can be split off for validation."""
    return [cell for cell in preset.cells if cell.settings.data.variant.name is None]


@pytest.mark.parametrize(
    "name", [name for name, make in PRESETS.items() if len(make().cells) > 1 and searchable(make())]
)
def test_a_candidate_equal_to_a_cell_is_that_cell(name: str) -> None:
    preset = PRESETS[name]()
    cell = searchable(preset)[0]
    own = {RATE: cell.settings.training.learning_rate}
    (made,) = search(preset, [cell], [own], validation=0.1).planned.cells
    data = cell.settings.data.model_copy(update={"validation": 0.1})
    assert made.settings == cell.settings.model_copy(update={"data": data})
    assert (made.options, made.scenario, made.in_rounds) == (cell.options, cell.scenario, cell.in_rounds)


def test_an_invalid_combination_of_keys_names_the_cell(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        hilly(tmp_path, "attack.name=label-flip,scale", "attack.factor=2.5,3.5")
    assert str(caught.value) == (
        "method=one with attack.name label-flip, attack.factor 2.5: attack.factor is 2.5, which attack.name label-flip "
        "does not take; leave it out"
    )


def test_variant_data_has_no_validation_split(tmp_path: Path) -> None:
    of = hill.preset(tmp_path)
    data = {"variant": {"name": "svhn", "rate": 0.5}}
    changing = replace(of.cells[0], settings=Settings(data=data))
    with pytest.raises(UserError, match=r"^method=one has data that changes"):
        search(of, [changing], [{RATE: 0.1}, {RATE: 0.2}], validation=0.1)


def planned(found: Search, scale: Scale) -> list[Any]:
    return jobs(found.planned, found.planned.cells, seeds=[0], scale=scale, place=Place(cache="/data"))


@pytest.mark.parametrize(
    ("over", "scale", "sentence"),
    [
        ("threads=1,2", Scale(), "--over: threads changes nothing of what method=one computes, as threads 1 and "
         "threads 2 come to the same; leave it out"),
        ("server.lease_s=20,30", Scale(), "--over: server.lease_s changes nothing of what method=one computes, as "
         "server.lease_s 20.0 and server.lease_s 30.0 come to the same; leave it out"),
        ("rounds=69,70", Scale(rounds=0.1), "--over: rounds changes nothing of what method=one computes at rounds x "
         "0.1, as rounds 69 and rounds 70 come to the same; leave it out"),
    ],
)  # fmt: skip
def test_a_key_that_changes_nothing_is_refused(tmp_path: Path, over: str, scale: Scale, sentence: str) -> None:
    found = hilly(tmp_path, over)
    with pytest.raises(UserError) as caught:
        check_different(found, planned(found, scale), scale)
    assert str(caught.value) == sentence


def test_keys_that_change_results_are_accepted(tmp_path: Path) -> None:
    found = hilly(tmp_path, f"{RATE}=0.1,0.2", "rounds=70,80", "data.normalise=unit,raw")
    check_different(found, planned(found, Scale()), Scale())


# --- the test set ---


def data_file(file: Path, *, poisoned: bool) -> Path:
    """Two classes of small pictures, one brighter. poisoned: the test part is black, and its labels are wrong."""
    labels = np.arange(200) % 2
    noise = stream(5, Stream.TOXICS).integers(100, size=(200, 4, 4))
    images = (noise + 60 * labels[:, None, None]).astype(np.uint8)
    inputs, answers = images[:40], labels[:40]
    if poisoned:
        inputs, answers = np.zeros_like(inputs), 1 - answers
    np.savez(file, x_train=images[40:], y_train=labels[40:], x_test=inputs, y_test=answers)
    return file


def run_of(file: Path, validation: float | None) -> Record:
    """The record of a candidate of a search; without validation, of the preset's own cell."""
    settings = Settings(
        clients=4, rounds=6, evaluate_every=2, evaluate_clients_every=3, model={"name": "logreg"},
        partition={"name": "iid"}, trigger={"name": "k-async", "k": 2}, policy={"name": "fedavg"},
        data={"name": "npz", "path": str(file)}, run={"durability": "off"}, simulation={"backend": "loop"},
    )  # fmt: skip
    cell = Cell(labels={"method": "FedAvg"}, settings=settings)
    if validation is not None:
        of = Preset(
            name="own", paper="FedHist", item="", title="", cells=(cell,), measures=("final accuracy",),
            rows=("method",), columns=(), sources=(),
        )  # fmt: skip
        cell = search(of, [cell], [{RATE: 0.05}], validation=validation).planned.cells[0]
    found = measure("run", cell.settings, {"training_loss_every": 1}, on_progress=lambda _: None)
    return replace(found, seconds=0.0)


def test_the_test_set_does_not_affect_a_search(tmp_path: Path) -> None:
    clean = data_file(tmp_path / "clean.npz", poisoned=False)
    poisoned = data_file(tmp_path / "poisoned.npz", poisoned=True)
    assert run_of(clean, 0.25).to_json() == run_of(poisoned, 0.25).to_json()
    assert run_of(clean, None).accuracy_E != run_of(poisoned, None).accuracy_E, "the poison has an effect"
    assert run_of(clean, 0.25).model_digest != run_of(clean, None).model_digest, "clients train on the rest"


# --- ranking ---


def record(accuracy: float, **more: Any) -> Record:
    return Record(version_E=[0, 10], accuracy_E=[0.0, accuracy], **more)


def reached(version: int) -> Record:
    """A run of 1,000 rounds that reaches 40 % at that version."""
    return Record(version_E=[0, version, 1000], accuracy_E=[0.1, 0.4, 0.3])


def ranked(
    found: Search,
    records: Mapping[tuple[str, float, int], Record],
    *,
    by: str = "final accuracy",
    toward: str | None = None,
    seeds: int = 1,
    failed: Sequence[tuple[str, float, int]] = (),
    together: bool = False,
) -> list[Ranking]:
    """records, failed: by method, rate and seed."""
    outcome = Outcome(
        search=found,
        goal=goal(by, toward, found),
        comparison=Comparison(
            preset=found.planned,
            records={(f"method={m} {RATE}={rate}", seed): one for (m, rate, seed), one in records.items()},
        ),
        failed=frozenset((f"method={m} {RATE}={rate}", seed) for m, rate, seed in failed),
        seeds=range(seeds),
    )
    return outcome.rankings(together=together)


def order(ranking: Ranking) -> list[float]:
    return [one.candidate[RATE] for one in ranking.standings]


def with_objective(*names: str) -> Search:
    """A search of runs with these objectives."""
    cells = [Cell(labels={"method": "fedavg"}, settings=Settings(objective={"name": names[0]}))]
    preset = Preset(
        name="small", paper="FedHist", item="Table 0", title="digits", measures=("final accuracy",),
        rows=("method",), columns=(), sources=(), cells=tuple(cells),
    )  # fmt: skip
    tried = [{"objective.name": name} for name in names]
    return search(preset, cells, tried, validation=0.1)


def test_candidates_are_judged_by_the_main_metric_of_their_runs() -> None:
    found = with_objective("regression", "helpers.objectives:Huber")
    aim = goal(None, None, found)
    assert (aim.measure.heading, aim.measure.better, aim.measure.text(0.123456)) == ("final mae", "lower", "0.1235")
    assert goal("final mae", "0.2", found).toward == 0.2
    assert goal(None, None, with_objective("classification", "binary")).measure.heading == "final accuracy, %"
    several = with_objective("classification", "regression")
    assert goal("final accuracy", None, several).measure.name == "final accuracy"
    with pytest.raises(UserError) as caught:
        goal(None, None, several)
    assert str(caught.value) == (
        "the runs have several main metrics, expected --measure, one of final accuracy, final mae"
    )


def test_the_measure_of_a_main_metric_is_the_mean_of_the_last_evaluations() -> None:
    of = goal(None, None, with_objective("regression", "helpers.objectives:Huber")).measure.of
    curve = {"name": "mae", "values_E": [9.0, *(float(value) for value in range(12))]}
    assert of(Record(version_E=list(range(13)), found={"main_metric": curve}), None) == 6.5  # mean of 2 to 11
    assert of(Record(version_E=[0], accuracy_E=[0.5]), None) is None


def test_the_best_candidate_of_each_cell_comes_first(tmp_path: Path) -> None:
    accuracies = {
        ("one", 0.001): 0.5, ("one", 0.01): 0.7, ("one", 0.1): 0.6,
        ("other", 0.001): 0.3, ("other", 0.01): 0.2, ("other", 0.1): 0.4,
    }  # fmt: skip
    one, other = ranked(hilly(tmp_path), {(*key, 0): record(accuracy) for key, accuracy in accuracies.items()})
    assert order(one) == [0.01, 0.1, 0.001]
    assert order(other) == [0.1, 0.001, 0.01]
    assert one.best[0].spread is not None
    assert one.best[0].spread.mean == 0.7
    assert one.next is one.standings[1]
    assert (one.at_the_edge(), other.at_the_edge()) == ([], [f"the greatest {RATE}"])
    assert one.test is None, "one seed has no spread"


def test_cells_searched_together_are_ranked_by_their_mean(tmp_path: Path) -> None:
    accuracies = {
        ("one", 0.001): 0.5, ("one", 0.01): 0.7, ("one", 0.1): 0.6,
        ("other", 0.001): 0.3, ("other", 0.01): 0.2, ("other", 0.1): 0.4,
    }  # fmt: skip
    found = {(*key, 0): record(accuracy) for key, accuracy in accuracies.items()}
    (both,) = ranked(hilly(tmp_path), found, together=True)
    assert order(both) == [0.1, 0.01, 0.001]
    assert [one.spread.mean for one in both.standings if one.spread] == pytest.approx([0.5, 0.45, 0.4])
    assert [cell.name for cell in both.cells] == ["method=one", "method=other"]


def test_fewer_rounds_rank_higher_by_the_geometric_mean_over_cells(tmp_path: Path) -> None:
    rounds = {
        ("one", 0.001): 100, ("one", 0.01): 300, ("one", 0.1): 200,
        ("other", 0.001): 900, ("other", 0.01): 100, ("other", 0.1): 800,
    }  # fmt: skip
    found = {(*key, 0): reached(version) for key, version in rounds.items()}
    assert order(ranked(hilly(tmp_path), found, by="rounds to 40 %")[0]) == [0.001, 0.1, 0.01]
    (both,) = ranked(hilly(tmp_path), found, by="rounds to 40 %", together=True)
    assert order(both) == [0.01, 0.001, 0.1]
    means = [one.spread.mean for one in both.standings if one.spread]
    assert means == pytest.approx([sqrt(300 * 100), sqrt(100 * 900), sqrt(200 * 800)])


def test_distance_to_a_number_of_rounds_is_a_ratio(tmp_path: Path) -> None:
    rounds = {0.001: 100, 0.01: 310, 0.1: 500}
    one = ranked(
        hilly(tmp_path), {("one", rate, 0): reached(at) for rate, at in rounds.items()},
        by="rounds to 40 %", toward="200",
    )[0]  # fmt: skip
    # By difference 100 is nearest; by ratio 310 is: 200 / 100 = 2 against 310 / 200 = 1.55.
    assert order(one) == [0.01, 0.001, 0.1]
    assert [found.off for found in one.standings] == pytest.approx([log(1.55), log(2), log(2.5)])


def test_distance_to_a_percentage_is_a_difference(tmp_path: Path) -> None:
    accuracies = {0.001: 0.5, 0.01: 0.72, 0.1: 0.61}
    one = ranked(hilly(tmp_path), {("one", rate, 0): record(at) for rate, at in accuracies.items()}, toward="65")[0]
    assert order(one) == [0.1, 0.01, 0.001]
    assert [found.off for found in one.standings] == pytest.approx([0.04, 0.07, 0.15])


def test_a_search_toward_published_numbers_uses_each_cells_number(tmp_path: Path) -> None:
    accuracies = {0.001: 0.5, 0.01: 0.72, 0.1: 0.61}
    found = {(method, rate, 0): record(at) for method in ("one", "other") for rate, at in accuracies.items()}
    one, other = ranked(hilly(tmp_path), found, toward="published")  # 0.7 and 0.6
    assert (order(one)[0], order(other)[0]) == (0.01, 0.1)
    (both,) = ranked(hilly(tmp_path), found, toward="published", together=True)
    assert [one.off for one in both.standings] == pytest.approx([(0.09 + 0.01) / 2, (0.02 + 0.12) / 2, (0.2 + 0.1) / 2])


def test_the_mean_over_seeds_is_compared_with_the_target(tmp_path: Path) -> None:
    found = {("one", 0.01, 0): reached(100), ("one", 0.01, 1): reached(300), ("one", 0.1, 0): reached(220),
             ("one", 0.1, 1): reached(240)}  # fmt: skip
    one = ranked(hilly(tmp_path), found, by="rounds to 40 %", toward="200", seeds=2)[0]
    assert order(one)[:2] == [0.01, 0.1], "200 and 230 on average"
    assert one.best[0].off == 0.0


def test_missed_diverged_and_failed_candidates_rank_last(tmp_path: Path) -> None:
    found = {
        ("one", 0.001, 0): reached(900), ("one", 0.001, 1): reached(900),
        ("one", 0.01, 0): reached(10), ("one", 0.01, 1): record(0.39),
        ("one", 0.1, 0): replace(reached(10), found={"ended": "training diverges"}),
    }  # fmt: skip
    one = ranked(
        hilly(tmp_path), found, by="rounds to 40 %", seeds=2, failed=[("one", 0.1, 1)]
    )[0]  # fmt: skip
    assert order(one) == [0.001, 0.01, 0.1]
    assert [dict(standing.lacks) for standing in one.standings] == [
        {}, {"missed the target": 1}, {"diverged": 1, "failed": 1},
    ]  # fmt: skip
    assert one.standings[2].spread is None
    assert one.best == one.standings[:1]


def test_over_several_cells_only_common_seeds_count(tmp_path: Path) -> None:
    found = {("one", 0.01, 0): record(0.5), ("one", 0.01, 1): record(0.9), ("other", 0.01, 0): record(0.3)}
    (both,) = ranked(hilly(tmp_path), found, seeds=2, together=True)
    first = both.standings[0]
    assert (dict(first.values), dict(first.lacks), first.runs) == ({0: 0.4}, {"not run": 1}, 4)


def test_tied_candidates_are_all_best(tmp_path: Path) -> None:
    found = {("one", rate, 0): record(at) for rate, at in ((0.001, 0.7), (0.01, 0.3), (0.1, 0.7))}
    one = ranked(hilly(tmp_path), found)[0]
    assert [standing.candidate[RATE] for standing in one.best] == [0.001, 0.1]
    assert one.next is not None
    assert one.next.candidate[RATE] == 0.01
    assert one.at_the_edge() == []


def test_without_numbers_there_is_no_best_candidate(tmp_path: Path) -> None:
    one = ranked(hilly(tmp_path), {("one", 0.01, 0): record(0.39)}, by="rounds to 40 %")[0]
    assert (one.best, one.next, one.test) == ([], None, None)


def test_the_runner_up_is_distinguished_by_the_spread_of_the_differences(tmp_path: Path) -> None:
    best, close, far = (0.60, 0.62, 0.64), (0.59, 0.63, 0.61), (0.50, 0.525, 0.54)
    found = {
        ("one", rate, seed): record(at)
        for rate, by_seed in ((0.001, best), (0.01, close), (0.1, far))
        for seed, at in enumerate(by_seed)
    }
    one = ranked(hilly(tmp_path), found, seeds=3)[0]
    assert one.next is not None
    assert one.next.candidate[RATE] == 0.01
    # Differences 0.01, -0.01, 0.03: mean 0.01, sd 0.02, t = 0.01 / (0.02 / sqrt 3) = 0.866, p = 0.48.
    assert one.test is not None
    assert one.test.t == pytest.approx(sqrt(3) / 2)
    assert not one.is_settled
    without = {key: one for key, one in found.items() if key[1] != 0.01}
    settled = ranked(hilly(tmp_path), without, seeds=3)[0]
    # Differences 0.1, 0.095, 0.1: far beyond their spread.
    assert settled.is_settled


@pytest.mark.parametrize(
    ("by", "toward", "sentence"),
    [
        ("final acuracy", None, "unknown measure 'final acuracy'; did you mean 'final accuracy'?"),
        ("p against one", None, "--measure is 'p against one', which is no number of one candidate, expected another, "
         "such as 'final accuracy'"),
        ("best accuracy", None, "--measure is 'best accuracy', which method=one does not have, expected one of final "
         "accuracy, rounds to 40 %"),
        ("final accuracy", "high", "--toward is 'high', expected a number in %, or published"),
        ("final accuracy", "nan", "--toward is 'nan', expected a number in %, or published"),
        ("rounds to 40 %", "0", "--toward is 0, expected one round at least"),
        ("rounds to 40 %", "published", "--toward is published, but of method=one there is no 'rounds to 40 %' in "
         "print, only final accuracy; choose cells with --cells, another --measure, or say a number"),
    ],
)  # fmt: skip
def test_a_goal_that_the_cells_do_not_support_is_refused(
    tmp_path: Path, by: str, toward: str | None, sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        goal(by, toward, hilly(tmp_path))
    assert str(caught.value) == sentence


def test_a_measure_relative_to_a_cell_that_is_not_searched_is_refused() -> None:
    preset = PRESETS["fh-t2"]()
    alone = [cell for cell in preset.cells if cell.labels == {"beta": "IID", "method": "FedHist"}]
    found = search(preset, alone, [{RATE: 0.1}, {RATE: 0.2}], validation=0.1)
    with pytest.raises(UserError, match=r"relative to method=FedAvg, and no such cell is searched beside"):
        goal("speedup", None, found)


def test_a_target_beyond_the_length_of_a_run_is_refused(tmp_path: Path) -> None:
    found = hilly(tmp_path, "rounds=50,70")
    aim = goal("rounds to 40 %", "60", found)
    check_reach(aim, found, planned(found, Scale()))
    with pytest.raises(UserError) as caught:
        check_reach(aim, found, planned(found, Scale(rounds=0.5)))
    assert str(caught.value) == (
        "--toward comes to 60 rounds for method=one, whose runs have 35; run more of them (--scale-rounds), or name "
        "another number"
    )


def test_ratios_are_printed_as_factors_and_differences_in_their_unit(tmp_path: Path) -> None:
    found = hilly(tmp_path)
    rounds, accuracy = goal("rounds to 40 %", "1391", found), goal("final accuracy", "57", found)
    assert rounds.off(1391 * 1.25, 1391) == rounds.off(1391 / 1.25, 1391) == pytest.approx(log(1.25))
    assert rounds.off_text(log(1.25)) == "1.25 times"
    assert accuracy.off_text(accuracy.off(0.5, 0.57)) == "7.00 points"
    assert exp(rounds.off(0, 4)) == pytest.approx(4), "a target reached before the first round counts as one round"


def test_a_candidate_is_named_by_its_values() -> None:
    assert named({RATE: 1e-05, "policy.settings.some": [1, 2], "policy.name": "fedavg"}) == (
        "training.learning_rate 1e-05, policy.settings.some [1, 2], policy.name fedavg"
    )


def test_a_preset_is_searched_with_the_published_number_of_each_cell(tmp_path: Path) -> None:
    found = hilly(tmp_path)
    aim = goal("final accuracy", "published", found)
    assert [aim.target(cell) for cell in found.cells] == [0.7, 0.6]
    with_less = replace(found.cells[0], published={"rounds to 40 %": Number(value=7, text="7")})
    other = search(found.preset, [with_less], found.candidates, validation=0.1)
    with pytest.raises(UserError, match="there is no 'final accuracy' in print, only rounds to 40 %"):
        goal("final accuracy", "published", other)
