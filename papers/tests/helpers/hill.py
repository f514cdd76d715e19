"""A measurement with an accuracy that is a known function of the learning rate, and a preset of it.

accuracy = 0.8 - 0.1 |log10(rate / best)| + 0.01 seed,   best: 0.01 for one, 0.1 for other
"""

from collections.abc import Callable, Mapping
from math import log10
from pathlib import Path
from typing import Any

from unstale.config.settings import Settings
from unstale_papers.preset import Cell, Number, Preset, Source
from unstale_papers.record import Record

NAME = "hill"
MODULE = "helpers.hill"
BEST = {"one": 0.01, "other": 0.1}


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """Record the call in the file `calls` of options["folder"]; fail for a rate over 1."""
    rate = settings.training.learning_rate
    with (Path(options["folder"]) / "calls").open("a", encoding="utf-8") as opened:
        opened.write(f"{options['method']} {rate} {settings.seed} {settings.data.validation}\n")
    on_progress(1.0)
    if rate > 1:
        raise ZeroDivisionError("as instructed")
    height = 0.8 - 0.1 * abs(log10(rate / BEST[options["method"]])) + 0.01 * settings.seed
    return Record(version_E=[0, settings.rounds], accuracy_E=[0.1, height], seconds=2.0)


def calls(folder: Path) -> list[str]:
    """`METHOD RATE SEED VALIDATION` of every call."""
    file = folder / "calls"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def preset(folder: Path) -> Preset:
    """Two methods with different best rates."""
    return Preset(
        name="hilly",
        paper="FedHist",
        item="Table 0",
        title="two hills",
        cells=tuple(
            Cell(
                labels={"method": method},
                settings=Settings(clients=30, rounds=70, policy={"name": "fedavg"}),
                measurement=NAME,
                options={"folder": str(folder), "method": method},
                published={"final accuracy": Number(value=value, text=f"{100 * value:g}")},
            )
            for method, value in (("one", 0.7), ("other", 0.6))
        ),
        measures=("final accuracy", "rounds to 40 %"),
        rows=("method",),
        columns=(),
        sources=(Source(key="rounds", value="70", tag="[P]"),),
    )
