"""Pages of a reproduction in a real browser: no requests, no overflow, accessible."""

from pathlib import Path

import pytest

from helpers.reproduced import comparison
from support.browser import WINDOWS, Look, barriers, needs_chromium
from unstale_papers import output
from unstale_papers.scale import Scale

pytestmark = [pytest.mark.slow, needs_chromium]

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
@pytest.mark.parametrize("window", WINDOWS)
def test_a_page_makes_no_request_and_is_accessible(name: str, window: str, folder: Path, look: Look) -> None:
    page = look((folder / f"{name}.html").as_uri(), WINDOWS[window])
    assert page.evaluate("document.documentElement.scrollWidth") <= WINDOWS[window]["viewport"]["width"]
    assert barriers(page) == []


def test_pictures_and_tables_have_accessible_names(folder: Path, look: Look) -> None:
    page = look((folder / "fh-t2.html").as_uri())
    pictures = page.get_by_role("img")
    assert pictures.count() == page.locator("figure").count() >= 3
    assert page.get_by_role("img", name="Curves of test accuracy").count() == 3
    assert page.get_by_role("table", name="rounds to 40 %, rounds").count() == 1
    assert page.get_by_role("table", name="rounds to 40 %, averaged").count() == 1


def test_the_method_column_stays_visible_while_a_table_scrolls(folder: Path, look: Look) -> None:
    page = look((folder / "gi-t3.html").as_uri(), WINDOWS["phone"])
    region = page.locator(".table").first
    head = region.locator("tbody th").first
    before = head.bounding_box()
    assert region.evaluate("one => { one.scrollLeft = 1000; return one.scrollLeft }") > 0
    after = head.bounding_box()
    assert before is not None and after is not None
    assert after["x"] == pytest.approx(before["x"], abs=1)


def test_the_list_links_to_a_page(folder: Path, look: Look) -> None:
    page = look((folder / "index.html").as_uri())
    (folder / page.get_by_role("link", name="gi-t3").get_attribute("href")).resolve(strict=True)
