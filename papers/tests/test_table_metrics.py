"""Table measures of a record, by hand. Source: docs/methods/measures.md."""

from math import inf, log, nan, sqrt

import pytest

from unstale.errors import UserError
from unstale.training.measured import MainMetric
from unstale_papers.output.shows import show
from unstale_papers.record import Record
from unstale_papers.statistics import t_test
from unstale_papers.table_metrics import MEASURES, measure, of_main


def run(*accuracies: float, every: int = 1) -> Record:
    """Evaluations of versions 0, every, 2 every, ..."""
    return Record(version_E=[every * place for place in range(len(accuracies))], accuracy_E=list(accuracies))


def classes(*accuracies: float | None, label: int = 5) -> Record:
    """Evaluations of versions 1, 2, ... of one class of ten."""
    rows = [[accuracy if place == label else None for place in range(10)] for accuracy in accuracies]
    return Record(version_E=list(range(1, len(rows) + 1)), class_accuracy_EC=rows)


def of(name: str, record: Record, reference: Record | None = None) -> float | None:
    return measure(name).of(record, reference)


# Accuracy


def test_the_final_accuracy_is_the_mean_of_the_last_ten() -> None:
    record = run(0.9, 0.9, *[0.1 * place for place in range(10)])
    assert of("final accuracy", record) == pytest.approx(0.45)
    assert of("best accuracy", record) == 0.9


def test_a_short_run_is_averaged_over_its_versions_after_0() -> None:
    assert of("final accuracy", run(0.1, 0.4, 0.6)) == pytest.approx(0.5)
    assert of("final accuracy", run(0.1)) is None


def test_class_accuracy_needs_test_examples() -> None:
    assert of("final accuracy of class 5", classes(0.2, 0.4)) == pytest.approx(0.3)
    assert of("final accuracy of class 4", classes(0.2, 0.4)) is None
    assert of("final accuracy of class 12", classes(0.2, 0.4)) is None


def test_stability_is_the_deviation_of_the_last_ten_logarithms() -> None:
    # Half of them 1/4, half 1: logarithms -ln 4 and 0, each ln 4 / 2 from their mean; with n, not n - 1.
    record = run(0.7, *[0.25, 1.0] * 5)
    assert of("stability", record) == pytest.approx(log(2))
    assert of("stability (base 10)", record) == pytest.approx(log(2) / log(10))
    assert log(10) == pytest.approx(2.303, abs=5e-4)


def test_stability_needs_ten_accuracies_above_0() -> None:
    assert of("stability", run(*[0.5] * 10)) is None  # version 0 does not count
    assert of("stability", run(*[0.5] * 10, 0.0)) is None


def chance(*last: float, classes: int = 10) -> Record:
    """Ten evaluations after version 0, ending with `last`, with so many classes."""
    accuracies = [0.5, *[0.5] * (10 - len(last)), *last]
    rows: list[list[float | None]] = [[accuracy] * classes for accuracy in accuracies]
    return Record(version_E=list(range(11)), accuracy_E=accuracies, class_accuracy_EC=rows)


def test_a_model_at_chance_level_has_no_stability() -> None:
    assert of("stability", chance(*[0.1] * 10)) is None
    assert of("stability (base 10)", chance(*[0.1] * 10)) is None
    assert of("stability", chance(*[0.06, 0.12] * 5)) is None  # on average 0.09, 1 point below chance
    assert of("stability", chance(*[0.125] * 10)) == 0  # 2.5 points above it
    assert of("stability", chance(*[0.075] * 10)) == 0
    # On average 0.1 + 0.04 = 0.14: five at chance do not make the average one of chance.
    assert of("stability", chance(*[0.1, 0.18] * 5)) == pytest.approx(log(1.8) / 2)


def test_the_chance_level_needs_the_number_of_classes() -> None:
    assert of("stability", chance(*[0.5] * 10, classes=2)) is None
    assert of("stability", chance(*[0.5] * 10, classes=10)) == 0
    assert of("stability", chance(*[0.016] * 10, classes=62)) is None
    assert of("stability", run(0.1, *[0.1] * 10)) == 0


# Speed


def test_rounds_to_a_target_are_the_first_evaluated_version_at_it() -> None:
    record = run(0.1, 0.39, 0.4, 0.3, 0.5, every=20)
    assert of("rounds to 40 %", record) == 40
    assert of("rounds to 50 %", record) == 80
    assert of("rounds to 50.5 %", record) is None


def test_rounds_to_an_average_need_ten_evaluations_in_a_row() -> None:
    curve = run(*[0.1] * 5, 0.6, *[0.3] * 9, *[0.5] * 5)
    # Versions 5 to 14 are 0.33 on average, 8 to 17 are 0.36, and 10 to 19 are 0.4.
    assert of("rounds to 32.9 %, averaged", curve) == 14
    assert of("rounds to 35.9 %, averaged", curve) == 17
    assert of("rounds to 39.9 %, averaged", curve) == 19
    assert of("rounds to 40.1 %, averaged", curve) is None
    assert of("rounds to 1 %, averaged", run(*[0.9] * 10)) is None  # nine evaluations and the untrained model


def test_the_last_fifth_counts_rounds() -> None:
    record = Record(version_E=[0, 10, 79, 80, 81, 100], accuracy_E=[0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert of("accuracy of the last fifth", record) == pytest.approx(0.45)


def test_speedup_is_relative_to_fedavg() -> None:
    assert measure("speedup").reference == {"method": "FedAvg"}
    assert of("speedup", run(0.1, 0.4), run(0.1, 0.2, 0.3, 0.4)) == 3
    assert of("speedup", run(0.1, 0.2), run(0.1, 0.4)) is None
    assert of("speedup", run(0.1, 0.4), run(0.1, 0.2)) is None
    assert of("speedup", run(0.1, 0.4)) is None
    assert of("speedup to 20 %", run(0.2), run(0.1, 0.2)) is None  # reached without training


PRINTED_SPEEDUPS = {
    "0.3": "3340 1x 3876 0.9x 4324 0.8x 1904 1.8x 2177 1.5x 2695 1.2x 2954 1.1x 1754 1.9x",
    "1.0": "2182 1x 2370 0.9x 2088 1.0x 1573 1.4x 1289 1.7x 1492 1.5x 1701 1.3x 1089 2.0x",
    "IID": "1391 1x 1562 0.9x 1444 1.0x 1176 1.2x 1013 1.4x 1244 1.1x 1299 1.1x 792 1.8x",
}


@pytest.mark.parametrize("beta", PRINTED_SPEEDUPS)
def test_speedup_gives_the_published_column(beta: str) -> None:
    words = PRINTED_SPEEDUPS[beta].split()
    fedavg = Record(version_E=[int(words[0])], accuracy_E=[0.4])
    for rounds, printed in zip(words[::2], words[1::2], strict=True):
        found = of("speedup", Record(version_E=[int(rounds)], accuracy_E=[0.4]), fedavg)
        assert found is not None
        shown = measure("speedup").text(found)
        assert printed == ("1x" if rounds == words[0] else f"{shown}x")


def test_time_to_match_ends_at_the_final_accuracy_of_direct() -> None:
    direct = classes(*[0.2] * 20, *[0.4] * 10)  # ends with 0.4
    # 0 until version 10, then 0.8: the average of versions 6 to 15 is the first that is half of 0.8.
    assert of("time to match", classes(*[0.0] * 10, *[0.8] * 20), direct) == 15
    assert of("time to match", classes(*[0.3] * 40), direct) is None


def test_direct_takes_the_whole_run_to_match_itself() -> None:
    direct = classes(*[0.4] * 30)
    assert of("time to match", direct, direct) == 30
    assert of("time to match", classes(*[0.4] * 30), direct) == 30  # the same curve is as fast
    assert of("time to match", classes(*[0.5] * 40), direct) == 10  # the first whole average


def test_the_first_passage_applies_to_direct_too() -> None:
    direct = classes(*[0.4] * 30)
    assert of("first passage of class 5", direct, direct) == 10  # the first whole average
    # 0 until version 10, then 0.8: as in the time to match.
    assert of("first passage of class 5", classes(*[0.0] * 10, *[0.8] * 20), direct) == 15
    assert of("first passage of class 5", classes(*[0.3] * 40), direct) is None
    assert of("first passage of class 5", direct) is None


def test_a_prolonged_run_can_take_longer_than_direct() -> None:
    assert of("time to match", classes(*[0.0] * 30, *[0.4] * 10), classes(*[0.4] * 30)) == 40


def test_time_to_match_of_another_class_and_of_no_class() -> None:
    direct = classes(*[0.4] * 12, label=2)
    assert of("time to match of class 2", classes(*[0.5] * 12, label=2), direct) == 10
    assert of("time to match", direct, direct) is None
    assert of("time to match of class 2", direct) is None
    assert of("time to match of class 2", classes(*[0.4] * 9, label=2), classes(*[0.4] * 9, label=2)) is None


def test_the_moving_average_skips_unevaluated_epochs() -> None:
    rows: list[list[float | None]] = [[0.1], [0.3], [0.5]]
    record = Record(version_E=[5, 10, 15], class_accuracy_EC=rows)
    flat = Record(version_E=[5, 10, 15], class_accuracy_EC=[[0.2]] * 3)
    assert of("time to match of class 0", record, flat) == 10  # (0.1 + 0.3) / 2


# Clients


def test_four_clients_by_hand() -> None:
    # In points: 20, 40, 60, 80; squares of the differences from 50 sum to 2000.
    record = Record(client_accuracy_N=[0.8, None, 0.2, 0.6, 0.4])
    assert of("client accuracy mean", record) == pytest.approx(50)
    assert of("client accuracy std", record) == pytest.approx(sqrt(2000 / 3))
    assert of("client accuracy variance", record) == pytest.approx(2000 / 4)
    assert of("client accuracy worst tenth", record) == pytest.approx(20)
    assert of("client accuracy best tenth", record) == pytest.approx(80)
    assert of("client accuracy best tenth std", record) is None  # of one client


def test_a_tenth_is_rounded_up_and_its_deviation_has_n_minus_1() -> None:
    record = Record(client_accuracy_N=[place / 100 for place in range(11)])  # ceil(1.1) = 2 clients
    assert of("client accuracy worst tenth", record) == pytest.approx(0.5)
    assert of("client accuracy worst tenth std", record) == pytest.approx(sqrt(0.5))
    assert of("client accuracy best tenth", record) == pytest.approx(9.5)


@pytest.mark.parametrize(("variance", "std"), [(325, "18.1"), (182.5, "13.6"), (321.6, "18.0"), (432.5, "20.9")])
def test_the_variance_has_n_and_the_deviation_n_minus_1(variance: float, std: str) -> None:
    # Half of 100 clients above the mean by sqrt(variance), half below. The paper prints 20.7 in the last row.
    away = sqrt(variance) / 100
    record = Record(client_accuracy_N=[0.4 + away, 0.4 - away] * 50)
    assert of("client accuracy variance", record) == pytest.approx(variance)
    found = of("client accuracy std", record)
    assert found is not None
    assert measure("client accuracy std").text(found) == std


# Updates, losses and errors


def test_staleness_and_aggregated_gradients_are_means_over_rounds() -> None:
    record = Record(staleness_R=[0.0, 1.0, 5.0], counted_R=[10, 4, 1], heavy_R=[6, 5, 1])
    assert of("average staleness", record) == pytest.approx(2)
    assert of("aggregated gradients", record) == pytest.approx(5)
    assert of("few heavy gradients", record) == pytest.approx(2 / 3)


def test_the_training_loss_averages_the_last_tenth_of_nonempty_rounds() -> None:
    record = Record(training_loss_R=[9.0] * 18 + [1.0, nan, 2.0])  # ceil(21 / 10) = 3 rounds
    assert of("training loss", record) == pytest.approx(1.5)
    assert of("training loss", Record(training_loss_R=[1.0, nan])) is None
    assert of("training loss of all", Record(found={"training_loss": [[10, 2.0], [20, 1.0]]})) == 1.0


def test_errors_are_means_over_the_clients_of_a_round_and_then_over_rounds() -> None:
    record = Record(
        errors=[
            (1, "none", 4.0, 0.4),
            (1, "gradient-inversion", 1.0, 0.1),
            (1, "gradient-inversion", 3.0, 0.3),
            (2, "gradient-inversion", 6.0, 0.6),
        ]
    )
    assert of("E1", record) == pytest.approx((2 + 6) / 2)
    assert of("E1 (cosine)", record) == pytest.approx((0.2 + 0.6) / 2)
    assert of("E2", record) == 4.0
    assert of("E2 (cosine)", record) == 0.4


def test_the_estimate_error_is_that_of_the_inversion_if_any() -> None:
    """An inverting run also records the first-order compensation of each update."""
    errors = [(1, "none", 10.0, 1.0), (1, "first-order", 10.0, 1.0), (1, "gradient-inversion", 4.0, 0.4)]
    assert of("E1", Record(errors=errors)) == 4
    assert of("E1 (cosine)", Record(errors=errors)) == pytest.approx(0.4)
    assert of("E2", Record(errors=errors)) == 10
    assert of("E1", Record(errors=errors[:2])) == 10  # its own
    assert show("E1").of(Record(errors=errors)) == [(1, 4)]
    assert show("E2").of(Record(errors=errors)) == [(1, 10)]


def test_results_of_other_measurements_have_their_name() -> None:
    assert of("inversion loss", Record(found={"inversion loss": 27})) == 27
    assert of("inversion loss", Record(found={"inversion loss": nan})) is None
    assert of("inversion loss", Record(found={"inversion loss": [1, 2]})) is None


# Tests


def test_p_values_cover_all_rounds_or_the_final_accuracies_of_seeds() -> None:
    pairs = [(run(0.1, 0.3, 0.5), run(0.1, 0.2, 0.2)), (run(0.1, 0.4, 0.7), run(0.1, 0.4, 0.4)), (run(0.1), None)]
    rounds, seeds = t_test([0.1, 0.3, 0.0, 0.3]), t_test([0.4 - 0.2, 0.55 - 0.4])
    assert rounds is not None and seeds is not None
    over_rounds, over_seeds = measure("p against FedAR").of_all, measure("p over seeds against FedAR").of_all
    assert over_rounds is not None and over_seeds is not None
    assert over_rounds(pairs) == pytest.approx(rounds.p)
    assert over_seeds(pairs) == pytest.approx(seeds.p)
    assert over_seeds(pairs[:1]) is None  # one seed
    assert measure("p against FedAvg (S=50)").reference == {"method": "FedAvg (S=50)"}


def test_the_leading_method_and_its_lead_are_computed() -> None:
    assert of("ahead of FedAR", run(0.1, 0.3), run(0.1, 0.5)) == pytest.approx(-20)
    assert of("ahead of FedAR", run(0.1, 0.3)) is None
    itself = run(0.1, 0.3)
    assert of("ahead of FedAR", itself, itself) is None
    assert (measure("ahead of FedAR").heading, measure("ahead of FedAR").text(-20)) == (
        "ahead of FedAR, points",
        "-20.00",
    )


# All of them

CONSTANT = Record(
    version_E=list(range(21)),
    accuracy_E=[0.5] * 21,
    class_accuracy_EC=[[0.5] * 10] * 21,
    training_loss_R=[0.5] * 20,
    staleness_R=[0.5] * 20,
)


@pytest.mark.parametrize(
    "name", ["final accuracy", "best accuracy", "training loss", "average staleness", "final accuracy of class 0"]
)
def test_a_constant_curve_has_its_constant_as_every_mean(name: str) -> None:
    assert of(name, CONSTANT) == 0.5


def test_a_constant_curve_is_stable_and_reaches_its_target_at_once() -> None:
    assert of("stability", CONSTANT) == 0
    assert of("rounds to 40 %", CONSTANT) == 0
    assert of("p against FedAvg", CONSTANT, CONSTANT) is None


BROKEN = Record(
    version_E=[0, 1, 2],
    time_E=[nan] * 3,
    accuracy_E=[nan, nan, -inf],
    loss_E=[nan] * 3,
    class_accuracy_EC=[[nan] * 10, [], [None] * 10],
    training_loss_R=[nan, inf],
    staleness_R=[nan],
    client_accuracy_N=[nan, 0.5],
    errors=[(1, "none", nan, inf), (1, "auto", inf, nan)],
    found={"training_loss": [[1, nan]], "ended": "diverged"},
)


@pytest.mark.parametrize("name", [*MEASURES, "p against A", "p over seeds against A", "rounds to 1 %"])
@pytest.mark.parametrize("record", [Record(), BROKEN], ids=["empty", "not a number"])
def test_an_empty_record_has_no_measures(name: str, record: Record) -> None:
    for reference in (None, Record(), BROKEN, CONSTANT, record):
        assert of(name, record, reference) is None


def test_a_measure_has_a_unique_name_and_a_source() -> None:
    for name, one in MEASURES.items():
        assert one.name == name
        assert measure(name) is one
        assert "(docs/methods/measures.md#" in one.what and one.what.endswith(".")
        assert one.of_all is None or one.reference


def test_the_final_error_is_the_mean_of_the_last_ten_values_of_the_main_metric() -> None:
    values = [9.0, 9.0, *map(float, range(10))]
    record = Record(version_E=list(range(12)), found={"main_metric": {"name": "mae", "values_E": values}})
    assert of("final mae", record) == 4.5
    assert measure("final mae") == of_main(MainMetric("mae", higher_is_better=False))


def test_numbers_are_shown_with_their_units() -> None:
    accuracy = measure("final accuracy")
    assert (accuracy.heading, accuracy.text(0.57194)) == ("final accuracy, %", "57.19")
    assert accuracy.difference(-0.0321) == "-3.21 points"
    assert measure("rounds to 40 %").difference(12.0) == "+12 rounds"
    assert measure("stability").heading == "stability"
    assert measure("p against FedAR").text(1.154e-163) == "1.15e-163"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("final acuracy", "unknown measure 'final acuracy'; did you mean 'final accuracy'?"),
        ("final accuracy of class five", "did you mean 'final accuracy of class"),
        ("rounds to 0 %", "the measure 'rounds to 0 %' has a target of 0 %, expected more than 0 and at most 100"),
        ("speedup to 101 %", "'speedup to 101 %' has a target of 101 %"),
    ],
)
def test_an_unknown_measure_is_one_error_sentence(name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        measure(name)
    assert message in str(caught.value)
