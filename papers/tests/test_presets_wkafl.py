"""WKAFL's presets: cells counted by hand, printed numbers summed by hand from the paper's tables."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from unstale.config import build
from unstale.policies.policy import UpdateBatch
from unstale_papers.preset import Cell, Preset
from unstale_papers.presets.wkafl import wk_f2, wk_f5, wk_f6, wk_t2, wk_t3
from unstale_papers.scale import Scale, scaled


def at(preset: Preset, **labels: str) -> Cell:
    """The one cell with these labels, P/K as `ratio`."""
    wanted = {"P/K" if axis == "ratio" else axis: value for axis, value in labels.items()}
    (found,) = [cell for cell in preset.cells if wanted.items() <= cell.labels.items()]
    return found


def total(preset: Preset, measure: str, method: str) -> float:
    cells = [cell for cell in preset.cells if cell.labels["method"] == method]
    return sum(cell.published[measure].value for cell in cells)


def test_table_2_is_printed_as_the_paper_has_it() -> None:
    preset = wk_t2()
    assert len(preset.cells) == 2 * 3 * 3
    assert total(preset, "final accuracy", "WKAFL") == pytest.approx(4.1989)
    assert total(preset, "final accuracy", "TWAFL") == pytest.approx(4.0796)
    assert total(preset, "final accuracy", "SASGD") == pytest.approx(3.4522)
    assert at(preset, data="EMNIST-MNIST", ratio="100", method="TWAFL").published["final accuracy"].text == "0.962"


def test_table_3_is_printed_as_the_paper_has_it() -> None:
    preset = wk_t3()
    assert len(preset.cells) == 2 * 3 * 4
    sums = {"WKAFL": (4.2440, 0.0761), "TWAFL": (4.1964, 0.1286), "GSGM": (3.7778, 0.0439), "SASGD": (3.4214, 0.1833)}
    for method, (accuracy, stability) in sums.items():
        assert total(preset, "final accuracy", method) == pytest.approx(accuracy)
        assert total(preset, "stability", method) == pytest.approx(stability)


def test_the_staleness_levels_of_table_2_are_clients_over_updates_per_round() -> None:
    sizes = {
        (cell.labels["data"], cell.labels["P/K"]): (cell.settings.clients, cell.settings.trigger.k)
        for cell in wk_t2().cells
    }
    assert sizes == {
        ("EMNIST-MNIST", "100"): (1000, 10),
        ("EMNIST-MNIST", "150"): (3000, 20),
        ("EMNIST-MNIST", "300"): (3000, 10),
        ("CIFAR-10", "50"): (1000, 20),
        ("CIFAR-10", "150"): (3000, 20),
        ("CIFAR-10", "300"): (3000, 10),
    }


def test_both_tables_share_the_runs_with_one_label() -> None:
    second, third = wk_t2(), wk_t3()
    for data, ratio in (("EMNIST-MNIST", "300"), ("CIFAR-10", "150")):
        for method in ("WKAFL", "TWAFL", "SASGD"):
            one = at(second, data=data, ratio=ratio, method=method)
            other = at(third, data=data, L_num="1", method=method)
            assert one.settings == other.settings
    assert at(second, data="CIFAR-10", ratio="150", method="TWAFL").published["final accuracy"].text == "0.4241"
    assert at(third, data="CIFAR-10", L_num="1", method="TWAFL").published["final accuracy"].text == "0.4141"


@pytest.mark.parametrize(
    ("data", "constants"),
    [
        ("CIFAR-10", (8, 0.0005, 70, 5, 50, 0.01, 3500, 10000, 100, "lenet_cifar", 5000)),
        ("EMNIST-MNIST", (4, 0.005, 100, 10, 10, 0.1, 1000, 5000, 50, "emnist_cnn", 6000)),
        ("EMNIST-ByClass", (16, 0.005, 100, 10, 10, 0.1, 5000, 10000, 100, "emnist_cnn", None)),
        ("CelebA", (4, 0.0001, 500, 5, 20, 0.05, 1000, 5000, 100, "celeba_cnn", None)),
    ],
)
def test_constants_are_those_of_the_released_code(data: str, constants: tuple[object, ...]) -> None:
    preset = wk_f5() if data in ("CelebA", "EMNIST-ByClass") else wk_t3()
    cell = next(cell for cell in preset.cells if cell.labels["data"] == data and cell.labels["method"] == "WKAFL")
    settings, own = cell.settings, cell.settings.policy.settings
    assert constants == (
        settings.training.batch_size,
        settings.training.learning_rate,
        own["clip_bound"],
        own["stage_two_bound"],
        own["beta"],
        own["gamma"],
        own["stage_two_round"],
        settings.rounds,
        settings.evaluate_every,
        settings.model.name,
        settings.partition.pool,
    )
    assert (own["similarity_min"], own["alpha"]) == (0.3, 0.1)
    assert (settings.training.name, settings.data.normalise) == ("gradient", "raw")


def test_rates_depend_on_data_and_method() -> None:
    rates = {
        (cell.labels["data"], cell.labels["method"]): cell.settings.training.learning_rate
        for preset in (wk_t2(), wk_t3(), wk_f6())
        for cell in preset.cells
    }
    of_wkafl = {"EMNIST-MNIST": 0.005, "CIFAR-10": 0.0005, "EMNIST-ByClass": 0.005, "CelebA": 0.0001}
    others = {("EMNIST-MNIST", "TWAFL"): 0.0005, ("EMNIST-MNIST", "GSGM"): 0.000001, ("CIFAR-10", "GSGM"): 0.00001}
    methods = ("WKAFL", "TWAFL", "GSGM", "SASGD")
    assert rates == {(data, method): rate for data, rate in of_wkafl.items() for method in methods} | others


@pytest.mark.parametrize("make", [wk_t2, wk_t3, wk_f6])
def test_each_method_s_rate_has_a_source(make: Callable[[], Preset]) -> None:
    preset = make()
    text = " ".join(one.key for one in preset.sources if one.key.startswith("training.learning_rate of"))
    methods = {cell.labels["method"] for cell in preset.cells} - {"WKAFL"}
    assert all(method in text for method in methods)
    assert any(one.key == "training.learning_rate" and one.tag == "R:WK" for one in preset.sources)


def test_a_claim_with_the_printed_margin_has_a_claim_of_direction_beside_it() -> None:
    for preset, texts in (
        (wk_t2(), ["WKAFL gains up to 19.41 %"]),
        (wk_t3(), ["WKAFL gains 10.59 % over GSGM", "WKAFL gains 92.8 % of stability"]),
    ):
        for text in texts:
            (exact,) = [claim for claim in preset.claims if claim.text.startswith(text)]
            nothing_more = replace(exact, text="", at_least=1.0 if exact.as_ratio else 0.0)
            assert [replace(claim, text="") for claim in preset.claims].count(nothing_more) == 1


def test_the_figures_on_natural_clients_share_wkafl_and_each_ablation_lacks_one_part() -> None:
    ablations, methods = wk_f5(), wk_f6()
    assert len(ablations.cells) == len(methods.cells) == 2 * 4
    for data, clients, k in (("CelebA", 2000, 15), ("EMNIST-ByClass", 3000, 20)):
        whole = at(ablations, data=data, method="WKAFL").settings
        assert (whole.clients, whole.trigger.k, whole.partition.name) == (clients, k, "natural")
        assert whole == at(methods, data=data, method="WKAFL").settings
        assert at(methods, data=data, method="GSGM").settings.policy.settings["alpha"] == 0.9
        for method, flag in (
            ("No-GradSel", "no_gradient_selection"),
            ("No-Staleness", "no_staleness"),
            ("No-NonIIDness", "no_non_iidness"),
        ):
            given = at(ablations, data=data, method=method).settings.policy.settings
            assert given == {**whole.policy.settings, flag: True}


def test_the_second_figure_weights_only_by_staleness_at_one_learning_rate() -> None:
    cell = at(wk_f2(), K="10")
    assert (cell.settings.clients, cell.settings.trigger.k) == (1000, 10)
    policy = build.policy_in_small(cell.settings)
    step = policy.step(
        UpdateBatch(
            matrix_Kd=torch.tensor([[1.0], [-1.0]]),
            staleness_K=torch.tensor([4, 5]),
            num_examples_K=torch.tensor([10, 10]),
            loss_K=torch.zeros(2),
            client_ids_K=torch.tensor([0, 1]),
            version=7,
        )
    )
    fresher = 1 / (1 + 2 / 2.718281828459045)  # of weights 1 and (e/2)^-1
    assert step.weights_K.tolist() == pytest.approx([fresher, 1 - fresher])
    assert step.rate_factor == 1


def test_stage_two_starts_earlier_in_proportion_to_a_shorter_run() -> None:
    cell = at(wk_t3(), data="CIFAR-10", L_num="1", method="WKAFL")
    assert scaled(cell, Scale(rounds=0.1)).settings.policy.settings["stage_two_round"] == 350
