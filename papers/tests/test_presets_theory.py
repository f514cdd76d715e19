"""Presets on theorems: cells counted by hand, steps of the theorems, and problems without a data set."""

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure

from unstale.config import build
from unstale_papers.choose import data_of, data_sets
from unstale_papers.output.plots import Power, draw_powers
from unstale_papers.pairs import compared
from unstale_papers.preset import Cell, Preset
from unstale_papers.presets.theory import PRESETS, th_fedar, th_fedhist
from unstale_papers.presets.theory_rates import th_fedasync, th_fedbuff, th_wkafl
from unstale_papers.runners import WITHOUT_DATA
from unstale_papers.scale import Scale, scaled


def at(preset: Preset, **labels: str) -> Cell:
    """The first cell with these labels."""
    return next(cell for cell in preset.cells if labels.items() <= cell.labels.items())


@pytest.mark.parametrize(
    ("name", "cells"),
    [("th-fedar", 7 + 5 + 4), ("th-fedhist", 4 * 5), ("th-wkafl", 2 * 3), ("th-fedbuff", 4), ("th-fedasync", 2 * 3)],
)
def test_each_preset_has_its_cells(name: str, cells: int) -> None:
    assert len(PRESETS[name]().cells) == cells


@pytest.mark.parametrize("made", PRESETS.values(), ids=PRESETS)
def test_no_preset_has_a_data_set(made: Callable[[], Preset]) -> None:
    cells = made().cells
    assert {cell.measurement for cell in cells} <= WITHOUT_DATA
    assert data_sets(cells) == []
    assert data_of(cells) == "problems with a known optimum"


def test_the_decaying_step_of_fedar_is_that_of_its_theorem() -> None:
    """4 / (mu (t + 100)) with mu 0.5, the least eigenvalue, or the l2 weight 0.1."""
    for objective, mu in (("quadratic", 0.5), ("logistic", 0.1)):
        settings = at(th_fedar(), objective=objective, step="4/(mu(t+a))").settings
        rate_of = build.learning_rate(settings.training, settings.rounds)
        assert [rate_of(t) for t in (0, 50, 300)] == pytest.approx([4 / (mu * (t + 100)) for t in (0, 50, 300)])


def test_the_decaying_step_of_fedar_decays_as_far_in_a_smaller_run() -> None:
    cell = at(th_fedar(), step="4/(mu(t+a))")
    assert scaled(cell, Scale(rounds=0.1)).settings.training.schedule.period == 10


def test_the_bound_of_fedhist_is_half_of_the_clients_per_update() -> None:
    for cell in th_fedhist().cells:
        number = cell.published["mean staleness"]
        updates = cell.settings.trigger.k
        assert updates is not None
        assert number.is_bound
        assert number.value == cell.settings.clients / (2 * updates) == float(cell.labels["N/K"]) / 2


def test_equal_clients_have_no_heterogeneity_and_others_have_some() -> None:
    for made in (th_wkafl, th_fedbuff, th_fedasync):
        for cell in made().cells:
            assert (cell.options["heterogeneity"] == 0) is (cell.labels["clients"] == "equal")


def test_the_speed_up_is_claimed_of_every_method_and_kind_of_clients() -> None:
    levels = [claim for claim in th_wkafl().claims if claim.level is not None]
    assert len(levels) == 2 * 3
    assert all(len(compared(th_wkafl(), claim)) == 1 for claim in levels)


def test_bounds_start_at_the_first_value_and_slopes_are_measured() -> None:
    at_x = np.array([1.0, 4.0, 16.0])
    line = Power(place=0, label="FedAvg", at_x=at_x, mean_x=3 / at_x, std_x=np.zeros(3))
    assert line.slope == pytest.approx(-1)
    axes = Figure().subplots()
    draw_powers(axes, [line], along="K", axis="mean squared gradient", bound=-0.5)
    (bound,) = [drawn for drawn in axes.lines if drawn.get_label() == "_bound"]
    assert np.asarray(bound.get_ydata()).tolist() == pytest.approx([3, 1.5, 0.75])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
