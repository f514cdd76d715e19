"""Plots of gradient inversion, also of unusual data."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import compensation_plots
from matplotlib.image import imread

from unstale.cli import inversion_plot as plot
from unstale.cli.inversion_plot import Numbers, Tile
from unstale.errors import UserError
from unstale.report import drawing

BLUE, ORANGE, GREEN, PINK = (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167)


def pixels(file: Path) -> Numbers:
    read: Numbers = np.round(imread(file)[..., :3] * 255).astype(int)
    return read


def has(file: Path, colour: tuple[int, int, int]) -> bool:
    return bool((pixels(file) == colour).all(axis=-1).any())


def errors(stalenesses: int, repetitions: int) -> dict[str, Numbers]:
    grows_SR = np.arange(stalenesses)[:, None] + np.arange(repetitions) / 10
    return {"gradient-inversion": grows_SR / 2, "first-order": grows_SR * 0.9, "none": grows_SR}


@pytest.mark.parametrize("updates", [1, 5, 60])
def test_disparity_is_drawn_of_few_and_of_many(updates: int, tmp_path: Path) -> None:
    curves = [20 * np.exp(-np.arange(5 + update % 3) / (1 + update)) for update in range(updates)]
    plot.draw_disparity(curves, tmp_path / "d.png")
    assert has(tmp_path / "d.png", BLUE)


def test_a_single_iteration_and_a_disparity_of_nothing_are_drawn(tmp_path: Path) -> None:
    plot.draw_disparity([np.array([0.0])], tmp_path / "d.png")
    assert min(pixels(tmp_path / "d.png").shape[:2]) > 300


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(("tiles", "columns"), [(1, 1), (7, 4), (100, 4)])
def test_a_sheet_holds_images_of_any_channels(channels: int, tiles: int, columns: int, tmp_path: Path) -> None:
    images = [np.full((channels, 8, 8), column / 4) for column in range(columns)]
    names = [f"column {column}" for column in range(columns)]
    plot.draw_sheet([Tile(images=images, label="client 1: class 5")] * tiles, names, "Title", tmp_path / "s.png")
    drawn = pixels(tmp_path / "s.png")
    assert (drawn == 0).all(axis=-1).any()
    assert drawn.shape[1] <= 11 * drawing.DOTS_PER_INCH


def test_a_sheet_shows_colours_as_they_are(tmp_path: Path) -> None:
    red_CHW = np.zeros((3, 8, 8))
    red_CHW[0] = 1.0
    plot.draw_sheet([Tile(images=[red_CHW], label="")], ["one"], "", tmp_path / "s.png")
    assert has(tmp_path / "s.png", (255, 0, 0))


def test_closeness_is_drawn_of_each_measure_and_pool(tmp_path: Path) -> None:
    values = {
        "own": np.arange(9.0),
        "others": np.arange(9.0) / 2,
        "own, same classes": np.arange(9.0) / 3,
        "others, same classes": np.full(9, 3.0),
    }
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    plot.draw_closeness({"PSNR, dB": values}, "Title", one)
    plot.draw_closeness({"PSNR, dB": values, "SSIM": {"own": np.full(3, 0.5)}}, "Title", two)
    assert pixels(two).shape[1] > pixels(one).shape[1]
    for colour in (BLUE, ORANGE, GREEN, PINK):
        assert has(one, colour)


def test_errors_are_drawn_against_staleness(tmp_path: Path) -> None:
    file = tmp_path / "e.png"
    l1 = errors(7, 15)
    l1["first-order"][2] = np.nan  # nothing was measured there
    l1["none"][3, 4] = np.nan
    compensation_plots.draw_errors_by_staleness([5, 10, 20, 30, 40, 50, 60], l1, errors(7, 15), "Title", file)
    for colour in (BLUE, ORANGE, GREEN):
        assert has(file, colour)


def test_errors_are_drawn_over_rounds_with_the_switch(tmp_path: Path) -> None:
    rounds = list(range(10, 60))
    of_rounds = {method: values_SR[:, 0] for method, values_SR in errors(50, 1).items() if method != "first-order"}
    of_rounds["gradient-inversion"][30:] = np.nan
    plain, marked = tmp_path / "plain.png", tmp_path / "marked.png"
    compensation_plots.draw_errors_by_round(rounds, of_rounds, of_rounds, "Title", plain)
    compensation_plots.draw_errors_by_round(rounds, of_rounds, of_rounds, "Title", marked, switched_at=30, gone_at=40)
    assert has(plain, BLUE) and has(plain, GREEN) and not has(plain, ORANGE)
    assert (pixels(plain) != pixels(marked)).any()


def test_a_file_that_cannot_be_written_is_raised(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        plot.draw_disparity([np.ones(3)], tmp_path / "nowhere" / "d.png")
