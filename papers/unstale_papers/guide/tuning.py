"""Searches of the guide's rates on a validation split, in grids that grow while the best candidate is at an edge."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from unstale.errors import UserError
from unstale_papers.presets.guide import AXES, LADDERS, METHOD, METHODS, STALENESS, Found, preset, start_grid

VALIDATION = 0.2
SEARCHED = {"heterogeneity": "non-iid", "absence": "none"}
"""The conditions of a search. The rates that it finds hold at all others of the same staleness."""
WIDENINGS = 3
"""Times that the grid of a policy is made wider, by one value at each edge that has the best candidate."""

Place = tuple[str, str]
"""Staleness and method: what rates are searched for."""
Grid = Mapping[str, tuple[float, ...]]
"""Values to search by key, each a part of the key's ladder."""
_Items = tuple[tuple[str, tuple[float, ...]], ...]
"""A grid that can be the key of a dictionary."""
Run = Callable[[Sequence[str]], Iterable[tuple[Place, Mapping[str, float]]]]
"""Run a command of `unstale`: the best candidate, values by key, of each place."""


def tune(task: str, run: Run) -> Found:
    """Search the rates of a task.

    Args:
        task: A key of TASKS.
        run: Runs a search.

    Raises:
        UserError: A search fails, or no candidate of a policy has a number.
    """
    found = _Searched()
    pending: dict[Place, Grid] = {place: start_grid(task, place[1]) for place in product(AXES[STALENESS], METHODS)}
    for _ in range(1 + WIDENINGS):
        for words, grid in commands(task, pending):
            for place, best in run(words):
                found.add(place, words, grid, best)
        wider = {place: wider_grid(grid, found.best[place]) for place, grid in pending.items()}
        pending = {place: grid for place, grid in wider.items() if grid != pending[place]}
    return found.result()


def commands(task: str, grids: Mapping[Place, Grid]) -> Iterator[tuple[list[str], Grid]]:
    """The arguments of `unstale` that search these grids, with the grid of each: one for policies that share it."""
    levels: dict[tuple[str, _Items], list[str]] = {}
    for (level, method), grid in grids.items():
        levels.setdefault((method, tuple(grid.items())), []).append(level)
    methods: dict[tuple[tuple[str, ...], _Items], list[str]] = {}
    for (method, values), of_method in levels.items():
        methods.setdefault((tuple(of_method), values), []).append(method)
    shared = " ".join(f"{axis}={label}" for axis, label in SEARCHED.items())
    for (of_levels, values), names in methods.items():
        cells = f"{shared} {STALENESS}={','.join(of_levels)} {METHOD}={','.join(names)}"
        over = [word for key, of_key in values for word in ("--over", f"{key}={','.join(map(str, of_key))}")]
        yield ["sweep", f"guide-{task}", "--cells", cells, *over, "--validation", str(VALIDATION)], dict(values)


def wider_grid(grid: Grid, best: Mapping[str, float]) -> Grid:
    """The grid with the next value of its ladder at each edge that the best candidate has; the same without any."""
    return {key: _wider(values, LADDERS[key], best[key]) for key, values in grid.items()}


def _wider(values: tuple[float, ...], ladder: tuple[float, ...], best: float) -> tuple[float, ...]:
    low, high = ladder.index(values[0]), ladder.index(values[-1])
    return ladder[max(0, low - (best == values[0])) : high + 1 + (best == values[-1])]


@dataclass
class _Searched:
    """What was searched and found so far, by staleness and method."""

    best: dict[Place, Mapping[str, float]] = field(default_factory=dict)
    grids: dict[Place, Grid] = field(default_factory=dict)
    commands: dict[Place, str] = field(default_factory=dict)

    def add(self, place: Place, words: Sequence[str], grid: Grid, best: Mapping[str, float]) -> None:
        self.best[place], self.grids[place] = best, grid
        self.commands[place] = shlex.join(["unstale", *words])

    def result(self) -> Found:
        """The last search of each place, which has all candidates of those before it."""
        rates: dict[str, dict[str, Mapping[str, float]]] = {}
        searched: dict[str, dict[str, Grid]] = {}
        for level, method in sorted(self.best, key=list(product(AXES[STALENESS], METHODS)).index):
            rates.setdefault(level, {})[method] = self.best[level, method]
            searched.setdefault(level, {})[method] = self.grids[level, method]
        return Found(commands=tuple(sorted(set(self.commands.values()))), rates=rates, searched=searched)


def searches(options: Sequence[str]) -> Run:
    """Run searches in processes of their own. options: further ones, of the machine."""

    def run(words: Sequence[str]) -> Iterator[tuple[Place, Mapping[str, float]]]:
        program = [sys.executable, "-m", "unstale", *words, *options, "--json"]
        done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603  (a module of ours)
        if done.returncode:
            raise UserError(f"the search ended with exit code {done.returncode}: {shlex.join(['unstale', *words])}")
        events = [json.loads(line) for line in done.stdout.splitlines()]
        (found,) = (event for event in events if event["event"] == "found")
        cells = {cell.name: cell for cell in preset(words[1].removeprefix("guide-")).cells}
        for group in found["groups"]:
            (name,) = group["cells"]
            if not group["best"]:
                raise UserError(f"{group['says']} Name other values in unstale_papers/presets/guide.py")
            labels = cells[name].labels
            yield (labels[STALENESS], labels[METHOD]), group["best"][0]

    return run
