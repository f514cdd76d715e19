"""Regret and ranking of the policy guide, by hand."""

from math import atan, pi, sqrt

import pytest
from pydantic import ValidationError

from unstale_papers.guide.evidence import Evidence, Result, TaskMeasure, regrets_of, standings

ACCURACY = TaskMeasure(title="images", measure="final accuracy", better="higher", is_share=True)
ERROR = TaskMeasure(title="numbers", measure="final mae", better="lower", is_share=False)


def result(task: str, method: str, *values: float | None, staleness: str = "low") -> Result:
    return Result(task=task, condition={"staleness": staleness}, method=method, values=values, rates={})


def evidence(*results: Result) -> Evidence:
    tasks = {"images": ACCURACY, "numbers": ERROR}
    return Evidence(tasks={one.task: tasks[one.task] for one in results}, results=results)


TWO_TASKS = evidence(
    result("images", "A", 0.9, 0.8),
    result("images", "B", 0.8, 0.8),
    result("numbers", "A", 2.0, 4.0),
    result("numbers", "B", 1.0, 3.0),
)
"""A is 10 and 0 percentage points ahead on images. Its error is 1 larger on numbers, half of B's mean of 2: 50 %."""


def test_regret_is_the_distance_to_the_best_with_the_same_seed() -> None:
    images, numbers = TWO_TASKS.results[:2], TWO_TASKS.results[2:]
    assert regrets_of(images, ACCURACY) == {"A": [0.0, 0.0], "B": [10.0, 0.0]}
    assert regrets_of(numbers, ERROR) == {"A": [50.0, 50.0], "B": [0.0, 0.0]}


def test_a_run_ahead_of_the_best_policy_has_a_regret_below_0() -> None:
    # A has the better mean, 0.7 against 0.65, and is behind with seed 1.
    found = regrets_of([result("images", "A", 0.9, 0.5), result("images", "B", 0.6, 0.7)], ACCURACY)
    assert found == {"A": [0.0, 0.0], "B": [30.0, -20.0]}


def test_the_order_is_by_the_mean_regret_over_tasks() -> None:
    first, second = standings(TWO_TASKS, {}, ["images", "numbers"])
    assert (first.method, second.method) == ("B", "A")
    assert first.regret is not None and second.regret is not None
    assert first.regret.mean == 2.5  # 5 and 0 by seed
    assert second.regret.mean == 25.0
    assert (first.rank, second.rank) == (1.5, 1.5)
    half = 12.7062 * sqrt(12.5) / sqrt(2)  # Student's t with one degree of freedom
    assert first.regret.low == pytest.approx(2.5 - half, rel=1e-4)
    assert first.regret.high == pytest.approx(2.5 + half, rel=1e-4)


def test_the_test_is_paired_over_seeds() -> None:
    # The differences are 20 and 25: t = 22.5 / 2.5 = 9. With one degree of freedom p = 1 - 2 atan(t) / pi.
    _, second = standings(TWO_TASKS, {}, ["images", "numbers"])
    assert second.test is not None
    assert second.test.t == pytest.approx(9.0)
    assert second.test.p == pytest.approx(1 - 2 * atan(9) / pi)
    assert not second.is_behind  # p is 0.07


def test_a_policy_that_is_behind_by_the_same_with_every_seed_is_told_apart() -> None:
    found = evidence(result("images", "A", 0.75, 0.5), result("images", "B", 0.5, 0.25))
    first, second = standings(found, {}, ["images"])
    assert (first.method, first.is_behind) == ("A", False)
    assert second.is_behind


def test_equal_policies_are_not_told_apart() -> None:
    found = evidence(result("images", "A", 0.75, 0.5), result("images", "B", 0.75, 0.5))
    first, second = standings(found, {}, ["images"])
    assert [first.rank, second.rank] == [1.0, 1.0]
    assert not second.is_behind


def test_a_policy_that_diverged_comes_last_without_a_regret() -> None:
    found = evidence(
        result("images", "A", 0.99, None), result("images", "B", 0.5, 0.5), result("images", "C", 0.4, 0.6)
    )
    *others, last = standings(found, {}, ["images"])
    assert last.method == "A"
    assert (last.regret, last.lacking, last.runs, last.rank, last.is_behind) == (None, 1, 2, 3.0, True)
    assert {one.rank for one in others} == {1.0}
    assert all(one.regret is not None and one.regret.mean == 0 for one in others)


def test_where_every_policy_diverged_there_is_no_regret() -> None:
    found = evidence(result("images", "A", None), result("images", "B", None))
    assert [one.regret for one in standings(found, {}, ["images"])] == [None, None]


def test_a_condition_selects_results_and_its_absence_takes_the_mean() -> None:
    found = evidence(
        result("images", "A", 0.9),
        result("images", "B", 0.8),
        result("images", "A", 0.4, staleness="high"),
        result("images", "B", 0.7, staleness="high"),
    )
    assert [one.method for one in standings(found, {"staleness": "low"}, ["images"])] == ["A", "B"]
    assert [one.method for one in standings(found, {"staleness": "high"}, ["images"])] == ["B", "A"]
    first, second = standings(found, {}, ["images"])
    assert first.regret is not None and second.regret is not None
    assert (first.method, first.regret.mean, second.regret.mean) == ("B", 5.0, 15.0)


def test_one_seed_has_no_interval_and_no_test() -> None:
    first, second = standings(evidence(result("images", "A", 0.9), result("images", "B", 0.8)), {}, ["images"])
    assert first.regret is not None
    assert (first.regret.low, second.test, second.is_behind) == (None, None, False)


@pytest.mark.parametrize(
    ("results", "error"),
    [
        ([result("images", "A", 0.9), result("numbers", "B", 0.9)], "tasks differ in their conditions or methods"),
        ([result("images", "A", 0.9), result("images", "B", 0.9, 0.8)], "differ in their number of seeds"),
    ],
)
def test_incomplete_evidence_is_refused(results: list[Result], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        evidence(*results)
