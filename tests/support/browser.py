"""A real browser without a screen: Debian's Chromium, driven by Playwright.

The conftest.py of a folder imports the fixtures; its modules are marked `needs_chromium`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from support.running import PATIENCE_S

CHROMIUM = Path("/usr/bin/chromium")

needs_chromium = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"there is no {CHROMIUM} (Debian: apt-get install chromium)"
)

_DESK: dict[str, Any] = {"viewport": {"width": 1200, "height": 900}}
_PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
WINDOWS: dict[str, dict[str, Any]] = {
    "light": {**_DESK, "color_scheme": "light"},
    "dark": {**_DESK, "color_scheme": "dark"},
    "phone": {**_PHONE, "color_scheme": "light"},
    "phone-dark": {**_PHONE, "color_scheme": "dark"},
}
_ACCESS = (Path(__file__).parent / "access.js").read_text(encoding="utf-8")

Look = Callable[..., Page]


def barriers(page: Page) -> list[str]:
    """Accessibility defects of the page, as sentences."""
    found: list[str] = page.evaluate(_ACCESS)
    return found


# Of module scope: each folder that imports it has its own, and Playwright runs only once at a time.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=1000 * PATIENCE_S)
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * PATIENCE_S)
        yield launched
        launched.close()


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """Opens a page in its own window: url, and options of the window. At the end it fails if the page wrote to the
    console or requested another address than the server or the file. forgiven: text in messages of the browser itself,
    such as of a server that ends. script: runs before the scripts of the page."""
    with ExitStack() as stack:
        errors: list[str] = []
        asked: set[str] = set()
        served: set[str] = set()

        def opened(
            url: str, options: dict[str, Any] = WINDOWS["light"], *, forgiven: str = "\0", script: str = ""
        ) -> Page:
            context = stack.enter_context(browser.new_context(**options))
            page = context.new_page()
            page.set_default_timeout(1000 * PATIENCE_S)
            page.add_init_script(script)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda line: None if forgiven in line.text else errors.append(line.text))
            page.on("request", lambda request: asked.add(_source(request.url)))
            served.add(_source(url))
            page.goto(url)
            return page

        yield opened
    assert errors == []
    assert asked - {"data:"} <= served


def _source(url: str) -> str:
    parts = urlsplit(url)
    return {"data": "data:", "file": url}.get(parts.scheme, f"{parts.scheme}://{parts.netloc}")
