"""Cells and seeds as jobs: the settings of each, and the digest that identifies it. Pure.

Jobs are independent. Two that compute the same have one digest, also in different presets.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from unstale.config.keys import KEYS
from unstale.config.settings import Settings
from unstale.errors import unknown_name
from unstale.journal.rundir import decides
from unstale.settings.learning import DataSettings
from unstale_papers.preset import Cell, Preset
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.scale import Scale, scaled

RECORD_FORMAT = 2
"""Increases when the same configuration gives another result: a changed default, a corrected error, another `Record`.
Earlier results are then computed again."""

GROUP = "group"
"""Column of a substituted data file that names the owner of an example, where clients are people."""

ELSEWHERE = (("cpu", "loop"), ("cpu", "vmap"), ("cuda", "auto"), ("cuda", "vmap"), ("cuda", "loop"), ("mps", "auto"))
"""Devices and backends whose results are equally good, in order of preference."""

_OF_THE_RECORD = frozenset({"evaluate_every", "evaluate_clients_every", "simulation.backend", "data.path"})
"""Keys that do not affect the model's bits, or name a location, but affect the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """An `.npz` file that replaces a data set. path: absolute. sha256: hex, of its bytes at this size (bytes) and
    modification time (nanoseconds since 1970).
    """

    path: str
    sha256: str
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The choices of the user who runs a preset.

    cache: the folder of data sets. device: as PyTorch names it, never auto. backend: of simulated clients; auto is the
    loop on the CPU, where each job has a core. files: by the name of the data set that each replaces.
    """

    cache: str
    device: str = "cpu"
    backend: str = "auto"
    files: Mapping[str, File] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell with one seed.

    cell: its name. module: of its measurement. settings: final. files: those that replace data sets. configuration:
    everything that affects its result, as canonical JSON. digest: SHA-256 of the configuration, hex.
    """

    preset: str
    cell: str
    seed: int
    module: str
    settings: Settings
    options: Mapping[str, Any]
    scenario: str | None
    files: tuple[File, ...]
    configuration: str
    digest: str

    @property
    def name(self) -> str:
        """`fh-t2: data=CIFAR-10 method=FedHist, seed 0`."""
        return f"{self.preset}: {self.cell}, seed {self.seed}"

    @property
    def order(self) -> dict[str, Any]:
        """The message to the process that runs the job, as JSON values."""
        return {
            "digest": self.digest,
            "module": self.module,
            "settings": given(self.settings),
            "options": dict(self.options),
            "scenario": self.scenario,
            "files": {
                file.path: {"sha256": file.sha256, "size": file.size, "modified_ns": file.modified_ns}
                for file in self.files
            },
        }


def jobs(preset: Preset, cells: Iterable[Cell], *, seeds: Sequence[int], scale: Scale, place: Place) -> list[Job]:
    """Every cell with every seed, the first seed of all cells before the second, so that a table is complete early.

    Raises UserError for an unknown measurement.
    """
    smaller = [scaled(cell, scale) for cell in cells]
    return [_job(preset, cell, seed, place) for seed in seeds for cell in smaller]


def reported(
    preset: Preset, own: Sequence[Job], *, scale: Scale, place: Place, is_done: Callable[[str], bool]
) -> list[Job]:
    """These jobs; in place of each that is not done, the same one on another device or backend, if done there.

    Args:
        preset: Preset of the jobs.
        own: Jobs at this scale and place.
        is_done: Whether the job with a digest is done.
    """
    found = {(job.cell, job.seed): job for job in own}
    seeds = sorted({job.seed for job in own})
    for device, backend in ELSEWHERE:
        missing = {key for key, job in found.items() if not is_done(job.digest)}
        names = {name for name, _ in missing}
        there = replace(place, device=device, backend=backend)
        cells = [cell for cell in preset.cells if cell.name in names]
        for job in jobs(preset, cells, seeds=seeds, scale=scale, place=there):
            if (job.cell, job.seed) in missing and is_done(job.digest):
                found[job.cell, job.seed] = job
    return list(found.values())


def canonical(configuration: Mapping[str, Any]) -> str:
    """Canonical JSON, the input of the digest."""
    return json.dumps(configuration, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def given(settings: Settings) -> dict[str, Any]:
    """Non-default settings, nested, as JSON values; settings built from them are equal."""
    return settings.model_dump(mode="json", exclude_defaults=True)


def values(settings: Settings) -> dict[str, Any]:
    """Non-default settings by dotted key, as JSON values."""
    return dict(_by_key(given(settings), ""))


def _by_key(nested: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        key = above + name
        if key in KEYS:
            yield key, value
        else:
            yield from _by_key(value, f"{key}.")


def _job(preset: Preset, cell: Cell, seed: int, place: Place) -> Job:
    if cell.measurement not in MEASUREMENTS:
        raise unknown_name("measurement", cell.measurement, MEASUREMENTS)
    settings = _settled(cell.settings, seed, place)
    paths = {settings.data.path, settings.data.variant.path}
    files = tuple(file for file in place.files.values() if file.path in paths)
    configuration = canonical(
        {
            "format": RECORD_FORMAT,
            "measurement": cell.measurement,
            "options": dict(cell.options),
            "scenario": cell.scenario,
            "settings": _deciding(
                settings, {file.path: file.sha256 for file in files}, has_scenario=cell.scenario is not None
            ),
        }
    )
    return Job(
        preset=preset.name,
        cell=cell.name,
        seed=seed,
        module=MEASUREMENTS[cell.measurement],
        settings=settings,
        options=cell.options,
        scenario=cell.scenario,
        files=files,
        configuration=configuration,
        digest=sha256(configuration.encode()).hexdigest(),
    )


def _settled(settings: Settings, seed: int, place: Place) -> Settings:
    """The settings with the choices of the place."""
    backend = "loop" if place.device == "cpu" and place.backend == "auto" else place.backend
    return settings.model_copy(
        update={
            "seed": seed,
            "device": place.device,
            "threads": 1,
            "data": _data(settings, place),
            "run": settings.run.model_copy(update={"durability": "off"}),
            "simulation": settings.simulation.model_copy(update={"backend": backend, "processes": None}),
        }
    )


def _data(settings: Settings, place: Place) -> DataSettings:
    data = settings.data
    changes: dict[str, Any] = {"cache": place.cache}
    if data.name in place.files:
        changes |= {"name": "npz", "path": place.files[data.name].path}
        if settings.partition.name == "natural":
            changes["column"] = GROUP
    later = data.variant.name
    if later is not None and later in place.files:
        there = {"name": "npz", "path": place.files[later].path}
        changes["variant"] = data.variant.model_copy(update=there)
    return data.model_copy(update=changes)


def _deciding(settings: Settings, sha256: Mapping[str, str], *, has_scenario: bool) -> dict[str, Any]:
    """Settings that affect results, by key: a file by its bytes, a device by its kind."""
    chosen = {key: value for key, value in values(settings).items() if decides(key) or key in _OF_THE_RECORD}
    for key in ("data.path", "data.variant.path"):
        if key in chosen:
            chosen[key] = sha256.get(chosen[key], chosen[key])
    chosen["device"] = settings.device.partition(":")[0]
    if has_scenario:
        chosen.pop("scenario.name", None)
    return chosen
