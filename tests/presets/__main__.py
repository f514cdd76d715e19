"""Run every preset at a size that takes minutes in all, by the command that users run, and look at what it writes.

`python -m presets [PRESET...]`: some of them alone.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from presets import files
from unstale.experiments.choose import data_sets
from unstale.experiments.preset import Preset
from unstale.experiments.presets.registry import PRESETS

SCALE = ("--scale-rounds", "0.0001", "--scale-clients", "0.03", "--scale-data", "1")


def main(names: list[str]) -> int:
    """0 when every preset was computed and names every published number; else what is wrong is printed."""
    presets = [make() for name, make in PRESETS.items() if not names or name in names]
    with tempfile.TemporaryDirectory() as folder:
        at = files.write(Path(folder))
        used = {name for preset in presets for name in data_sets(preset.cells)}
        data = [word for name in sorted(used) for word in ("--data", f"{name}={at[name]}")]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "unstale", "reproduce", "run", *(one.name for one in presets)),
                *("--seeds", "1", "--device", "cpu", *SCALE, *data, "--store", folder, "--json"),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        facts = [json.loads(line) for line in done.stdout.splitlines()]
        for fact in facts:
            if fact["event"] == "failed":
                print(f"{fact['preset']}: {fact['cell']}\n{fact['traceback']}")
        if done.returncode != 0:
            return 1
        (written,) = (fact for fact in facts if fact["event"] == "written")
        wrong = [
            said
            for preset, page in zip(presets, written["pages"], strict=True)
            for said in _wrong(preset, Path(page).with_suffix(".md").read_text(encoding="utf-8"))
        ]
        _print_times(facts)
    print("\n".join(wrong))
    return bool(wrong)


def _wrong(preset: Preset, text: str) -> list[str]:
    published = [number.text for cell in preset.cells for number in cell.published.values()]
    return [
        f"{preset.name}: the published {number!r} is not in its output"
        for number in dict.fromkeys(published)
        if number.replace("_", "\\_") not in text
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
