"""Cells and seeds as jobs: what each of them computes, and the digest by which it is known. Pure.

A job is independent of all others. Two that compute the same have one digest, whichever preset they are of.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
"""Counts up when the same configuration comes to mean another result: a default that changes, a mistake that is mended,
another `Record`. What was computed before is then computed anew."""

GROUP = "group"
"""Column of a file in the place of a data set that says whose an example is, where clients are people."""

_OF_THE_RECORD = frozenset({"evaluate_every", "evaluate_clients_every", "simulation.backend", "data.path"})
"""Keys that move no bit of a model on its way, or say only where something lies, and yet say what is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """An `.npz` file in the place of a data set. path: absolute. sha256: of its bytes, hex, when it had this size, in
    bytes, and was last modified at that time, nanoseconds since 1970.
    """

    path: str
    sha256: str
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What whoever runs a preset says, and the preset does not.

    cache: the folder of data sets. device: as PyTorch names it, never auto. files: by the name of the data set in whose
    place each is.
    """

    cache: str
    device: str = "cpu"
    files: Mapping[str, File] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell with one seed.

    cell: its name. module: of its measurement. settings: final. files: those that it reads in place of data sets.
    configuration: all that can move a bit of its result, as canonical JSON. digest: SHA-256 of that, hex.
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
        """What a process is told that does it, as JSON has it."""
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
    """Every cell with every seed, the first seed of all cells before the second: a table is whole soon.

    Raises UserError for a measurement that there is not.
    """
    smaller = [scaled(cell, scale) for cell in cells]
    return [_job(preset, cell, seed, place) for seed in seeds for cell in smaller]


def canonical(configuration: Mapping[str, Any]) -> str:
    """As JSON of which there is one for each value: what a digest is made of."""
    return json.dumps(configuration, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def given(settings: Settings) -> dict[str, Any]:
    """What is not its default, nested, as JSON has it: made anew from it, settings are the same."""
    return settings.model_dump(mode="json", exclude_defaults=True)


def values(settings: Settings) -> dict[str, Any]:
    """What is not its default, by whole key, as JSON has it."""
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
    """With what the place says."""
    on_cpu = place.device == "cpu"
    simulation = settings.simulation.model_copy(update={"backend": "loop", "processes": None})
    return settings.model_copy(
        update={
            "seed": seed,
            "device": place.device,
            "threads": 1,
            "data": _data(settings, place),
            "run": settings.run.model_copy(update={"durability": "off"}),
            # Each job has a core of its own; a GPU may compute several clients side by side.
            "simulation": simulation if on_cpu else settings.simulation,
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
    """What can move a bit, by key: of a file its bytes and not its path, of a device its kind and not its number."""
    chosen = {key: value for key, value in values(settings).items() if decides(key) or key in _OF_THE_RECORD}
    for key in ("data.path", "data.variant.path"):
        if key in chosen:
            chosen[key] = sha256.get(chosen[key], chosen[key])
    chosen["device"] = settings.device.partition(":")[0]
    if has_scenario:
        chosen.pop("scenario.name", None)
    return chosen
