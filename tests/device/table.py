"""The table of docs/device.md: how often each part waits for its device, in a step."""

import re
from collections.abc import Mapping
from pathlib import Path

from device.counts import NAMES, Counts

PAGE = Path(__file__).parents[2] / "docs/device.md"
COMMAND = "make device"
_HEAD = f"| part | {' | '.join(NAMES)} |\n| :--- | ---: | ---: | ---: |\n"
_ROW = re.compile(r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def read() -> dict[str, Counts]:
    """The counts that the page has, by part."""
    return {name: Counts(*map(int, counts)) for name, *counts in _ROW.findall(PAGE.read_text(encoding="utf-8"))}


def write(counts_of: Mapping[str, Counts]) -> None:
    """Replace the table of the page."""
    before, _, _ = PAGE.read_text(encoding="utf-8").partition(_HEAD)
    rows = [f"| {name} | {' | '.join(map(str, counts))} |\n" for name, counts in counts_of.items()]
    PAGE.write_text(before + _HEAD + "".join(rows), encoding="utf-8")
