"""Pages of a reproduction in a real browser: they ask for nothing, fit a phone, and read well in the dark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import DARK, LIGHT, PHONE
from support.reproduced import comparison
from unstale.experiments import output
from unstale.experiments.scale import Scale

pytestmark = pytest.mark.slow

NAMES = ("fh-t2", "gi-t3", "ar-t3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = [comparison(name, range(2)) for name in NAMES]
    folder = tmp_path_factory.mktemp("reproduction")
    for one in made:
        output.write(one, folder, scale=Scale.of(0.1), about=("Computed on a machine of two cores.",))
    output.index(made, folder)
    return folder


@pytest.mark.parametrize("name", [*NAMES, "index"])
@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_a_page_fits_and_asks_for_nothing(
    name: str, options: dict[str, Any], folder: Path, look: Callable[..., Any]
) -> None:
    page = look((folder / f"{name}.html").as_uri(), options)
    assert page.evaluate("document.documentElement.scrollWidth") <= options["viewport"]["width"]
    paper, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert (paper == "rgb(255, 255, 255)") == (options is not DARK)
    assert paper != ink


def test_pictures_and_tables_are_found_by_what_they_show(folder: Path, look: Callable[..., Any]) -> None:
    page = look((folder / "fh-t2.html").as_uri())
    pictures = page.get_by_role("img")
    assert pictures.count() == page.locator("figure").count() >= 3
    assert page.get_by_role("img", name="Curves of test accuracy").count() == 3
    assert page.get_by_role("table", name="rounds to 40 %").count() == 1


def test_a_method_stays_in_sight_while_a_table_is_moved(folder: Path, look: Callable[..., Any]) -> None:
    page = look((folder / "gi-t3.html").as_uri(), PHONE)
    region = page.locator(".table").first
    head = region.locator("tbody th").first
    before = head.bounding_box()["x"]
    assert region.evaluate("one => { one.scrollLeft = 1000; return one.scrollLeft }") > 0
    assert head.bounding_box()["x"] == pytest.approx(before, abs=1)


def test_the_list_leads_to_a_page(folder: Path, look: Callable[..., Any]) -> None:
    page = look((folder / "index.html").as_uri())
    page.get_by_role("link", name="gi-t3").click()
    assert page.get_by_role("heading", level=1).inner_text().startswith("gi-t3")
