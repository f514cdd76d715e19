"""Pictures of few and many points, as PNG and as a part of the page."""

import io
import re
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from report.made import curve, measured, round_of, run, small_run
from support.journal import accepted, task
from unstale.journal.rows import Batch
from unstale.report import drawing, page
from unstale.report.content import Picture
from unstale.report.make import report


def picture(*values: float, label: str = "one") -> Picture:
    found = drawing.Curve(
        n=1,
        at_x=np.arange(float(len(values))),
        mean_x=np.array(values),
        low_x=np.full(len(values), nan),
        high_x=np.full(len(values), nan),
        left_out=0,
    )
    return Picture(
        name="some",
        title="Title",
        caption="",
        alternative="what it shows",
        draw=lambda axes: drawing.lines(axes, [label], [found], "what, s"),
        keys=[label],
    )


@pytest.mark.parametrize("values", [(), (1.0,), (nan, nan), (1.0, inf, 2.0), tuple(map(float, range(5000)))])
def test_a_curve_is_drawn_of_few_and_of_many_points(values: tuple[float, ...]) -> None:
    assert drawing.png(picture(*values)).startswith(b"\x89PNG")
    assert page.inline(drawing.svg(picture(*values)), "some", "alt").startswith("<svg ")


@pytest.mark.parametrize("label", ["$\\frac$", "_hidden", "<b>&", "名前", "x" * 200, "\N{REPLACEMENT CHARACTER}"])
def test_a_label_is_drawn_literally(label: str) -> None:
    drawn = page.inline(drawing.svg(picture(1.0, 2.0, label=label)), "some", "alt")
    expected = label if len(label) < 60 else "x" * 60
    assert expected.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in drawn
    assert drawing.png(picture(1.0, 2.0, label=label))


def test_a_drawing_has_no_external_reference() -> None:
    drawn = page.inline(drawing.svg(picture(1.0, 2.0)), "some", 'an "alt" <text>')
    assert 'aria-label="an &quot;alt&quot; &lt;text&gt;"' in drawn
    for foreign in ("<style", "style=", "<metadata", "http", "font-family", "xmlns"):
        assert foreign not in drawn
    assert "url(#some-" in drawn  # clip paths have ids of the picture


def test_a_png_is_on_white_with_its_colours() -> None:
    pixels = (imread(io.BytesIO(drawing.png(picture(1.0, 2.0))))[..., :3] * 255).round().astype(int)
    assert (pixels[0, 0] == 255).all()
    assert (pixels == (0, 114, 178)).all(axis=-1).any()


def test_every_series_position_has_a_distinct_style() -> None:
    styles = [drawing.Style(index=place) for place in range(24)]
    assert len({(style.colour, str(style.line)) for style in styles}) == 24


def test_many_rounds_are_drawn_as_means_of_some() -> None:
    rounds = 2 * drawing.POINTS_MAX
    at, values = drawing.binned(np.arange(1.0, rounds + 1), np.append(np.full(rounds - 1, 4.0), nan))
    assert len(at) == drawing.POINTS_MAX
    assert at[0] == 1.5 and (values == 4.0).all()  # missing values do not count


def test_an_exploding_loss_keeps_a_readable_axis(tmp_path: Path) -> None:
    grown = Batch(tasks=[task(1)], evaluations=[measured(0, 0.1, loss=2.0), measured(1, 0.1, loss=1e30)])
    of = report([run(tmp_path / "run", grown)])
    (loss,) = (one for one in of.pictures if one.name == "loss_over_versions")
    drawn = drawing.svg(loss)
    assert "mathdefault" not in drawn and re.search(r">1e\+\d\d</text>", drawn)


def weighted(*weights: float) -> Batch:
    """A round of updates with these weights."""
    members = [(handle, 0, weight) for handle, weight in enumerate(weights, start=1)]
    return Batch(
        tasks=[task(1)],
        updates=[accepted(handle, handle) for handle, _, _ in members],
        rounds=[round_of(1, *members)],
        evaluations=[measured(1, 0.1)],
    )


@pytest.mark.parametrize(
    "batch",
    [small_run(), curve(0.1, 0.9, loss=inf), Batch(), weighted(nan, nan), weighted(inf, 0.5), weighted(0.0, 0.0)],
)
def test_every_picture_of_a_report_is_drawn(batch: Batch, tmp_path: Path) -> None:
    paths = [run(tmp_path / f"{seed}", batch, seed=seed) for seed in range(3)]
    drawn = report(paths).pictures
    for one in drawn:
        assert drawing.png(one).startswith(b"\x89PNG"), one.name
    assert bool(drawn) is bool(batch.evaluations)


def test_ticks_of_a_logarithmic_axis_have_plain_numbers() -> None:
    """matplotlib labels the ticks between powers of ten as 2e-01 below 1, and as 2 above."""
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], [0.15, 7])
    drawing.logarithmic(axes, "y")
    figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_yticklabels(which="both")]
    assert {"0.2", "0.6", "1", "4"} <= set(labels)
    assert not [label for label in labels if "e" in label]
