"""Searches of the policy guide's rates, and grids that become wider."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from unstale.errors import UserError
from unstale_papers.choose import chosen
from unstale_papers.guide import tuning
from unstale_papers.guide.tuning import Grid, Place, commands, wider_grid
from unstale_papers.presets.guide import LADDERS, METHODS, TASKS, preset, start_grid
from unstale_papers.search import candidates, overs, search

RATE, MULTIPLIER, ALPHA = "training.learning_rate", "policy.server_multiplier", "policy.settings.alpha"
PLACES = list(product(("low", "high"), METHODS))


def trials(words: Sequence[str]) -> list[tuple[Place, dict[str, float]]]:
    """The candidates that a search has for each staleness and method."""
    assert words[0] == "sweep"
    options = dict(zip(words[2::2], words[3::2], strict=True))
    ((own, cells),) = chosen([preset(words[1].removeprefix("guide-"))], options["--cells"])
    tried = candidates(overs([words[index + 1] for index, word in enumerate(words) if word == "--over"]))
    found = search(own, cells, tried, validation=float(options["--validation"]))
    assert len(found.trials) == len(cells) * len(tried)
    return [((cell.labels["staleness"], cell.labels["method"]), dict(one)) for cell in cells for one in tried]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_has_one_search_for_each_key_of_the_servers_step(task: str) -> None:
    found = list(commands(task, {place: start_grid(task, place[1]) for place in PLACES}))
    assert [set(grid) for _, grid in found] == [{RATE, MULTIPLIER}, {RATE, ALPHA}]
    searched = [place for words, _ in found for place, _ in trials(words)]
    assert sorted(searched) == sorted(9 * PLACES)


def test_policies_that_share_a_grid_share_a_search_at_the_same_levels_of_staleness() -> None:
    one, other = {RATE: (0.1, 0.3), MULTIPLIER: (1.0,)}, {RATE: (0.3, 1.0), MULTIPLIER: (1.0,)}
    places: dict[Place, Grid] = {
        ("low", "REFL"): one,
        ("low", "FedAvg"): one,
        ("high", "FedAvg"): one,
        ("high", "REFL"): other,
        ("low", "DynSGD"): one,
    }
    found = [(grid, sorted({place for place, _ in trials(words)})) for words, grid in commands("digits", places)]
    assert found == [
        (one, [("low", "DynSGD"), ("low", "REFL")]),
        (one, [("high", "FedAvg"), ("low", "FedAvg")]),
        (other, [("high", "REFL")]),
    ]


def test_a_grid_becomes_wider_where_the_best_candidate_is_at_an_edge() -> None:
    grid = {RATE: (0.03, 0.1, 0.3), MULTIPLIER: (0.1, 0.3, 1.0)}
    assert wider_grid(grid, {RATE: 0.1, MULTIPLIER: 0.3}) == grid
    assert wider_grid(grid, {RATE: 0.03, MULTIPLIER: 0.3}) == {**grid, RATE: (0.01, 0.03, 0.1, 0.3)}
    assert wider_grid(grid, {RATE: 0.3, MULTIPLIER: 1.0}) == {
        RATE: (0.03, 0.1, 0.3, 1.0),
        MULTIPLIER: (0.1, 0.3, 1.0, 3.0),
    }


def test_a_grid_ends_with_its_ladder() -> None:
    grid = {ALPHA: (0.6, 1.0)}
    assert wider_grid(grid, {ALPHA: 1.0}) == grid
    assert wider_grid({ALPHA: (0.6,)}, {ALPHA: 0.6}) == {ALPHA: (0.2, 0.6, 1.0)}


def test_the_first_values_are_on_their_ladders() -> None:
    for task, method in product(TASKS, METHODS):
        for key, values in start_grid(task, method).items():
            first = LADDERS[key].index(values[0])
            assert LADDERS[key][first : first + len(values)] == values


def nearest_to(target: Mapping[str, float], asked: list[Sequence[str]]) -> tuning.Run:
    """A search whose best candidate is the one nearest to a target, by ratio."""

    def run(words: Sequence[str]) -> Iterable[tuple[Place, Mapping[str, float]]]:
        asked.append(words)
        best: dict[Place, dict[str, float]] = {}
        for place, values in trials(words):
            before = best.setdefault(place, values)
            best[place] = min(before, values, key=lambda one: distance(one, target))
        return best.items()

    return run


def distance(values: Mapping[str, float], target: Mapping[str, float]) -> float:
    return sum(max(values[key] / target[key], target[key] / values[key]) for key in values)


def test_tuning_reaches_a_best_candidate_beyond_the_first_grid() -> None:
    """From 0.1, 0.3, 1: the rate 0.03 is found with one wider grid, and a second one has it inside."""
    asked: list[Sequence[str]] = []
    found = tuning.tune("digits", nearest_to({RATE: 0.03, MULTIPLIER: 0.3, ALPHA: 0.05}, asked))
    for level, method in PLACES:
        key = METHODS[method].server[0]
        assert found.rates[level][method] == {RATE: 0.03, key: {MULTIPLIER: 0.3, ALPHA: 0.05}[key]}
        assert found.searched[level][method] == {**start_grid("digits", method), RATE: (0.01, 0.03, 0.1, 0.3, 1.0)}
    assert len(asked) == 6
    assert len(found.commands) == 2
    assert all("training.learning_rate=0.01,0.03,0.1,0.3,1.0" in command for command in found.commands)


def test_tuning_ends_after_three_wider_grids() -> None:
    asked: list[Sequence[str]] = []
    found = tuning.tune("digits", nearest_to({RATE: 0.3, MULTIPLIER: 0.0001, ALPHA: 0.05}, asked))
    assert found.searched["low"]["FedAvg"][MULTIPLIER] == (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    assert found.searched["low"]["FedAsync"] == start_grid("digits", "FedAsync")
    assert found.rates["high"]["REFL"] == {RATE: 0.3, MULTIPLIER: 0.003}
    assert len(asked) == 2 + 3


@pytest.mark.slow
def test_tuning_runs_real_searches(tmp_path: Path) -> None:
    scale = ("--scale-rounds", "0.01", "--scale-clients", "0.1", "--scale-data", "0.3")
    options = [*scale, "--store", str(tmp_path), "--device", "cpu", "--processes", "1"]
    ((words, grid),) = commands("digits", {("low", "FedAvg"): {RATE: (0.1, 0.3), MULTIPLIER: (1.0,)}})
    ((place, best),) = tuning.searches(options)(words)
    assert place == ("low", "FedAvg")
    assert {key: best[key] in values for key, values in grid.items()} == {RATE: True, MULTIPLIER: True}


def test_a_search_that_fails_is_an_error_with_its_command(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"exit code 2: unstale sweep guide-digits --cells nothing=1"):
        list(tuning.searches([])(["sweep", "guide-digits", "--cells", "nothing=1", "--over", f"{RATE}=1,2"]))
    assert "nothing" in capfd.readouterr().err
