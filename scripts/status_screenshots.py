"""Screenshots of the status page for the documents: a run of a minute, displayed in a browser.

    python scripts/status_screenshots.py [--into docs/images] [--chromium /usr/bin/chromium]

Needs the `test` extra (Playwright) and Chromium. Writes status-light.png, status-dark.png and status-phone.png.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright

RUN = {
    "seed": 5,
    "clients": 24,
    "rounds": 120,
    "evaluate_every": 2,
    "model": {"name": "logreg"},
    "partition": {"name": "dirichlet"},
    "trigger": {"name": "buffered", "k": 8},
    "policy": {"name": "dynsgd"},
    "training": {"learning_rate": 0.2, "steps": 3, "batch_size": 16},
    "compensator": {
        "name": "gradient-inversion",
        "settings": {"iterations": 10, "images_max": 8, "switch": "never", "seconds_per_round": 0.1},
    },
    "scenario": {"name": "lognormal", "time_scale": 0.5},
    "server": {"address": "tcp://127.0.0.1:0", "http_address": "127.0.0.1:0", "norm_max": 12.0},
}
SEEN = re.compile(r"[6-9]\d|1\d\d")  # rounds: enough for curves
SHOTS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1180, "height": 1130}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1180, "height": 1500}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 780}, "color_scheme": "light", "device_scale_factor": 2},
}


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """A server and its clients; the URL of the page."""
    (folder / "run.yaml").write_text(json.dumps(RUN))  # JSON is YAML
    common = [sys.executable, "-m", "unstale"]
    with subprocess.Popen(  # noqa: S603  (our own program)
        [*common, "server", "--json", "--config", "run.yaml"], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        listening = json.loads(server.stdout.readline())
        arguments = ["--config", "run.yaml", "--count", str(RUN["clients"]), "--server", listening["address"]]
        with subprocess.Popen(  # noqa: S603  (our own program)
            [*common, "client", *arguments], cwd=folder, stdout=subprocess.DEVNULL
        ) as clients:
            try:
                yield f"http://{listening['http_address']}/"
            finally:
                clients.terminate()
                server.terminate()
                server.communicate()


def shoot(browser: Browser, url: str, name: str, into: Path) -> None:
    """One screenshot, with few enough colours to be small."""
    file = into / f"status-{name}.png"
    with browser.new_context(**SHOTS[name], reduced_motion="reduce") as context:
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#version")).to_have_text(SEEN, timeout=120_000)
        page.screenshot(path=file)
    Image.open(file).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(file, optimize=True)
    sys.stdout.write(f"{file}: {file.stat().st_size} bytes\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=Path("docs/images"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for name in SHOTS:
            shoot(browser, url, name, options.into)
        browser.close()


if __name__ == "__main__":
    main()
