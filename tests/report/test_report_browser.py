"""The page in a real browser: it loads whole, asks for nothing, and fits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from report.made import run, small_run
from unstale.report import page
from unstale.report.make import report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_MS = 60_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    paths = [run(folder / f"run{seed}", small_run(), seed=seed) for seed in range(2)]
    out = folder / "report.html"
    out.write_text(page.html(report(paths, targets=[0.5])), encoding="utf-8")
    return out


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_loads_whole_and_fits(scheme: str, width: int, browser: Any, file: Path) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    opened = context.new_page()
    said: list[str] = []
    requests: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(file.as_uri(), timeout=PATIENCE_MS)
    assert said == []
    assert [url for url in requests if not url.startswith("data:image/png;")] == [file.as_uri()]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    paper, ink = opened.evaluate(
        "[getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('svg text')).fill]"
    )
    assert (paper, ink) == {
        "light": ("rgb(255, 255, 255)", "rgb(31, 35, 40)"),
        "dark": ("rgb(15, 20, 25)", "rgb(230, 237, 243)"),
    }[scheme]
    context.close()


def test_pictures_are_found_by_what_they_show(browser: Any, file: Path) -> None:
    opened = browser.new_page()
    opened.goto(file.as_uri(), timeout=PATIENCE_MS)
    pictures = opened.get_by_role("img")
    assert pictures.count() == opened.locator("figure").count() > 8
    assert opened.get_by_role("img", name="Curves of the test accuracy").first.is_visible()
    assert opened.get_by_role("table", name="What became of every update").count() == 1
    opened.close()
