"""The page in a real browser: it loads without requests, fits, and is accessible."""

from pathlib import Path

import pytest

from report.made import compensated, run, small_run
from support.browser import WINDOWS, Look, barriers, needs_chromium
from unstale.report import page
from unstale.report.make import report

pytestmark = [pytest.mark.slow, needs_chromium]

COLOURS = {"light": ("rgb(255, 255, 255)", "rgb(31, 35, 40)"), "dark": ("rgb(15, 20, 25)", "rgb(230, 237, 243)")}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    paths = [run(folder / f"run{seed}", small_run(), seed=seed) for seed in range(2)]
    paths.append(run(folder / "compensated", compensated(), compensator={"name": "first-order"}))
    out = folder / "report.html"
    out.write_text(page.html(report(paths, targets=[0.5])), encoding="utf-8")
    return out


@pytest.mark.parametrize("window", WINDOWS)
def test_the_page_loads_and_is_accessible(window: str, look: Look, file: Path) -> None:
    options = WINDOWS[window]
    opened = look(file.as_uri(), options)
    assert barriers(opened) == []
    paper, ink = opened.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('svg text')).fill]"
    )
    assert (paper, ink) == COLOURS[options["color_scheme"]]


def test_pictures_have_alternative_text(look: Look, file: Path) -> None:
    opened = look(file.as_uri())
    pictures = opened.get_by_role("img")
    assert pictures.count() == opened.locator("figure").count() > 8
    assert opened.get_by_role("img", name="Curves of the test accuracy").first.is_visible()
    assert opened.get_by_role("table", name="Updates by verdict").count() == 1
