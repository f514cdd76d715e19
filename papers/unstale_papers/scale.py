"""Scaling of a preset to a smaller size. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, gcd, sqrt
from typing import Any

import yaml

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale_papers.preset import Cell

ROUNDS_MIN = 4
EVALUATIONS_MIN, EVALUATIONS = 2, 100  # of a scaled run; the last ten give its final numbers
UPDATES_MIN = 5  # of a round; with fewer, its weights hardly differ
CLIENTS_MIN = 2
CLASSES = 10  # of the data sets that `classes` partitions
LOSS_EVERY = "training_loss_every"  # option of a run: evaluations between two losses of all training examples
_TAKES_K = ("k-sync", "k-async", "buffered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Factors of rounds, clients, examples and an inversion's iterations, each in (0, 1].

    The points of a curve are as many rounds apart as at full size, or closer if there were fewer than 100. Clients and
    updates of a round scale alike, which preserves N/K and so the staleness; a round has at least one update. A
    client's number of examples is about preserved when data and clients scale alike. Where each client draws a budget
    of examples, the budget scales, and the data set and its test set do not.
    """

    rounds: float = 1.0
    clients: float = 1.0
    data: float = 1.0
    iterations: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rounds", "clients", "data", "iterations"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise UserError(f"the scale of {name} is {value:g}, expected more than 0 and at most 1")

    @classmethod
    def of(cls, scale: float) -> "Scale":
        """`--scale`: rounds and iterations by it, clients and data by its root. Without inversions the work scales as
        scale**1.5.
        """
        if not 0 < scale <= 1:
            raise UserError(f"--scale is {scale:g}, expected more than 0 and at most 1, such as 0.1")
        return cls(rounds=scale, clients=sqrt(scale), data=sqrt(scale), iterations=scale)

    @property
    def is_full(self) -> bool:
        """Whether all factors are 1."""
        return self == Scale()

    @property
    def slug(self) -> str:
        """For a file's name: `full`, or `rounds-0.1-clients-0.316-data-0.316`, with `-iterations-0.1` where those
        scale.
        """
        if self.is_full:
            return "full"
        fewer = f"-iterations-{self.iterations:.3g}" if self.iterations < 1 else ""
        return f"rounds-{self.rounds:.3g}-clients-{self.clients:.3g}-data-{self.data:.3g}{fewer}"

    def at(self, cells: Iterable[Cell]) -> "Scale":
        """The scale of these cells: without iterations if none inverts."""
        return self if any(cell.in_iterations for cell in cells) else replace(self, iterations=1.0)

    def __str__(self) -> str:
        """`full size`, or the factors below 1: `rounds x 0.25, data x 0.2`."""
        factors = {"rounds": self.rounds, "clients": self.clients, "data": self.data, "iterations": self.iterations}
        return ", ".join(f"{name} x {factor:.3g}" for name, factor in factors.items() if factor < 1) or "full size"


def scaled(cell: Cell, scale: Scale) -> Cell:
    """The scaled cell. Staleness that a scenario sets in rounds is unchanged."""
    if scale.at([cell]).is_full:
        return cell
    settings = cell.settings
    rounds = max(ROUNDS_MIN, ceil(settings.rounds * scale.rounds))
    clients, per_round = _clients(settings, scale.clients)
    every = _evaluate_every(settings, rounds, scale.rounds)
    changes: dict[str, Any] = {"rounds": rounds, "evaluate_every": every, "clients": clients}
    if settings.trigger.name in _TAKES_K:
        changes["trigger.k"] = per_round
    if settings.selector.size is not None:
        changes["selector.size"] = per_round
    of_clients = clients / settings.clients
    changes |= _data(settings, scale.data, of_clients)
    if "size" in settings.policy.settings:  # S of fedavg-s
        changes["policy.settings.size"] = _fewer(settings.policy.settings["size"], of_clients)
    if "window" in settings.compensator.settings:  # n_s, the number of late clients
        window = settings.compensator.settings["window"]
        changes["compensator.settings.window"] = _fewer(window, scale.clients)
    last = settings.compensator.settings.get("last_round")  # a search may set it in any cell
    if last is not None:
        changes["compensator.settings.last_round"] = _shrunk(last, scale.rounds)
    options = dict(cell.options)
    if options.get(LOSS_EVERY) is not None:
        options[LOSS_EVERY] = _loss_every(settings, options[LOSS_EVERY], rounds // every)
    _shrink(cell, cell.in_rounds, scale.rounds, options, changes)
    _shrink(cell, cell.in_iterations, scale.iterations, options, changes)
    return replace(
        cell,
        settings=_changed(settings, changes),
        options=options,
        scenario=None if cell.scenario is None else _smaller(cell.scenario, scale.clients),
    )


def _shrink(cell: Cell, keys: Iterable[str], factor: float, options: dict[str, Any], changes: dict[str, Any]) -> None:
    """Scale the values of keys, in the options of a cell or as changes of its settings. A search may set null."""
    for key in keys:
        if key in options:
            options[key] = _shrunk(options[key], factor)
        elif (value := _value(cell.settings, key)) is not None:
            changes[key] = _shrunk(value, factor)


def _data(settings: Settings, scale: float, of_clients: float) -> dict[str, Any]:
    """Changes that scale the data: of each client's budget if there is one, so that the test set and the pool of
    examples stay; else of the share of the data set. of_clients: factor of the clients.
    """
    budget = settings.partition.budget
    if budget is None:
        return {"data.share": settings.data.share * scale}
    if scale < of_clients:  # else each client has as many examples as before
        return {"partition.budget": max(1, int(budget * scale / of_clients))}
    return {}


def _evaluate_every(settings: Settings, rounds: int, scale: float) -> int:
    """The evaluation interval: more than `EVALUATIONS` would dominate the duration of a short run."""
    closer = max(1, round(settings.evaluate_every * scale), rounds // EVALUATIONS)
    return max(1, min(settings.evaluate_every, closer, rounds // EVALUATIONS_MIN))


def _loss_every(settings: Settings, every: int, evaluations: int) -> int:
    """Evaluations between two losses of all training examples: no more losses than at full size."""
    losses = max(1, settings.rounds // settings.evaluate_every // every)
    return max(every, ceil(evaluations / losses))


def _clients(settings: Settings, scale: float) -> tuple[int, int | None]:
    """Number of clients, and of updates per round."""
    per_round = settings.trigger.k if settings.trigger.name in _TAKES_K else settings.selector.size
    if per_round is None:
        step = _step(settings)
        return max(step, CLIENTS_MIN, step * round(settings.clients * scale / step)), None
    fewer = max(1, round(per_round * scale))
    return max(CLIENTS_MIN, fewer, round(fewer * settings.clients / per_round)), fewer


def _step(settings: Settings) -> int:
    """The divisor of client counts that divide the classes evenly."""
    chosen = settings.partition
    return CLASSES // gcd(CLASSES, chosen.classes or 2) if chosen.name == "classes" else 1


@cache
def _smaller(scenario: str, scale: float) -> str:
    """The text of a scenario with its groups `top` scaled like the clients. Many cells share a text."""
    parsed = yaml.safe_load(scenario)
    for group in parsed.get("groups", ()):
        audience = group.get("clients", {})
        if "top" in audience:
            audience["top"] = _fewer(audience["top"], scale)
    return str(yaml.safe_dump(parsed, sort_keys=False))


def _fewer(number: int, scale: float) -> int:
    return max(1, round(number * scale))


def _shrunk(rounds: float, scale: float) -> float:
    return max(1, ceil(rounds * scale))


def lost(cells: Iterable[Cell], scale: Scale) -> list[str]:
    """Sentences on properties that scaled cells lose."""
    both = [(cell, scaled(cell, scale)) for cell in cells]
    sentences = [sentence for full, here in both for sentence in _lost(full, here)]
    return list(dict.fromkeys([*sentences, *_made_one(both)]))


def _made_one(both: Iterable[tuple[Cell, Cell]]) -> Iterator[str]:
    """Sentences on cells that differ only at full size. both: each cell at full size and scaled."""
    alike: dict[str, dict[str, Cell]] = {}
    for full, here in both:
        alike.setdefault(_run(here), {}).setdefault(_run(full), full)
    for cells in alike.values():
        if len(cells) > 1:
            of_all = [set(cell.labels.items()) for cell in cells.values()]
            shared = of_all[0].intersection(*of_all)
            own = [sorted(labels - shared) for labels in of_all]
            named = [" ".join(f"{axis}={at}" for axis, at in labels) for labels in own]
            yield _MADE_ONE.format(named=f"{', '.join(named[:-1])} and {named[-1]}")


def _run(cell: Cell) -> str:
    """The configuration of a cell without its name."""
    return repr((cell.settings, cell.measurement, dict(cell.options), cell.scenario))


def _lost(full: Cell, here: Cell) -> Iterator[str]:
    most, updates = full.settings.trigger.k, here.settings.trigger.k
    if full.settings.trigger.name in _TAKES_K:
        assert most is not None and updates is not None
        if updates < min(UPDATES_MIN, most):
            yield _OF_FEW.format(updates=f"{updates} update{'s' * (updates > 1)}", most=most)
    late = _staleness(here.scenario) if here.measurement == "run" else 0
    last = here.settings.compensator.settings.get("last_round")
    if here.settings.rounds <= late < full.settings.rounds:
        yield _NEVER_LATE.format(staleness=late, rounds=here.settings.rounds)
    elif last is not None and last <= late < full.settings.compensator.settings["last_round"]:
        yield _NEVER_INVERTED.format(staleness=late, last=last)
    oldest = max(here.options.get("staleness", (0,)))
    if here.settings.rounds < oldest <= full.settings.rounds:
        yield _TOO_OLD.format(oldest=oldest, rounds=here.settings.rounds)


_MADE_ONE = "Where they differ at full size, {named} are one and the same run here."
_OF_FEW = (
    "A round has {updates} here, {most} at full size: how a policy weighs the updates of a round against each other "
    "hardly shows, and with one update DynSGD, REFL and TWAFL are FedAvg."
)
_NEVER_LATE = (
    "Who is {staleness} rounds late is so after {staleness} rounds, and these runs have {rounds}: nobody is late in "
    "them."
)
_NEVER_INVERTED = (
    "Who is {staleness} rounds late is so after {staleness} rounds, and some runs end inversion after {last}: there is "
    "nothing to invert in them."
)
_TOO_OLD = (
    "Errors are looked at for updates up to {oldest} rounds late, and these runs have {rounds}: of what is older there "
    "is no number."
)


def _staleness(scenario: str | None) -> int:
    """Staleness in rounds of late clients; 0 without any."""
    groups = () if scenario is None else yaml.safe_load(scenario).get("groups", ())
    return max((group.get("stale_rounds") or 0 for group in groups), default=0)


def _value(settings: Settings, key: str) -> Any:
    found: Any = settings.model_dump()
    for part in key.split("."):
        found = found[part]
    return found


def _changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with other values at some dotted keys, validated again."""
    values = settings.model_dump()
    for key, value in changes.items():
        *path, last = key.split(".")
        section = values
        for part in path:
            section = section[part]
        section[last] = value
    return Settings(**values)
