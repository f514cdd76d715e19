"""Figures: their content, and their alternative texts."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure as MatplotlibFigure

from helpers.reproduced import comparison
from helpers.written import Page
from unstale.report.statistics import Curve
from unstale_papers import output
from unstale_papers.comparison import Comparison
from unstale_papers.output import plots
from unstale_papers.output.figures import Figure, figures
from unstale_papers.output.report_context import ReportContext
from unstale_papers.output.shows import along, arrays, of_clients, show
from unstale_papers.output.special import numeric, places
from unstale_papers.presets.registry import PRESETS, make
from unstale_papers.record import Record
from unstale_papers.scale import Scale


def made(name: str, seeds: range = range(2), scale: Scale | None = None) -> dict[str, Figure]:
    """Figures by title."""
    context = ReportContext(comparison=comparison(name, seeds), scale=scale or Scale())
    return {figure.title: figure for figure in figures(context)}


@pytest.mark.parametrize("name", PRESETS)
def test_every_figure_of_every_preset_has_described_panels(name: str) -> None:
    drawn = made(name, range(1))
    assert {curve.title for curve in make(name).curves} <= drawn.keys()
    pictures = [picture for figure in drawn.values() for _, picture in figure.panels]
    assert all(picture.alternative.endswith(".") for picture in pictures)
    names = [picture.name for picture in pictures]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", PRESETS)
def test_a_figure_without_measurements_is_not_drawn(name: str) -> None:
    assert figures(ReportContext(comparison=Comparison(preset=make(name), records={}), scale=Scale())) == []


@pytest.mark.parametrize(
    ("name", "panels", "lines"), [("fh-t2", 3, 8), ("fh-f5", 8, 8), ("wk-t3", 6, 4), ("gi-f11", 1, 6), ("ar-f2", 6, 7)]
)
def test_a_figure_has_a_panel_for_each_of_the_other_axes_labels(name: str, panels: int, lines: int) -> None:
    figure = made(name)[make(name).curves[-1].title]
    assert len(figure.panels) == panels
    assert all(len(picture.keys) == lines for _, picture in figure.panels)
    assert len({of for of, _ in figure.panels}) == panels


def test_printed_rounds_are_marked_only_at_full_scale() -> None:
    """The paper has FedHist at 40 % in round 1754; both ends are always marked."""
    for scale, marks in ((Scale(), 2), (Scale.of(0.5), 1)):
        (figure,) = (one for title, one in made("fh-t2", scale=scale).items() if "Fig. 3" in title)
        (draw,) = (picture.draw for of, picture in figure.panels if of == "beta 0.3")
        (line,) = (line for line in draw.keywords["lines"] if line.label == "FedHist")  # type: ignore[attr-defined]
        assert len(line.printed) == marks
        assert ((1754.0, 0.4) in line.printed) == (marks == 2)
        assert (5000.0, 0.5203) in [(at, round(value, 6)) for at, value in line.printed]


def test_a_line_is_the_mean_and_its_band_one_standard_deviation() -> None:
    found = comparison("fh-t2", range(3))
    (draw,) = (
        picture.draw
        for figure in figures(ReportContext(comparison=found, scale=Scale()))[:1]
        for of, picture in figure.panels
        if of == "beta IID"
    )
    line = draw.keywords["lines"][0]  # type: ignore[attr-defined]
    runs = np.array([found.records["beta=IID method=FedAvg", seed].accuracy_E for seed in range(3)])
    assert line.curve.mean_x == pytest.approx(runs.mean(0))
    assert line.curve.high_x - line.curve.mean_x == pytest.approx(runs.std(0, ddof=1))


def test_lines_of_fewer_seeds_than_wanted_are_named() -> None:
    found = comparison("fh-t2", range(3))
    lacking = [("beta=IID method=FedAvg", 1), ("beta=IID method=FedAvg", 2)]
    lacking += [(cell.name, 2) for cell in found.preset.cells if cell.labels["beta"] == "1.0"]
    records = {key: one for key, one in found.records.items() if key not in lacking}

    def caption(of: Comparison) -> str:
        return figures(ReportContext(comparison=of, scale=Scale()))[0].caption

    said = "Lines of fewer than 3 seeds: beta 1.0: all (2 seeds); beta IID: FedAvg (1 seed)."
    assert said in caption(replace(found, records=records))
    assert "Lines of fewer" not in caption(found)


# Curves of a record


def test_only_long_curves_are_drawn_as_means_of_ten_points() -> None:
    values_x = np.arange(80.0)
    values_x[5] = np.nan
    at_x, none_x = np.arange(80.0), np.full(80, np.nan)
    long = Curve(n=1, at_x=at_x, mean_x=values_x, low_x=none_x, high_x=none_x, left_out=0)
    drawn = plots.smooth(long)
    assert drawn.mean_x[[0, 1, 6]].tolist() == [0.0, 0.5, (0 + 1 + 2 + 3 + 4 + 6) / 6]
    assert drawn.mean_x[14] == np.mean([6, 7, 8, 9, 10, 11, 12, 13, 14])
    assert drawn.mean_x[79] == 74.5
    assert np.isnan(drawn.low_x).all()
    assert plots.is_smooth(long)
    assert not plots.is_smooth(replace(long, at_x=at_x[:59]))


def test_errors_of_a_round_are_means_over_its_clients() -> None:
    errors = [(2, "none", 8.0, 0.1), (1, "auto", 3.0, 0.1), (1, "auto", 5.0, 0.1), (2, "auto", 6.0, 0.1)]
    record = Record(errors=errors)
    assert list(show("E1").of(record)) == [(1, 4.0), (2, 6.0)]
    assert list(show("E2").of(record)) == [(2, 8.0)]


def test_a_class_without_test_examples_has_no_curve() -> None:
    record = Record(version_E=[0, 5], class_accuracy_EC=[[0.1, None], [0.3, None]])
    assert list(show("class accuracy 0").of(record)) == [(0, 0.1), (5, 0.3)]
    assert not show("class accuracy 1").of(record) and not show("class accuracy 7").of(record)


def test_a_measurement_is_drawn_over_its_own_axis() -> None:
    record = Record(found={"curves": {"L1 error": {"x": "staleness, rounds", "points": [(0, 1.0), (5, 2.0)]}}})
    assert list(show("L1 error").of(record)) == [(0.0, 1.0), (5.0, 2.0)]
    assert along("L1 error", [Record(), record]) == "staleness, rounds"
    assert along("accuracy", [record]).startswith("version")
    assert arrays([])[0].shape == (0,)


def test_clients_without_test_examples_have_no_weight() -> None:
    assert of_clients(Record(client_accuracy_N=[0.5, None, float("nan"), 1.0])) == [50.0, 100.0]


def test_numeric_labels_match_by_value() -> None:
    assert numeric(["1/64", "10", "IID", "0.1", "1/0"]) == {"1/64": 1 / 64, "10": 10.0, "0.1": 0.1}


def test_a_method_looks_the_same_in_all_figures() -> None:
    assert list(places(make("fh-t1"), "method")) == list(places(make("fh-t2"), "method"))


# On disk


@pytest.mark.parametrize("name", ["gi-f4", "wk-f2", "ar-t3", "gi-t1"])
def test_every_figure_is_a_png_that_the_markdown_names_and_a_picture_on_the_page(name: str, tmp_path: Path) -> None:
    written = output.write(comparison(name, range(2)), tmp_path, scale=Scale(), about=())
    pngs = [file for file in written if file.suffix == ".png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in pngs)
    text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert pngs and all(f"]({file.name})" in text for file in pngs)
    read = Page((tmp_path / f"{name}.html").read_text(encoding="utf-8"))
    pictures = [one for one in read.all("svg") if one.get("role") == "img"]
    assert len(pictures) == len(read.all("figure")) >= len(pngs)
    assert all(one["aria-label"] for one in pictures)
    for _, attributes in read.elements:
        for key in ("href", "src"):
            assert attributes.get(key, "#").startswith(("#", "data:image/png;"))


def test_a_run_that_ended_early_ends_its_line_and_is_noted(tmp_path: Path) -> None:
    found = comparison("fh-t2", range(1))
    name = "beta=0.3 method=MOON"
    found.records[name, 0].found["ended"] = "training diverged"  # type: ignore[index]
    context = ReportContext(comparison=found, scale=Scale())
    output.write(found, tmp_path, scale=context.scale, about=())
    text = (tmp_path / "fh-t2.md").read_text(encoding="utf-8")
    assert f"Of {name} with seed 0: It ended early, and is left out" in text
    assert "other seeds have: training diverged" in text


def test_a_diverged_run_does_not_cut_the_line_of_other_seeds(tmp_path: Path) -> None:
    found = comparison("fh-t2", range(2))
    record = found.records["beta=0.3 method=MOON", 1]
    short = replace(record, version_E=record.version_E[:5], accuracy_E=record.accuracy_E[:5])
    short = replace(short, found={"ended": "training diverged"})
    made = Comparison(preset=found.preset, records={**found.records, ("beta=0.3 method=MOON", 1): short})
    output.write(made, tmp_path, scale=Scale(), about=())
    text = (tmp_path / "fh-t2.md").read_text(encoding="utf-8")
    (line,) = set(re.findall(r"MOON from \S+ at version 0 to \S+ at (\d+)", text))
    assert line == str(record.version_E[-1])


def test_p_values_are_not_drawn_against_printed_ones() -> None:
    assert not [title for title in made("ar-f2") if title.startswith("P against")]
    assert "Client accuracy mean: measured against printed" in made("ar-t3")


def test_diverged_runs_do_not_change_the_axis_range() -> None:
    def line(place: int, losses: list[float], *, diverged: bool) -> plots.Line:
        none = np.full(3, np.nan)
        curve = Curve(n=1, at_x=np.arange(3.0), mean_x=np.array(losses), low_x=none, high_x=none, left_out=0)
        printed = [(2.0, 3.0)] if diverged else []
        return plots.Line(place=place, label=str(place), curve=curve, printed=printed, diverged=diverged)

    axes, alone = MatplotlibFigure().subplots(1, 2)
    lines = [line(0, [2.3, 2.0, 1.5], diverged=False), line(1, [2.3, 1e9, 1e23], diverged=True)]
    plots.draw_lines(axes, lines, along="version", axis="loss", target=None, is_share=False)
    assert axes.get_yscale() == "linear" and axes.get_ylim() == pytest.approx((0, 1.08 * 3.0))
    plots.draw_lines(alone, lines[1:], along="version", axis="loss", target=None, is_share=False)
    assert alone.get_yscale() == "log" and alone.get_ylim()[1] > 1e23


def test_bars_of_measured_numbers_are_inside_the_frame() -> None:
    """Bars from 1 to 9 and numbers from 4 to 6, with a margin of a twentieth of 8; NaN is no bar."""
    axes = MatplotlibFigure().subplots()
    several = plots.Dots(place=0, label="A", published=[4.0, 6.0], measured=[5.0, 5.0], std=[4.0, float("nan")])
    plots.draw_against(axes, [several, plots.Dots(place=1, label="B", published=[5.0], measured=[6.0])], what="loss")
    assert axes.get_ylim() == axes.get_xlim() == pytest.approx((0.6, 9.4))


def test_a_band_on_a_logarithmic_axis_ends_above_0() -> None:
    mean_x = np.array([1e4, 1.0, 1e-4])
    curve = Curve(n=3, at_x=np.arange(3.0), mean_x=mean_x, low_x=mean_x - [1, 2, 5e-5], high_x=mean_x + 2, left_out=0)
    axes = MatplotlibFigure().subplots()
    lines = [plots.Line(place=0, label="one", curve=curve, printed=[], diverged=False)]
    plots.draw_lines(axes, lines, along="version", axis="loss", target=None, is_share=False)
    ends = axes.collections[0].get_paths()[0].vertices
    assert axes.get_yscale() == "log"
    assert [min(y for x, y in ends if x == at) for at in range(3)] == pytest.approx([1e4 - 1, 1.0, 5e-5])


def test_losses_over_decades_are_drawn_with_plain_numbers(tmp_path: Path) -> None:
    """matplotlib's default is mathematical text, which conflicts with a dollar sign in a name."""
    output.write(comparison("gi-t1", range(1)), tmp_path, scale=Scale(), about=())
    assert "mathdefault" not in (tmp_path / "gi-t1.html").read_text(encoding="utf-8")
