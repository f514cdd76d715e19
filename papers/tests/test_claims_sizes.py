"""The size of stored results, found again from their configurations."""

import pytest

from helpers.stored import FULL, place, preset, results, stored
from unstale_papers.claims.sizes import SizedComparison, comparisons
from unstale_papers.jobs import jobs
from unstale_papers.presets.registry import PRESETS
from unstale_papers.scale import Scale

TINY = preset()
QUARTER = Scale(rounds=0.25)
SCALES = (FULL, Scale.of(0.1), Scale.of(0.5), QUARTER, Scale(rounds=0.25, data=0.2, iterations=0.005))


def accuracies(one: SizedComparison) -> dict[tuple[str, int], float]:
    return {key: record.accuracy_E[-1] for key, record in one.comparison.records.items()}


@pytest.mark.parametrize("name", PRESETS)
def test_the_scale_of_any_result_of_a_preset_is_found_again(name: str) -> None:
    of = PRESETS[name]()
    data = {cell.settings.data.name: "a" * 64 for cell in of.cells if cell.settings.data.name}
    at = place("cuda", **data)
    for scale in SCALES:
        for cell in (of.cells[0], of.cells[-1]):
            (job,) = jobs(of, [cell], seeds=[3], scale=scale, place=at)
            (found,) = comparisons([stored(job, 0.5)], [of])
            # Another scale that gives the same configuration is as good.
            (again,) = jobs(of, [cell], seeds=[3], scale=found.scale, place=at)
            assert again.digest == job.digest
            assert (cell.name, 3) in found.comparison.records


def test_results_are_separated_by_size_and_the_largest_is_first() -> None:
    found = comparisons([*results(TINY, {"A": [0.5]}, QUARTER), *results(TINY, {"A": [0.6], "B": [0.7, 0.8]})], [TINY])
    assert [one.scale for one in found] == [FULL, QUARTER]
    assert [accuracies(one) for one in found] == [
        {("method=A", 0): 0.6, ("method=B", 0): 0.7, ("method=B", 1): 0.8},
        {("method=A", 0): 0.5},
    ]


def test_a_result_of_another_preset_with_the_same_configuration_counts() -> None:
    other = preset(name="other")
    found = comparisons(results(other, {"A": [0.5]}), [TINY, other])
    assert [one.comparison.preset.name for one in found] == ["tiny", "other"]
    assert [accuracies(one) for one in found] == [{("method=A", 0): 0.5}] * 2


def test_of_two_files_in_place_of_a_data_set_that_with_most_results_counts() -> None:
    few, many = place(mnist="a" * 64), place(mnist="b" * 64)
    found = comparisons(
        [*results(TINY, {"A": [0.1]}, at=few), *results(TINY, {"A": [0.2], "B": [0.3]}, at=many)], [TINY]
    )
    assert [accuracies(one) for one in found] == [{("method=A", 0): 0.2, ("method=B", 0): 0.3}]
    assert found[0].files == {"mnist": "b" * 64}


def test_results_of_several_devices_are_taken_together() -> None:
    cpu, cuda = place(), place("cuda")
    found = comparisons([*results(TINY, {"A": [0.1, 0.9]}, at=cuda), *results(TINY, {"A": [0.2]}, at=cpu)], [TINY])
    assert [accuracies(one) for one in found] == [{("method=A", 0): 0.2, ("method=A", 1): 0.9}]


def test_a_run_without_inversion_counts_beside_inversions_with_fewer_iterations() -> None:
    of = PRESETS["gi-t3"]()
    scale = Scale(rounds=0.25, iterations=0.005)
    cells = [cell for cell in of.cells if cell.labels["staleness"] == "40"]
    found = comparisons([stored(job, 0.5) for job in jobs(of, cells, seeds=[0], scale=scale, place=place())], [of])
    assert [one.scale for one in found] == [scale]
    assert {name for name, _ in found[0].comparison.records} == {cell.name for cell in cells}


def test_results_that_are_of_no_cell_are_ignored() -> None:
    (job,) = jobs(TINY, TINY.cells[:1], seeds=[0], scale=FULL, place=place())
    (changed,) = results(preset(methods="BA"), {"A": [0.5]})  # of a cell that the preset has with other settings
    searched = stored(job, 0.5, name="tiny: method=A training.learning_rate=0.1, seed 0")
    assert comparisons([changed, searched], [TINY]) == []
