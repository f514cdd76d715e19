"""A real browser without a screen: Debian's Chromium, driven by Playwright. Where either is missing, tests skip."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.running import PATIENCE_S

CHROMIUM = Path("/usr/bin/chromium")

LIGHT: dict[str, Any] = {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"}
DARK: dict[str, Any] = {**LIGHT, "color_scheme": "dark"}
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "color_scheme": "light",
    "has_touch": True,
}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    playwright.expect.set_options(timeout=1000 * PATIENCE_S)
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield launched
        launched.close()


Look = Callable[..., Any]


@pytest.fixture
def look(browser: Any) -> Iterator[Look]:
    """Opens a page in a window of its own: url, and options of the window. In the end nothing may have been said on the
    console, and nobody been asked but the server. forgiven: is in what the browser itself says there, such as of a
    server that goes away."""
    with ExitStack() as stack:
        errors: list[str] = []
        asked: set[str] = set()
        served: set[str] = set()

        def opened(url: str, options: dict[str, Any] = LIGHT, *, forgiven: str = "\0") -> Any:
            context = stack.enter_context(browser.new_context(**options))
            page = context.new_page()
            page.set_default_timeout(1000 * PATIENCE_S)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on(
                "console",
                lambda said: None if forgiven in said.text else errors.append(said.text),
            )
            page.on("request", lambda request: asked.add(_origin(request.url)))
            served.add(_origin(url))
            page.goto(url)
            return page

        yield opened
    assert errors == []
    assert asked <= served


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return "data:" if parts.scheme == "data" else f"{parts.scheme}://{parts.netloc}"
