"""Stored results by the size of their runs. Pure.

A store knows a result by the digest of its configuration, without the scale and the replaced data of its run. Both are
found again: the configuration beside that of the cell which the result is named after gives candidates, and the digest
confirms one.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import floor
from typing import Any

from unstale.config.settings import Settings
from unstale_papers.comparison import Comparison
from unstale_papers.jobs import ELSEWHERE, File, Place, canonical, jobs, reported
from unstale_papers.preset import Cell, Preset
from unstale_papers.record import Record
from unstale_papers.scale import Scale
from unstale_papers.store import StoredResult

_NAME = re.compile(r"(?P<preset>[^:]+): (?P<cell>.*), seed (?P<seed>\d+)")  # Job.name
_CACHE = "cache"  # where data sets lie affects no digest
_DATA = {"data.path": ("data", "name"), "data.variant.path": ("data", "variant", "name")}
"""Keys that have the SHA-256 of a file, and where a cell's settings have the name of the data set that it replaces."""

_VARIED = ("seed", "device", "simulation.backend")
"""Keys whose values differ between the results of one cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedComparison:
    """A preset and its results of one size.

    files: SHA-256 of the file by the data set that it replaces. computed_for: names of the presets that the results
    were computed for first, as presets share runs.
    """

    comparison: Comparison
    scale: Scale
    files: Mapping[str, str]
    computed_for: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The conditions under which a result was computed. is_inverted: whether its cell has iterations to scale."""

    scale: Scale
    is_inverted: bool
    seed: int
    files: frozenset[tuple[str, str]]


def comparisons(results: Iterable[StoredResult], presets: Sequence[Preset]) -> list[SizedComparison]:
    """Compare each preset at each size that has results of it, the largest size first.

    Of a data set that different files replace at one size, the file with most results counts, because a claim never
    compares runs on different data. Results of a cell that a preset no longer has in this way are ignored.
    """
    by_digest = {result.digest: result for result in results}
    cells = {(preset.name, cell.name): (preset, cell) for preset in presets for cell in preset.cells}
    runs = [run for result in by_digest.values() if (run := _run(result, cells)) is not None]
    records = _Records(by_digest)
    return [
        SizedComparison(
            comparison=Comparison(
                preset=preset, records={key: records.parsed(digest) for key, digest in found.items()}
            ),
            scale=scale,
            files=files,
            computed_for=tuple(sorted({by_digest[digest].name.partition(":")[0] for digest in found.values()})),
        )
        for scale in sorted(_scales(runs), key=_work, reverse=True)
        for of_scale in [[run for run in runs if _is_of(run, scale)]]
        for files in [_files(of_scale)]
        for preset in presets
        if (found := records.of(preset, scale, of_scale, files))
    ]


def _work(scale: Scale) -> tuple[float, ...]:
    """Sort key of sizes: the product of the factors, then each."""
    factors = (scale.rounds, scale.clients, scale.data, scale.iterations)
    return (scale.rounds * scale.clients * scale.data * scale.iterations, *factors)


def _scales(runs: Sequence[_Run]) -> set[Scale]:
    """Scales of the runs. One without an inversion is of every scale that differs from its own in iterations only."""
    inverted = {run.scale for run in runs if run.is_inverted}
    covered = {replace(scale, iterations=1.0) for scale in inverted}
    return inverted | ({run.scale for run in runs} - covered)


def _is_of(run: _Run, scale: Scale) -> bool:
    return run.scale == scale or (not run.is_inverted and run.scale == replace(scale, iterations=1.0))


def _files(runs: Iterable[_Run]) -> dict[str, str]:
    """The most frequent file of each data set."""
    counts = Counter(pair for run in runs for pair in run.files)
    found: dict[str, str] = {}
    for (name, sha256), _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        found.setdefault(name, sha256)
    return {name: sha256 for name, sha256 in sorted(found.items()) if sha256}


class _Records:
    """Records by digest, each parsed once."""

    def __init__(self, by_digest: Mapping[str, StoredResult]) -> None:
        self._by_digest = by_digest
        self._parsed: dict[str, Record] = {}
        self._results_of = {_shared(result.configuration) for result in by_digest.values()}

    def of(
        self, preset: Preset, scale: Scale, runs: Sequence[_Run], files: Mapping[str, str]
    ) -> dict[tuple[str, int], str]:
        """Digests of the preset's results by cell and seed. runs: of that scale. Of several devices the first one of
        `ELSEWHERE` counts.
        """
        seeds, place = sorted({run.seed for run in runs}), _place(*ELSEWHERE[0], files)
        first = jobs(preset, preset.cells, seeds=seeds[:1], scale=scale, place=place)
        # The digests of all seeds and devices take long, so cells without a result are left out by what is shared.
        with_first = zip(preset.cells, first, strict=True)
        cells = [cell for cell, job in with_first if _shared(job.configuration) in self._results_of]
        own = jobs(preset, cells, seeds=seeds, scale=scale, place=place)
        found = reported(preset, own, scale=scale, place=place, is_done=self._by_digest.__contains__)
        return {(job.cell, job.seed): job.digest for job in found if job.digest in self._by_digest}

    def parsed(self, digest: str) -> Record:
        if digest not in self._parsed:
            self._parsed[digest] = Record.from_json(self._by_digest[digest].result.record)
        return self._parsed[digest]


def _shared(configuration: str) -> str:
    """What the configurations of a cell's results have in common."""
    parts = json.loads(configuration)
    return canonical({**parts, "settings": {key: of for key, of in parts["settings"].items() if key not in _VARIED}})


def _place(device: str, backend: str, files: Mapping[str, str]) -> Place:
    """The place of runs whose files are known by their SHA-256 alone."""
    return Place(
        cache=_CACHE,
        device=device,
        backend=backend,
        files={name: File(path=f"/{sha256}", sha256=sha256, size=0, modified_ns=0) for name, sha256 in files.items()},
    )


def _run(result: StoredResult, cells: Mapping[tuple[str, str], tuple[Preset, Cell]]) -> _Run | None:
    """The conditions of a result; None where it is not one of a preset as it is now, such as that of a search."""
    name = _NAME.fullmatch(result.name)
    if name is None or (name["preset"], name["cell"]) not in cells:
        return None
    preset, cell = cells[name["preset"], name["cell"]]
    configuration = json.loads(result.configuration)
    own, seed = configuration["settings"], int(name["seed"])
    device, backend = own.get("device", Settings().device), own.get("simulation.backend", Settings().simulation.backend)
    files = {of: own.get(key, "") for key, path in _DATA.items() if (of := _value(cell.settings, path)) is not None}
    place = _place(device, backend, {of: sha256 for of, sha256 in files.items() if sha256})
    for scale in _candidates(cell, configuration):
        (job,) = jobs(preset, [cell], seeds=[seed], scale=scale, place=place)
        if job.digest == result.digest:
            return _Run(
                scale=scale.at([cell]), is_inverted=bool(cell.in_iterations), seed=seed, files=frozenset(files.items())
            )
    return None


def _candidates(cell: Cell, configuration: Mapping[str, Any]) -> Iterator[Scale]:
    """Scales that the configuration may have. A scaled number is rounded, so that the ratio to the cell's is near."""
    full, own = cell.settings, configuration["settings"]
    default = Settings()
    rounds = own.get("rounds", default.rounds) / full.rounds
    clients = own.get("clients", default.clients) / full.clients
    if full.partition.budget is None:
        data = own.get("data.share", default.data.share) / full.data.share
    else:
        data = own.get("partition.budget", full.partition.budget) / full.partition.budget * clients
    iterations = next((ratio for key in cell.in_iterations for ratio in _ratio(cell, configuration, key)), 1.0)
    # With `--scale` clients and data have one factor, and that of the data is exact.
    between = _between(own.get("rounds", default.rounds) - 1, full.rounds)
    for factors in product([*_near(rounds), *between], [*_near(clients), *_near(data)], _near(data), _near(iterations)):
        yield Scale(**dict(zip(("rounds", "clients", "data", "iterations"), factors, strict=True)))


def _near(ratio: float) -> list[float]:
    """Factors that a user may have given: the ratio with three digits, and itself."""
    return [factor for factor in dict.fromkeys((float(f"{ratio:.3g}"), ratio)) if 0 < factor <= 1]


def _between(below: int, full: int) -> list[float]:
    """The shortest factor with which a full number is rounded up to the one above `below`."""
    for digits in range(1, 7):
        factor = (floor(below / full * 10**digits) + 1) / 10**digits
        if below / full < factor < (below + 1) / full:
            return [factor]
    return []


def _ratio(cell: Cell, configuration: Mapping[str, Any], key: str) -> Iterator[float]:
    """The ratio of a number in options or settings to the cell's, where both have it."""
    part, _, name = key.rpartition(".")
    full = cell.options.get(key) if key in cell.options else _value(cell.settings, key.split("."))
    options, settings = configuration["options"], configuration["settings"]
    scaled = options.get(key, settings.get(key, settings.get(part, {}).get(name)))
    if full and scaled is not None:
        yield scaled / full


def _value(settings: Settings, path: Iterable[str]) -> Any:
    value: Any = settings.model_dump()
    for part in path:
        value = value.get(part)
    return value
