"""A preset made smaller, in a stated way, for a quick look. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, gcd, sqrt
from typing import Any

import yaml

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.experiments.preset import Cell

ROUNDS_MIN = 4
EVALUATIONS_MIN, EVALUATIONS = 2, 25  # of a run that is not at full size
CLIENTS_MIN = 2
CLASSES = 10  # of the data sets that `classes` shares out
_TAKES_K = ("k-sync", "k-async", "buffered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What rounds, clients and examples are multiplied by, each in (0, 1].

    A curve has its points as many rounds apart as at full size, or closer where it would have less than 25. Clients and
    the updates of a round shrink alike, so that N/K, which sets the staleness, stays; no round has less than one
    update. A client's share of the data stays about as large when data and clients shrink alike.
    """

    rounds: float = 1.0
    clients: float = 1.0
    data: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rounds", "clients", "data"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise UserError(f"the scale of {name} is {value:g}, expected more than 0 and at most 1")

    @classmethod
    def of(cls, scale: float) -> "Scale":
        """`--scale`: rounds by it, clients and data by its root, so that work shrinks as scale**1.5 and no faster."""
        if not 0 < scale <= 1:
            raise UserError(f"--scale is {scale:g}, expected more than 0 and at most 1, such as 0.1")
        return cls(rounds=scale, clients=sqrt(scale), data=sqrt(scale))

    @property
    def is_full(self) -> bool:
        """Whether nothing is made smaller."""
        return self == Scale()

    @property
    def slug(self) -> str:
        """For a file's name: `full`, or `rounds-0.1-clients-0.316-data-0.316`."""
        if self.is_full:
            return "full"
        return f"rounds-{self.rounds:.3g}-clients-{self.clients:.3g}-data-{self.data:.3g}"

    def __str__(self) -> str:
        if self.is_full:
            return "full size"
        return f"rounds x {self.rounds:.3g}, clients x {self.clients:.3g}, data x {self.data:.3g}"


def scaled(cell: Cell, scale: Scale) -> Cell:
    """The same cell, smaller. Staleness that a scenario sets in rounds stays as it is."""
    if scale.is_full:
        return cell
    settings = cell.settings
    rounds = max(ROUNDS_MIN, ceil(settings.rounds * scale.rounds))
    clients, per_round = _clients(settings, scale.clients)
    changes: dict[str, Any] = {
        "rounds": rounds,
        "evaluate_every": _evaluate_every(settings, rounds, scale.rounds),
        "clients": clients,
        "data.share": settings.data.share * scale.data,
    }
    if settings.trigger.name in _TAKES_K:
        changes["trigger.k"] = per_round
    if settings.selector.size is not None:
        changes["selector.size"] = per_round
    budget, of_clients = settings.partition.budget, clients / settings.clients
    if budget is not None and scale.data < of_clients:  # else there is as much for each as before
        changes["partition.budget"] = max(1, int(budget * scale.data / of_clients))
    if "size" in settings.policy.settings:  # S of fedavg-s
        size = settings.policy.settings["size"]
        changes["policy.settings.size"] = max(1, round(size * clients / settings.clients))
    options = dict(cell.options)
    for key in cell.in_rounds:
        if key in options:
            options[key] = _shrunk(options[key], scale.rounds)
        else:
            changes[key] = _shrunk(_value(settings, key), scale.rounds)
    return replace(
        cell,
        settings=_changed(settings, changes),
        options=options,
        scenario=None if cell.scenario is None else _fewer(cell.scenario, scale.clients),
    )


def _evaluate_every(settings: Settings, rounds: int, scale: float) -> int:
    """More than `EVALUATIONS`, closer together than at full size, would be most of what a short run takes."""
    closer = max(1, round(settings.evaluate_every * scale), ceil(rounds / EVALUATIONS))
    return max(1, min(settings.evaluate_every, closer, rounds // EVALUATIONS_MIN))


def _clients(settings: Settings, scale: float) -> tuple[int, int | None]:
    """How many there are, and how many a round has."""
    per_round = settings.trigger.k if settings.trigger.name in _TAKES_K else settings.selector.size
    if per_round is None:
        step = _step(settings)
        return max(step, CLIENTS_MIN, step * round(settings.clients * scale / step)), None
    fewer = max(1, round(per_round * scale))
    return max(CLIENTS_MIN, fewer, round(fewer * settings.clients / per_round)), fewer


def _step(settings: Settings) -> int:
    """Only multiples of it can share the classes out evenly."""
    chosen = settings.partition
    return CLASSES // gcd(CLASSES, chosen.classes or 2) if chosen.name == "classes" else 1


def _fewer(scenario: str, scale: float) -> str:
    """The text of a scenario whose groups `top` are as much smaller as there are fewer clients."""
    said = yaml.safe_load(scenario)
    for group in said.get("groups", ()):
        audience = group.get("clients", {})
        if "top" in audience:
            audience["top"] = max(1, round(audience["top"] * scale))
    return str(yaml.safe_dump(said, sort_keys=False))


def _shrunk(rounds: float, scale: float) -> float:
    return max(1, ceil(rounds * scale))


def _value(settings: Settings, key: str) -> Any:
    found: Any = settings.model_dump()
    for part in key.split("."):
        found = found[part]
    return found


def _changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with other values at some dotted keys, checked anew."""
    values = settings.model_dump()
    for key, value in changes.items():
        *path, last = key.split(".")
        section = values
        for part in path:
            section = section[part]
        section[last] = value
    return Settings(**values)
