"""Wang and Gao's presets: cells counted by hand, printed numbers from the paper's tables, late clients."""

from pathlib import Path

import numpy as np
import pytest

from unstale.config import Settings
from unstale.config.compensation import local_steps
from unstale.config.scenario import Held, conditions
from unstale_papers.preset import Cell, Preset
from unstale_papers.presets.inversion import PRESETS, gi_f8, gi_f9, gi_f11, gi_f12, gi_f14
from unstale_papers.presets.inversion_parts import gi_f2, gi_f5, gi_f6, gi_f7, gi_t1, gi_t2
from unstale_papers.presets.inversion_setup import METHODS
from unstale_papers.presets.inversion_tables import gi_t3, gi_t3_momentum, gi_t4, gi_t5, gi_t6
from unstale_papers.scale import Scale, scaled

CLASS_5, TIME = "final accuracy of class 5", "time to match"


def at(preset: Preset, **labels: str) -> Cell:
    """The one cell with these labels."""
    (found,) = [cell for cell in preset.cells if labels.items() <= cell.labels.items()]
    return found


def total(preset: Preset, measure: str, **labels: str) -> float:
    """Sum of the numbers of the cells with these labels that have one."""
    cells = [cell for cell in preset.cells if labels.items() <= cell.labels.items()]
    return sum(cell.published[measure].value for cell in cells if measure in cell.published)


def late(cell: Cell, tmp_path: Path) -> dict[int, int]:
    """Staleness in rounds of each of 20 clients, of which client i has i examples of the affected class."""
    assert cell.scenario is not None
    file = tmp_path / "late.yaml"
    file.write_text(cell.scenario)
    label = 2 if cell.settings.data.name == "cifar10" else 5
    counts = [[20 - client] * label + [client] + [0] * (9 - label) for client in range(20)]
    settings = Settings(clients=20, scenario={"name": str(file)})
    return dict(conditions(settings, of=held(counts)).stale_rounds)


def held(counts: list[list[int]]) -> Held:
    return Held(np.array(counts))


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        *(("gi-f1", 3), ("gi-f2", 2), ("gi-f4", 3), ("gi-f5", 1), ("gi-f6", 6 * 2), ("gi-f7", 4)),
        *(("gi-f8", 2), ("gi-f9", 7), ("gi-f11", 6), ("gi-f12", 6), ("gi-f14", 5)),
        *(("gi-t1", 6), ("gi-t2", 6), ("gi-t3", 3 * 4), ("gi-t4", 3 * 4), ("gi-t5", 3 * 4), ("gi-t6", 3 * 4)),
        ("gi-t3-momentum", 2 * 4),
    ],
)
def test_each_preset_has_its_cells(name: str, cells: int) -> None:
    assert len(PRESETS[name]().cells) == cells


def test_no_row_of_the_index_is_missing() -> None:
    assert len(PRESETS) == 18


@pytest.mark.parametrize("method", ["GI", "GI (ours)", "direct", "first order"])
def test_table_3_is_offered_with_the_printed_momentum_beside_its_own_runs(method: str) -> None:
    without, with_it = (at(gi_t3_momentum(), momentum=text, method=method) for text in ("0", "0.5"))
    as_in_table_3 = at(gi_t3(), staleness="40", method=method)
    assert (without.settings, without.scenario) == (as_in_table_3.settings, as_in_table_3.scenario)
    assert with_it.settings.training.momentum == 0.5
    assert local_steps(with_it.settings).momentum == 0.5
    assert with_it.settings.training.model_copy(update={"momentum": 0.0}) == without.settings.training


def test_tables_3_to_6_are_printed_as_the_paper_has_them() -> None:
    """Sums by hand, over the three rows of a table."""
    for preset, epochs, percents in (
        (gi_t3(), (1960, 2400, 2390), (226.2, 219.6, 219.6)),
        (gi_t4(), (2140, 2400, 2420), (238.7, 232.7, 232.2)),
        (gi_t5(), (1910, 2400, 2420), (166.6, 138.7, 138.8)),
        (gi_t6(), (1100, 2400, 2450), (134.3, 101.1, 101.0)),
    ):
        for method, rounds, percent in zip(("GI", "direct", "first order"), epochs, percents, strict=True):
            assert total(preset, TIME, method=method) == rounds, (preset.name, method)
            assert 100 * total(preset, CLASS_5, method=method) == pytest.approx(percent), (preset.name, method)
        assert total(preset, TIME, method="GI (ours)") == 0


def test_printed_numbers_are_in_their_rows() -> None:
    assert at(gi_t3(), staleness="20", method="GI").published[CLASS_5].text == "75.2 %"
    assert at(gi_t4(), alpha="1", method="first order").published[TIME].text == "800"
    assert at(gi_t5(), staleness="40", method="GI").published[TIME].text == "440"
    assert at(gi_t6(), rate="1/3", method="direct").published[CLASS_5].value == pytest.approx(0.326)


def test_costs_are_printed_as_the_paper_has_them() -> None:
    for preset, seconds, losses in ((gi_t1(), 3494, 38.49), (gi_t2(), 7756, 2.84)):
        assert total(preset, "inversion seconds") == seconds
        assert total(preset, "inversion loss") == pytest.approx(losses)
    half = at(gi_t1(), size="1/2")
    assert (half.published["inversion seconds"].text, half.published["inversion loss"].text) == ("219", "1.74")


def test_sizes_are_shares_of_the_clients_examples() -> None:
    shares = [cell.settings.compensator.settings["images_share"] for cell in gi_t1().cells]
    assert shares == [1 / 64, 1 / 16, 1 / 4, 1 / 2, 2, 10]


def test_methods_differ_only_in_policy_and_compensator() -> None:
    cells = gi_f11().cells
    assert [cell.labels["method"] for cell in cells] == list(METHODS)
    assert len({cell.settings.model_dump_json(exclude={"policy", "compensator"}) for cell in cells}) == 1
    assert len({cell.scenario for cell in cells}) == 1


def test_a_tenth_of_the_clients_participates_in_turn_with_all_examples() -> None:
    for name, made in PRESETS.items():
        for cell in made().cells:
            settings = cell.settings
            assert (settings.clients, settings.selector.size, settings.selector.name) == (100, 10, "round-robin"), name
            assert (settings.trigger.name, settings.training.epochs) == ("sync", 5)
            assert settings.training.momentum == float(cell.labels.get("momentum", 0))
            assert settings.training.batch_size >= (settings.partition.budget or 600)


@pytest.mark.parametrize("rounds", ["10", "20", "40"])
def test_table_3_makes_the_holders_of_class_5_late(rounds: str, tmp_path: Path) -> None:
    found = late(at(gi_t3(), staleness=rounds, method="direct"), tmp_path)
    assert found == dict.fromkeys(range(10, 20), int(rounds))


def test_figure_12_makes_the_holders_of_class_2_late(tmp_path: Path) -> None:
    cell = at(gi_f12(), method="GI")
    assert (cell.settings.data.name, cell.settings.model.name) == ("cifar10", "resnet8")
    assert late(cell, tmp_path) == dict.fromkeys(range(10, 20), 40)


def test_figure_1_makes_the_holders_of_class_5_late(tmp_path: Path) -> None:
    cell = PRESETS["gi-f1"]().cells[0]
    assert cell.scenario is not None
    file = tmp_path / "late.yaml"
    file.write_text(cell.scenario)
    counts = [[0] * 4 + [1, 5] + [0] * 4, [0] * 5 + [6] + [0] * 4, [0] * 5 + [2, 4] + [0] * 3]
    settings = Settings(clients=3, scenario={"name": str(file)})
    assert dict(conditions(settings, of=held(counts)).stale_rounds) == {1: 40, 2: 40}


def test_tables_and_figures_share_equal_runs() -> None:
    """Staleness 40 with alpha 0.1, and rate 1/2."""
    for one, other in (
        (at(gi_t3(), staleness="40", method="GI"), at(gi_f11(), method="GI")),
        (at(gi_t3(), staleness="40", method="first order"), at(gi_t4(), alpha="0.1", method="first order")),
        (at(gi_t5(), staleness="40", method="direct"), at(gi_t6(), rate="1/2", method="direct")),
        (at(gi_t6(), rate="1/2", method="GI (ours)"), at(gi_f14(), method="GI (ours)")),
    ):
        assert (one.settings, one.scenario, one.in_rounds, one.in_iterations) == (
            other.settings,
            other.scenario,
            other.in_rounds,
            other.in_iterations,
        )


def test_table_4_is_by_alpha_and_table_6_by_rate() -> None:
    assert {cell.settings.partition.alpha for cell in gi_t4().cells} == {100, 1, 0.1}
    assert {cell.settings.data.variant.rate for cell in gi_t6().cells} == {1 / 4, 1 / 3, 1 / 2}
    assert {cell.settings.data.variant.name for cell in gi_t5().cells} == {"svhn"}


def test_iterations_scale_apart_from_rounds_and_own_ones_do_not() -> None:
    iterations = "compensator.settings.iterations"
    published, ours, switched = (at(gi_f11(), method="GI"), at(gi_f11(), method="GI (ours)"), at(gi_f9(), switch="155"))
    assert (published.in_rounds, published.in_iterations) == ((), (iterations,))
    assert (ours.in_rounds, ours.in_iterations) == ((), ())
    assert (switched.in_rounds, switched.in_iterations) == ((), (iterations,))
    fewer_rounds = scaled(switched, Scale(rounds=0.5)).settings.compensator.settings
    assert (fewer_rounds["iterations"], fewer_rounds["last_round"]) == (15_000, 78)
    fewer = scaled(switched, Scale(iterations=0.02)).settings
    assert (fewer.rounds, fewer.compensator.settings["iterations"]) == (800, 300)


def test_late_clients_and_deciding_errors_scale_alike() -> None:
    small = scaled(at(gi_t3(), staleness="40", method="GI"), Scale(clients=0.3))
    assert small.scenario is not None and "top: 3" in small.scenario
    assert small.settings.compensator.settings["window"] == 3


def test_less_data_reduces_each_clients_share_of_an_unreduced_data_set() -> None:
    small = scaled(at(gi_f12(), method="GI"), Scale(data=0.1)).settings
    assert (small.partition.budget, small.data.share) == (45, 1)
    by_share = scaled(at(gi_f2(), method="direct"), Scale(data=0.1)).settings
    assert (by_share.partition.budget, by_share.data.share) == (None, 0.1)


def test_inversion_is_compared_with_both_other_methods_as_printed() -> None:
    """The last rows of Tables 3 and 5: 800 / 580 and 820 / 440 times as fast, 77.7 - 73.7 and 60.2 - 40.7 ahead."""
    for preset, measure, method, at_least in (
        (gi_t3(), TIME, "direct", 800 / 580),
        (gi_t5(), TIME, "first order", 820 / 440),
        (gi_t3(), CLASS_5, "first order", 0.04),
        (gi_t5(), CLASS_5, "direct", 0.195),
    ):
        (claim,) = (one for one in preset.claims if one.measure == measure and one.worse["method"] == method)
        assert claim.at_least == pytest.approx(at_least)
    for preset in (gi_t3(), gi_t4(), gi_t5(), gi_t6(), gi_f11()):
        assert "first passage of class 5" in preset.measures
    assert any(
        one.measure == "time to match of class 5" and one.worse == {"method": "first order"} for one in gi_f11().claims
    )


def test_inversion_runs_to_the_end_where_its_errors_are_measured() -> None:
    assert [cell.settings.compensator.settings["switch"] for cell in gi_f8().cells] == ["never", "never"]


def test_errors_are_measured_for_up_to_sixty_rounds() -> None:
    for preset in (gi_f2(), gi_f7()):
        for cell in preset.cells:
            assert tuple(cell.options["staleness"]) == tuple(range(0, 61, 10))
            assert cell.settings.partition.name == "blocks"
    assert (gi_f2().cells[0].settings.model.name, gi_f7().cells[0].settings.model.name) == ("cnn3", "lenet_gi")


def test_figure_6_changes_up_to_half_of_the_data() -> None:
    preset = gi_f6()
    assert sorted({cell.options["changed"] for cell in preset.cells}) == [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert total(preset, "iterations saved") == pytest.approx(0.43 + 0.15)


def test_figure_5_inverts_an_invertible_model() -> None:
    (cell,) = gi_f5().cells
    assert (cell.settings.model.name, cell.settings.model.norm) == ("resnet18", "group")
