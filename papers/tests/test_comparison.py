"""Published and measured numbers and orders, compared by hand."""

from dataclasses import replace
from math import atan, pi

import pytest

from helpers.hand_made import cell, ends_with, preset, runs
from unstale_papers.comparison import Comparison
from unstale_papers.preset import Number

# Numbers


def test_a_cell_shows_mean_deviation_and_difference_over_its_seeds() -> None:
    made = preset(cell("method=A", accuracy=0.5), cell("method=B"))
    comparison = Comparison(preset=made, records=runs({"method=A": [0.5, 0.6, 0.7]}))
    entry = comparison.entries["method=A", "final accuracy"]
    assert comparison.seeds == (0, 1, 2)
    assert entry.spread is not None and entry.difference == pytest.approx(0.1)
    assert entry.spread.n == 3
    assert [entry.spread.mean, entry.spread.std] == pytest.approx([0.6, 0.1])
    assert entry.published == Number(0.5, "0.5")
    assert entry.text == "60.00 ± 10.00"


def test_one_seed_shows_no_deviation_and_no_seed_shows_nothing() -> None:
    made = preset(cell("method=A"), cell("method=B", accuracy=0.5))
    comparison = Comparison(preset=made, records=runs({"method=A": [0.5]}))
    assert comparison.entries["method=A", "final accuracy"].text == "50.00"
    assert comparison.entries["method=A", "final accuracy"].difference is None
    absent = comparison.entries["method=B", "final accuracy"]
    assert (absent.text, absent.spread, absent.difference) == ("", None, None)


def test_a_target_is_shown_with_the_number_of_seeds_that_reach_it() -> None:
    records = {
        ("method=A", 0): ends_with(0.5, at=20),
        ("method=A", 1): ends_with(0.5, at=40),
        ("method=A", 2): ends_with(0.3, at=40),
        ("method=B", 0): ends_with(0.3),
    }
    made = preset(cell("method=A", rounds=25), cell("method=B"), measures=("rounds to 40 %",))
    comparison = Comparison(preset=made, records=records)
    some, none = (comparison.entries[f"method={method}", "rounds to 40 %"] for method in "AB")
    # 30 is the mean of the two that reached the target, so it is not compared with 25.
    assert (some.text, some.missed, some.difference) == ("30 ± 14 (2 of 3 seeds)", 1, None)
    assert (none.text, none.missed, none.difference) == ("not reached", 1, None)


def test_a_relative_measure_compares_cells_that_differ_in_method_by_seed() -> None:
    names = [f"beta={beta} method={method}" for beta in (1, 2) for method in ("FedAvg", "A")]
    made = preset(*map(cell, names), measures=("speedup",))
    records = {
        ("beta=1 method=FedAvg", 0): ends_with(0.5, at=60),
        ("beta=1 method=FedAvg", 1): ends_with(0.5, at=80),
        ("beta=1 method=A", 0): ends_with(0.5, at=30),
        ("beta=1 method=A", 1): ends_with(0.5, at=20),
        ("beta=2 method=A", 0): ends_with(0.5, at=20),
    }
    entries = Comparison(preset=made, records=records).entries
    assert entries["beta=1 method=FedAvg", "speedup"].text == "1.0 ± 0.0"
    assert entries["beta=1 method=A", "speedup"].values == {0: 2.0, 1: 4.0}
    assert entries["beta=2 method=A", "speedup"].text == ""  # without a run of its FedAvg


def test_the_method_axis_may_have_another_name() -> None:
    cells = (cell("strategy=FedAvg"), cell("strategy=A"))
    made = preset(*cells, measures=("speedup",), method="strategy")
    records = {("strategy=FedAvg", 0): ends_with(0.5, at=60), ("strategy=A", 0): ends_with(0.5, at=20)}
    assert Comparison(preset=made, records=records).entries["strategy=A", "speedup"].values == {0: 3.0}


def test_a_p_value_covers_all_seeds() -> None:
    # Over two seeds the final accuracies differ by 0.1 and 0.3: t = 2, and of one degree of freedom p is Cauchy's.
    made = preset(cell("method=A"), cell("method=B"), measures=("p over seeds against A",))
    table = {"method=A": [0.4, 0.4], "method=B": [0.5, 0.7]}
    entry = Comparison(preset=made, records=runs(table)).entries["method=B", "p over seeds against A"]
    assert entry.spread is not None and entry.spread.std is None
    assert entry.spread.mean == pytest.approx(1 - 2 * atan(2) / pi)
    assert entry.text == "0.295"
    assert Comparison(preset=made, records=runs(table)).rankings == ()  # a test is no order


# Orders


def test_printed_and_measured_rankings_are_compared() -> None:
    cells = [cell(f"beta=1 method={method}", accuracy=value) for method, value in (("A", 0.5), ("B", 0.3), ("C", 0.4))]
    other = cell("beta=2 method=A", accuracy=0.6)
    table = {"beta=1 method=A": [0.6], "beta=1 method=B": [0.5], "beta=1 method=C": [0.4]}
    rankings = Comparison(preset=preset(*cells, other), records=runs(table)).rankings
    assert len(rankings) == 1  # one method is no order
    found = rankings[0]
    assert found.labels == {"beta": "1"}
    assert found.published == (("A",), ("C",), ("B",))
    assert found.measured == (("A",), ("B",), ("C",))
    assert found.agreement is not None
    assert found.agreement.n == 3
    assert found.agreement.tau == pytest.approx(1 / 3)


def test_a_missed_target_ranks_last_and_ties_share_a_rank() -> None:
    made = preset(*(cell(f"method={method}") for method in "ABCDE"), measures=("rounds to 40 %",))
    records = {
        ("method=A", 0): ends_with(0.3, at=10),
        ("method=B", 0): ends_with(0.5, at=30),
        ("method=C", 0): ends_with(0.5, at=20),
        ("method=D", 0): ends_with(0.5, at=30),
    }
    found = Comparison(preset=made, records=records).rankings[0]
    assert found.measured == (("C",), ("B", "D"), ("A",))
    assert (found.published, found.agreement) == ((), None)


def test_methods_are_ordered_over_the_seeds_that_all_of_them_have() -> None:
    made = preset(cell("method=A", accuracy=0.5), cell("method=B", accuracy=0.4), cell("method=C", accuracy=0.3))
    table = {"method=A": [0.5, 0.1, 0.1], "method=B": [0.4, 0.6], "method=C": [0.3]}
    comparison = Comparison(preset=made, records=runs(table))
    (found,) = comparison.rankings
    means = [one.spread.mean for one in comparison.entries.values() if one.spread is not None]
    assert means == pytest.approx([0.7 / 3, 0.5, 0.3])  # over seeds of its own A would be last
    assert (found.seeds, found.measured) == ((0,), (("A",), ("B",), ("C",)))
    assert found.agreement is not None and found.agreement.tau == pytest.approx(1)


def test_methods_without_a_shared_seed_have_no_order() -> None:
    made = preset(*(cell(f"method={method}", accuracy=0.5) for method in "AB"), cell("method=C"))
    records = {("method=A", 0): ends_with(0.5), ("method=B", 1): ends_with(0.6)}
    (found,) = Comparison(preset=made, records=records).rankings
    assert (found.seeds, found.measured, found.agreement) == ((), (), None)
    assert found.published == (("A", "B"),)


def test_a_diverged_run_has_no_final_number_but_keeps_its_earlier_target() -> None:
    made = preset(cell("method=A"), cell("method=B"), measures=("final accuracy", "rounds to 40 %"))
    dead = replace(ends_with(0.5, at=7), found={"ended": "nobody's model is finite"})
    comparison = Comparison(
        preset=made, records={("method=A", 0): dead, ("method=B", 0): ends_with(0.2), ("method=A", 1): ends_with(0.5)}
    )
    final, rounds = (comparison.entries["method=A", name] for name in made.measures)
    assert (final.values, final.diverged) == ({0: None, 1: 0.5}, {0})
    assert final.text == "50.00 (1 of 2 seeds)"
    assert rounds.values == {0: 7, 1: 10}
    alone = Comparison(preset=made, records={("method=A", 0): dead, ("method=B", 0): ends_with(0.2)})
    assert alone.entries["method=A", "final accuracy"].text == "diverged"
    assert alone.rankings[0].measured == (("B",), ("A",))


def test_a_measure_relative_to_a_diverged_run_is_unknown() -> None:
    made = preset(cell("method=A"), cell("method=B"), measures=("ahead of B", "p over seeds against B"))
    dead = replace(ends_with(0.9), found={"ended": "nobody's model is finite"})
    records = runs({"method=A": [0.5, 0.5, 0.5], "method=B": [0.40, 0.41, 0.42]})
    whole = Comparison(preset=made, records=records)
    part = Comparison(preset=made, records={**records, ("method=B", 2): dead})
    assert whole.entries["method=A", "ahead of B"].values == pytest.approx({0: 10, 1: 9, 2: 8})
    assert part.entries["method=A", "ahead of B"].values == {0: pytest.approx(10), 1: pytest.approx(9), 2: None}
    tests = [one.entries["method=A", "p over seeds against B"].spread for one in (whole, part)]
    assert [spread.n for spread in tests if spread is not None] == [3, 2]


def test_a_printed_bound_has_no_rank_and_no_difference() -> None:
    made = preset(*(cell(f"method={method}", accuracy=0.45) for method in "AB"), cell("method=C", accuracy=0.47))
    bounds = [replace(one, published={"final accuracy": Number(0.45, "< 45 %")}) for one in made.cells[:2]]
    made = replace(made, cells=(*bounds, made.cells[2]))
    comparison = Comparison(preset=made, records=runs({"method=A": [0.4], "method=B": [0.3], "method=C": [0.5]}))
    assert comparison.entries["method=A", "final accuracy"].difference is None
    assert comparison.entries["method=C", "final accuracy"].difference == pytest.approx(0.03)
    assert comparison.rankings[0].published == (("C",),)
    assert comparison.rankings[0].measured == (("C",), ("A",), ("B",))
