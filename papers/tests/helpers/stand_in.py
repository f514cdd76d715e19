"""A stub measurement that follows its options and counts its calls, and a small preset of it."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale_papers.preset import Cell, Number, Preset, Source
from unstale_papers.record import Record

NAME = "stand-in"
MODULE = "helpers.stand_in"
METHODS = ("alpha", "beta", "gamma")
CALLS = "calls"


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """The accuracy identifies the job. options: folder: of `calls`. does: fails, refuses, dies, dies once, waits for
    a file `go` of the folder."""
    folder = Path(options["folder"])
    call = f"{options['method']} {settings.seed}"
    is_first = call not in calls(folder)
    with (folder / CALLS).open("a", encoding="utf-8") as opened:
        opened.write(f"{call}\n")
    on_progress(0.5)
    match options.get("does"):
        case "fails":
            raise ZeroDivisionError("as instructed")
        case "refuses":
            raise UserError("the data is not there; get it")
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "dies once" if is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        case "waits":
            pause = threading.Event()
            while not (folder / "go").exists():
                pause.wait(0.02)
    return Record(
        accuracy_E=[METHODS.index(options["method"]) + settings.seed / 10],
        found={"pid": os.getpid(), "scenario": _text(settings.scenario.name)},
    )


def calls(folder: Path) -> list[str]:
    """`METHOD SEED` of every call."""
    file = folder / CALLS
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def preset(folder: Path, **does: str) -> Preset:
    """Three methods. does: the option of each, by its name."""
    return Preset(
        name="tiny",
        paper="FedHist",
        item="Table 0",
        title="a table of nothing",
        cells=tuple(_cell(folder, method, does.get(method)) for method in METHODS),
        measures=("final accuracy",),
        rows=("method",),
        columns=(),
        sources=(
            Source(key="rounds", value="7", tag="paper"),
            Source(key="clients", value="30", tag="[P]", why="It is small."),
        ),
    )


def _cell(folder: Path, method: str, does: str | None) -> Cell:
    return Cell(
        labels={"method": method},
        settings=Settings(clients=30, rounds=7, policy={"name": "fedavg"}),
        measurement=NAME,
        options={"folder": str(folder), "method": method, **({"does": does} if does else {})},
        published={"final accuracy": Number(value=0.5, text="50.0")},
    )


def _text(scenario: str | None) -> str | None:
    return None if scenario is None else Path(scenario).read_text(encoding="utf-8")
