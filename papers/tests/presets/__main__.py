"""Run every preset at a scale that takes minutes in all with the users' command, and check its output.

`python -m presets [PRESET...]` runs only these.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

from presets import files
from unstale_papers.choose import data_sets
from unstale_papers.preset import Preset
from unstale_papers.presets.registry import PRESETS

SCALE = ("--scale-rounds", "0.0001", "--scale-clients", "0.03", "--scale-iterations", "0.0001")
FEW = {"gi-f5": "0.005", "ar-f1": "0.05", "ar-f2": "0.008", "gi-controls": "0.1"}
FEW |= {name: "0.02" for name in PRESETS if name.startswith("gi-") and name not in FEW}
"""Share of the examples, for presets in which clients train on whole epochs or with a ResNet-18."""

SOME = {"ar-f2": ("data=SVHN p_min=0.1 method=FedAR", "data=CIFAR-10")}
"""Cells to compute of a preset, else all: each of the 14 cells with a ResNet-18 takes a minute."""

AT_ONCE = 2  # commands: some have one long job, beside which a core would be idle


def main(names: list[str]) -> int:
    """Return 0 when every preset is computed with every published number; print the errors otherwise."""
    unknown = set(names) - set(PRESETS)
    if unknown:
        print(f"there is no preset {', '.join(sorted(unknown))}; `unstale reproduce list` has them")
        return 2
    presets = [make() for name, make in PRESETS.items() if not names or name in names]
    commands: list[_Command] = []
    for share in ("1", *dict.fromkeys(FEW.values())):
        chosen = [preset for preset in presets if FEW.get(preset.name, "1") == share]
        commands += [
            _Command((preset,), share, ("--cells", cells)) for preset in chosen for cells in SOME.get(preset.name, ())
        ]
        if whole := tuple(preset for preset in chosen if preset.name not in SOME):
            commands.append(_Command(whole, share))
    commands.sort(key=lambda one: len(one.presets), reverse=True)  # the longest first
    with tempfile.TemporaryDirectory() as folder, ThreadPool(AT_ONCE) as pool:
        at = files.write(Path(folder))
        stores = [Path(folder) / f"store-{number}" for number in range(len(commands))]
        tasks = [(*one, at) for one in zip(commands, stores, strict=True)]
        wrong = [line for lines in pool.starmap(_computed, tasks, chunksize=1) for line in lines]
    print("\n".join(wrong))
    return bool(wrong)


class _Command(NamedTuple):
    """One call of `unstale reproduce run`. share: of the examples. options: further ones."""

    presets: tuple[Preset, ...]
    share: str
    options: tuple[str, ...] = ()


def _computed(command: _Command, store: Path, at: Mapping[str, Path]) -> list[str]:
    """Compute the presets and return the errors of their output."""
    presets, share, options = command
    used = {name for preset in presets for name in data_sets(preset.cells)} & set(at)  # others are built in, or code
    data = [word for name in sorted(used) for word in ("--data", f"{name}={at[name]}")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "unstale", "reproduce", "run", *(one.name for one in presets)),
            *("--seeds", "1", "--device", "cpu", *SCALE, "--scale-data", share, *data, *options),
            *("--processes", str(max(1, (os.cpu_count() or 1) // AT_ONCE)), "--store", str(store), "--json"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    _print_times(facts)
    failed = [fact for fact in facts if fact["event"] == "failed"]
    if failed or done.returncode != 0:
        return [f"{fact['preset']}: {fact['cell']}\n{fact['traceback']}" for fact in failed] or ["no result"]
    (written,) = (fact for fact in facts if fact["event"] == "written")
    return [line for preset, page in zip(presets, written["pages"], strict=True) for line in _wrong(preset, Path(page))]


def _wrong(preset: Preset, page: Path) -> list[str]:
    """Published numbers, cell by cell, that the CSV table lacks or changes."""
    with page.with_suffix(".csv").open(encoding="utf-8", newline="") as opened:
        found = {
            (*(row[axis] for axis in (*preset.rows, *preset.columns)), row["measure"], row["published_text"])
            for row in csv.DictReader(opened)
        }
    return [
        f"{preset.name}: the published {number.text!r} of {cell.name} is not in its output"
        for cell in preset.cells
        for measure, number in cell.published.items()
        if (*(cell.labels.get(axis, "") for axis in (*preset.rows, *preset.columns)), measure, number.text) not in found
    ]


def _print_times(facts: list[dict[str, object]]) -> None:
    seconds: dict[str, list[float]] = {}
    for fact in facts:
        if fact["event"] == "finished":
            seconds.setdefault(str(fact["preset"]), []).append(float(str(fact["seconds"])))
    for name, each in seconds.items():
        print(f"{name}: {len(each)} jobs, {sum(each):.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
