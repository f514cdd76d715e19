"""FedHist's presets: cells counted by hand, printed numbers summed by hand from the paper's tables."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from unstale.config import Settings, build
from unstale.config.scenario import Held, conditions
from unstale.seeds import Stream, stream
from unstale.training.partition import create as create_partition
from unstale.training.partition import label_counts, slow_clients, split
from unstale_papers.preset import Cell, Preset
from unstale_papers.presets.fedhist import METHODS, SLOW_HOLDERS, fh_controls, fh_f4, fh_f5, fh_t1, fh_t2


def at(preset: Preset, **labels: str) -> Cell:
    """The one cell with these labels, N/K as `ratio`."""
    wanted = {"N/K" if axis == "ratio" else axis: value for axis, value in labels.items()}
    (found,) = [cell for cell in preset.cells if wanted.items() <= cell.labels.items()]
    return found


def total(preset: Preset, measure: str, **labels: str) -> float:
    """Sum of the numbers as printed over all cells with these labels."""
    wanted = {"N/K" if axis == "ratio" else axis: value for axis, value in labels.items()}
    cells = [cell for cell in preset.cells if wanted.items() <= cell.labels.items()]
    return sum(float(cell.published[measure].text.removesuffix("x")) for cell in cells)


def test_table_1_has_a_cell_for_each_level_method_data_set_and_partition() -> None:
    preset = fh_t1()
    assert len(preset.cells) == 2 * 8 * 3 * 3 == 144
    assert Counter(cell.labels["method"] for cell in preset.cells) == dict.fromkeys(METHODS, 18)


def test_table_1_is_printed_as_the_paper_has_it() -> None:
    preset = fh_t1()
    first = at(preset, data="FMNIST", beta="0.3", ratio="10", method="FedAvg")
    last = at(preset, data="CIFAR-100", beta="IID", ratio="100", method="FedHist")
    assert (first.published["final accuracy"].text, last.published["final accuracy"].text) == ("70.93", "26.70")
    assert last.published["final accuracy"].value == pytest.approx(0.2670)
    assert total(preset, "final accuracy", data="CIFAR-10", beta="0.3", ratio="100") == pytest.approx(376.51)
    assert total(preset, "final accuracy", method="FedHist", ratio="10") == pytest.approx(511.88)
    assert total(preset, "final accuracy") == pytest.approx(7532.79)


def test_table_2_is_printed_as_the_paper_has_it() -> None:
    preset = fh_t2()
    assert len(preset.cells) == 8 * 3
    assert total(preset, "rounds to 40 %", beta="0.3") == 23024
    assert total(preset, "rounds to 40 %", beta="1.0") == 13784
    assert total(preset, "rounds to 40 %", beta="IID") == 9921
    assert at(preset, beta="1.0", method="FedHist").published["speedup"].text == "2.0x"


def test_the_printed_speedups_are_those_of_the_printed_rounds() -> None:
    preset = fh_t2()
    for cell in preset.cells:
        reference = at(preset, beta=cell.labels["beta"], method="FedAvg").published["rounds to 40 %"].value
        rounds = cell.published["rounds to 40 %"].value
        assert cell.published["speedup"].value == round(reference / rounds, 1), cell.name


def test_table_2_is_the_part_of_table_1_on_cifar_10_at_the_high_level() -> None:
    whole = fh_t1()
    for cell in fh_t2().cells:
        other = at(whole, data="CIFAR-10", ratio="100", **cell.labels)
        assert cell.settings == other.settings
        assert cell.published["final accuracy"] == other.published["final accuracy"]


@pytest.mark.parametrize(("ratio", "clients"), [("10", 100), ("100", 1000)])
def test_the_level_of_staleness_is_the_clients_over_the_updates_of_a_round(ratio: str, clients: int) -> None:
    for cell in fh_t1().cells:
        if cell.labels["N/K"] == ratio:
            assert cell.settings.clients == clients
            assert cell.settings.trigger.k == 10


def test_the_methods_differ_only_in_policy_and_local_training() -> None:
    cells = [at(fh_t2(), beta="0.3", method=method) for method in METHODS]
    common = {cell.settings.model_dump_json(exclude={"policy", "training"}) for cell in cells}
    assert len(common) == 1
    steps = [
        cell.settings.training.model_copy(update={"name": "sgd", "mu": None, "temperature": None}) for cell in cells
    ]
    assert len({one.model_dump_json() for one in steps}) == 1


@pytest.mark.parametrize(("ratio", "h"), [("10", 5), ("100", 50)])
def test_fedhist_looks_back_half_as_many_rounds_as_the_level_of_staleness(ratio: str, h: int) -> None:
    settings = at(fh_f4(), beta="0.3", ratio=ratio, method="FedHist").settings
    made = build.policy_in_small(settings)
    assert made.state_dict()["h"] == h


def test_each_ablation_lacks_one_part_and_the_full_method_is_that_of_table_1() -> None:
    preset, whole = fh_f4(), fh_t1()
    assert len(preset.cells) == 2 * 2 * 4
    labels = {"beta": "1.0", "ratio": "10"}
    full = at(preset, method="FedHist", **labels).settings
    assert full == at(whole, data="CIFAR-10", method="FedHist", **labels).settings
    lacking = {}
    for method in ("w/o-EGS", "w/o-HAA", "w/o-INA"):
        given = at(preset, method=method, **labels).settings.policy.settings
        lacking[method] = {key: value for key, value in given.items() if value != full.policy.settings[key]}
    assert lacking == {"w/o-EGS": {"egs": False}, "w/o-HAA": {"haa": "off"}, "w/o-INA": {"ina": False}}


def test_a_control_is_its_method_of_table_1_with_the_mean_length_of_updates() -> None:
    preset, whole = fh_controls(), fh_t1()
    labels = {"data": "CIFAR-10", "beta": "0.3", "ratio": "10"}
    for method in ("FedAvg", "DynSGD", "REFL"):
        printed = at(whole, method=method, **labels).settings
        assert at(preset, rate="shared", method=method).settings == printed
        longer = printed.policy.model_copy(update={"norm": "mean-of-updates"})
        control = at(preset, rate="shared", method=f"{method}+INA").settings
        assert control == printed.model_copy(update={"policy": longer})


def test_fedhist_without_utilities_differs_in_their_weight_alone() -> None:
    full, without = (
        at(fh_controls(), rate="shared", method=method).settings for method in ("FedHist", "FedHist (lambda=0)")
    )
    assert full == at(fh_t1(), data="CIFAR-10", beta="0.3", ratio="10", method="FedHist").settings
    assert without.policy.settings == {**full.policy.settings, "utility_weight": 0.0}
    assert without.model_copy(update={"policy": full.policy}) == full


def test_tuned_controls_differ_from_the_shared_ones_in_their_rates_alone() -> None:
    for cell in fh_controls().cells:
        shared = at(fh_controls(), rate="shared", method=cell.labels["method"]).settings
        training = cell.settings.training.model_copy(update={"learning_rate": 0.01})
        policy = cell.settings.policy.model_copy(update={"server_multiplier": 1.0})
        assert cell.settings.model_copy(update={"training": training, "policy": policy}) == shared


def test_the_fairness_figure_has_the_methods_of_table_1_on_two_data_sets() -> None:
    preset = fh_f5()
    assert len(preset.cells) == 2 * 2 * 2 * 8
    assert {cell.settings.partition.name for cell in preset.cells} == {"slow-class"}
    assert {cell.scenario for cell in preset.cells} == {SLOW_HOLDERS}


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_only_the_holders_of_the_tenth_class_are_slow(beta: float, tmp_path: Path) -> None:
    labels_n = torch.arange(10).repeat_interleave(300).numpy()
    settings = at(fh_f5(), data="CIFAR-10", beta=f"{beta:.1f}", ratio="10", method="FedHist").settings
    shares = split(create_partition(settings.partition), labels_n, settings.clients, stream(0, Stream.PARTITION))
    counts_NC = label_counts(shares, labels_n, 10)
    file = tmp_path / "slow.yaml"
    file.write_text(SLOW_HOLDERS)
    with_scenario = Settings(clients=settings.clients, scenario={"name": str(file)})
    devices = conditions(with_scenario, of=Held(counts_NC)).devices
    ordinary = conditions(
        Settings(clients=settings.clients, scenario={"name": "exponential"}), of=Held(counts_NC)
    ).devices
    slow = {
        client
        for client in range(settings.clients)
        if devices.duration_s(client, 0, 5) == 2 * ordinary.duration_s(client, 0, 5)
    }
    holders = {client for client in range(settings.clients) if counts_NC[client, 9]}
    assert slow == holders
    assert slow <= set(slow_clients(settings.clients, 0.1))
    assert len(slow) > 1
