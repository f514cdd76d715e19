"""Writes the table of docs/device.md, and prints what changes; with parts: prints where a step of each one waits."""

import argparse
import sys
from collections import Counter

import torch

from device import table
from device.counts import NAMES, on_device
from device.parts import PARTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tests python -m device", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="such as 'policy wkafl'")
    parts = parser.parse_args().parts
    unknown = [name for name in parts if name not in PARTS]
    if unknown:
        parser.error(f"part is {unknown[0]!r}, expected one of docs/device.md")
    torch.set_num_threads(1)
    if parts:
        for name in parts:
            show(name)
    else:
        write()


def write() -> None:
    before = table.read()
    now = {name: on_device(part).counts for name, part in PARTS.items()}
    table.write(now)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            say(f"{name}: {_text(before.get(name))} -> {_text(now.get(name))}")


def show(name: str) -> None:
    say(f"{name}:")
    for kind, events in zip(NAMES, on_device(PARTS[name]).worst, strict=True):
        say(f"  {len(events)} {kind}")
        for event, times in Counter(map(str, events)).most_common():
            say(f"    {times} x {event}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _text(counts: tuple[int, ...] | None) -> str:
    return "none" if counts is None else ", ".join(map(str, counts))


if __name__ == "__main__":
    main()
