"""FedAR's presets: cells counted by hand, printed numbers from the paper's tables, availability of clients."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from support.toxics import task
from unstale.config import Settings, build
from unstale.config.scenario import Held, conditions
from unstale.config.settings import ScenarioSettings
from unstale.policies import UpdateBatch, create
from unstale.toxics.link import ToxicLink
from unstale_papers.pairs import compared
from unstale_papers.preset import Cell, Preset
from unstale_papers.presets.fedar import PRESETS, ar_f1, ar_f2, ar_f4, ar_f5, ar_t3
from unstale_papers.presets.fedar_setup import METHODS, WITHOUT_S

P_VALUE = "p against FedAR"


def at(preset: Preset, **labels: str) -> Cell:
    """The one cell with these labels."""
    (found,) = [cell for cell in preset.cells if labels.items() <= cell.labels.items()]
    return found


def likelihoods(cell: Cell, tmp_path: Path) -> tuple[float, ...]:
    """The availability p_i of each client."""
    settings = cell.settings
    if cell.scenario is not None:
        file = tmp_path / "there.yaml"
        file.write_text(cell.scenario)
        settings = Settings(clients=settings.clients, scenario={"name": str(file)})
    found = conditions(settings).availability
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "cells"),
    [("ar-f1", 2 * 7), ("ar-f2", 3 * 2 * 7), ("ar-t3", 2 * 3 + 1), ("ar-f4", 5 * 5), ("ar-f5", 5 * 5)],
)
def test_each_preset_has_its_cells(name: str, cells: int) -> None:
    assert len(PRESETS[name]().cells) == cells


def test_each_method_is_in_figure_2_for_each_data_set_and_availability() -> None:
    assert Counter(cell.labels["method"] for cell in ar_f2().cells) == dict.fromkeys(METHODS, 6)
    assert len(WITHOUT_S) == 5


def test_table_2_is_printed_as_the_paper_has_it() -> None:
    preset = ar_f2()
    printed = [cell.published[P_VALUE].text for cell in preset.cells if P_VALUE in cell.published]
    assert len(printed) == 4 * 5
    for data, p_min, method, text in (
        ("CIFAR-10", "0.1", "FedVARP", "1.15e-163"),
        ("CIFAR-10", "0.5", "MIFA", "0.0"),
        ("CIFAR-10", "0.5", "FedAvg (S=50)", "3.46e-316"),
        ("SVHN", "0.1", "FedVARP", "0.00029"),
        ("SVHN", "0.5", "Scaffold", "1.71e-81"),
        ("SVHN", "0.5", "FedAvg-IS", "1.96e-116"),
    ):
        number = at(preset, data=data, p_min=p_min, method=method).published[P_VALUE]
        assert (number.text, number.value) == (text, float(text))


def test_the_text_on_figure_2_is_included() -> None:
    first = at(ar_f2(), data="CIFAR-10", p_min="0.1", method="FedAR").published
    assert first["final accuracy"].value == 0.44
    assert first["training loss of all"].value == 1.5
    assert P_VALUE not in first


def test_table_3_is_printed_as_the_paper_has_it() -> None:
    cells = [cell for cell in ar_t3().cells if cell.published]
    assert [cell.labels["method"] for cell in cells] == ["FedAR", "MIFA", "FedVARP", "FedAvg"]

    def sum_of(measure: str) -> float:
        return sum(cell.published[f"client accuracy {measure}"].value for cell in cells)

    assert sum_of("mean") == pytest.approx(157.2)
    assert sum_of("variance") == pytest.approx(1261.6)
    assert sum_of("worst tenth") == pytest.approx(81.1)
    assert sum_of("best tenth") == pytest.approx(264.9)
    assert cells[1].published["client accuracy mean"].text == "34.0 ± 13.6"


def test_the_printed_deviations_match_the_printed_variances_except_fedvarps() -> None:
    """Deviation with 99, variance with 100, of 100 clients."""
    for method, agrees in (("FedAR", True), ("MIFA", True), ("FedVARP", False), ("FedAvg", True)):
        printed = at(ar_t3(), availability="independent", method=method).published
        deviation = float(printed["client accuracy mean"].text.partition(" ± ")[2])
        variance = printed["client accuracy variance"].value
        assert (round((variance * 100 / 99) ** 0.5, 1) == deviation) is agrees


def test_methods_differ_only_in_policy_and_scaffold_corrections() -> None:
    """They also differ in the first round, in which all clients of MIFA are available."""
    cells = [at(ar_f2(), data="CIFAR-10", p_min="0.1", method=method) for method in METHODS]
    left_out = {"policy", "training", "scenario"}
    assert len({cell.settings.model_dump_json(exclude=left_out) for cell in cells}) == 1
    assert {(cell.settings.scenario.name, cell.scenario) for cell in cells if cell.labels["method"] != "MIFA"} == {
        ("availability-01", None)
    }
    trainings = {cell.settings.training.model_copy(update={"name": "sgd"}).model_dump_json() for cell in cells}
    assert len(trainings) == 1
    assert at(ar_f2(), data="SVHN", p_min="0.5", method="Scaffold").settings.training.name == "scaffold"


def test_every_run_trains_as_the_paper_specifies() -> None:
    for made in PRESETS.values():
        for cell in made().cells:
            training = cell.settings.training
            assert (training.epochs or training.steps, training.batch_size, training.learning_rate) == (5, 64, 0.1)
            assert training.weight_decay == 0.001
            assert (cell.settings.partition.name, cell.settings.partition.classes) == ("classes", 2)
            assert (cell.settings.trigger.name, cell.settings.selector.name) == ("sync", "all")


def test_only_logistic_regression_has_a_decaying_rate_and_the_convex_cutoff() -> None:
    for cell in ar_f2().cells:
        convex = cell.labels["data"] == "MNIST"
        rate_of = build.learning_rate(cell.settings.training, cell.settings.rounds)
        assert rate_of(9) == pytest.approx(0.01 if convex else 0.1)
        if cell.labels["method"] == "FedAR":
            assert cell.settings.policy.settings["cutoff"] == ("convex" if convex else "nonconvex")


@pytest.mark.parametrize("p_min", ["0.1", "0.2", "0.3", "0.4", "0.5"])
def test_clients_are_available_at_least_as_often_as_the_axis_specifies(p_min: str, tmp_path: Path) -> None:
    """p_i is uniform above p_min: the mean of 100 is (1 + p_min) / 2, within four of its standard deviations."""
    likely = likelihoods(at(ar_f4(), p_min=p_min, method="MIFA"), tmp_path)
    least = float(p_min)
    assert len(likely) == 100
    assert min(likely) >= least
    deviation = (1 - least) / 12**0.5 / 100**0.5
    assert sum(likely) / 100 == pytest.approx((1 + least) / 2, abs=4 * deviation)


def present(cell: Cell, tmp_path: Path, version: int) -> list[bool]:
    """Whether each of ten clients accepts the task of a version."""
    settings = cell.settings.model_copy(update={"clients": 10})
    if cell.scenario is not None:
        file = tmp_path / "there.yaml"
        file.write_text(cell.scenario)
        settings = settings.model_copy(update={"scenario": ScenarioSettings(name=str(file))})
    way = ToxicLink(conditions(settings, of=Held(np.eye(10, dtype=int))).toxics, 0)
    return [not way.send(task(client_id=client, version=version))[0].declined for client in range(10)]


@pytest.mark.parametrize(
    ("preset", "labels"),
    [
        (ar_f2, {"data": "SVHN", "p_min": "0.5"}),
        (ar_f4, {"p_min": "0.3"}),
        (ar_f5, {"clients": "80"}),
        (ar_t3, {"availability": "independent"}),
        (ar_t3, {"availability": "by smallest class"}),
    ],
)
def test_all_clients_answer_in_the_first_round_of_mifa_and_later_as_for_the_others(
    preset: Callable[[], Preset], labels: dict[str, str], tmp_path: Path
) -> None:
    ours, others = (at(preset(), **labels, method=method) for method in ("MIFA", "FedVARP"))
    assert ours.settings.policy.settings["init"] == "force"
    assert all(present(ours, tmp_path, 0))
    for version in range(1, 30):
        assert present(ours, tmp_path, version) == present(others, tmp_path, version)
    assert not all(all(present(others, tmp_path, version)) for version in range(30))


def test_fedar_is_compared_with_each_method_of_the_paper() -> None:
    for preset in (ar_f2(), ar_f4()):
        for claim in preset.claims:
            against = {worse.labels["method"] for _, worse in compared(preset, claim) if worse is not None}
            assert "FedAvg (S=50, waits)" not in against
            assert {"MIFA", "FedVARP", "FedAvg-IS", "Scaffold"} <= against
            assert claim.each is (claim.at_least > 0)
    assert [claim.at_least for claim in (*ar_f2().claims, *ar_f4().claims) if claim.each] == [0.03, 0.02]


def test_figures_share_equal_runs() -> None:
    for method in WITHOUT_S:
        first = at(ar_f2(), data="CIFAR-10", p_min="0.1", method=method)
        for other in (at(ar_f4(), p_min="0.1", method=method), at(ar_f5(), clients="100", method=method)):
            assert (first.settings, first.options, first.scenario) == (other.settings, other.options, other.scenario)
        mild = at(ar_f2(), data="CIFAR-10", p_min="0.5", method=method)
        assert mild.settings == at(ar_f4(), p_min="0.5", method=method).settings
    assert (
        at(ar_t3(), availability="independent", method="FedAR").settings
        == at(ar_f2(), data="CIFAR-10", p_min="0.1", method="FedAR").settings
    )


@pytest.mark.parametrize(("available", "counted"), [(100, 50), (99, 49), (75, 37), (55, 27), (10, 5)])
def test_fedavg_s_counts_half_of_the_available_clients(available: int, counted: int) -> None:
    chosen = at(ar_f2(), data="CIFAR-10", p_min="0.1", method="FedAvg (S=50)").settings.policy
    policy = create(chosen.name, dimension=1, clients=100, **chosen.settings)
    batch = UpdateBatch(
        version=0,
        matrix_Kd=torch.ones(available, 1),
        staleness_K=torch.zeros(available, dtype=torch.int64),
        num_examples_K=torch.ones(available, dtype=torch.int64),
        loss_K=torch.ones(available),
        client_ids_K=torch.arange(available),
    )
    assert int((policy.step(batch).weights_K > 0).sum()) == counted


def test_all_clients_are_available_for_the_fedavg_of_table_3() -> None:
    settings = at(ar_t3(), method="FedAvg").settings
    assert (settings.scenario.name, settings.policy.name) == (None, "fedavg")


def test_figure_5_is_by_the_number_of_clients() -> None:
    assert sorted({cell.settings.clients for cell in ar_f5().cells}) == [80, 90, 100, 110, 120]
    for cell in ar_f5().cells:
        assert cell.settings.clients * 2 % 10 == 0, "ten classes need this to divide evenly"


def test_figure_1_silences_a_client_for_up_to_six_of_nine_rounds() -> None:
    preset = ar_f1()
    for local in ("5 steps", "5 epochs"):
        cells = [cell for cell in preset.cells if cell.labels["local"] == local]
        assert [cell.options["silent"] for cell in cells] == [0, 1, 2, 3, 4, 5, 6]
    assert {(cell.settings.clients, cell.settings.rounds) for cell in preset.cells} == {(5, 9)}
