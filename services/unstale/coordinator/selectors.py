"""Who gets a task: one class a selector.

Source: docs/methods/rounds.md#selectors
"""

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from unstale.errors import UserError
from unstale.plugins import Registry
from unstale.seeds import Generator, Stream, stream
from unstale.settings.learning import SelectorSettings
from unstale.settings.part import takes


class Selector(ABC):
    """The interface. A selector keeps no state, and draws from nothing but its arguments."""

    in_rounds: ClassVar[bool] = False
    """Only for triggers that choose participants when a round starts: in other loops nobody might be at work."""
    size: int | None = None
    """How many clients work at a time; None for all."""

    @abstractmethod
    def choose(self, candidates: Sequence[int], *, busy: int, seed: int, key: tuple[int, ...]) -> Sequence[int]:
        """Clients out of the candidates, ascending.

        candidates: client ids, ascending. busy: clients that hold a place already. seed, key: what a draw is
        made from; the key is the version, followed by the number of tasks given so far where a version sees
        several draws.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class All(Selector):
    """Everyone."""

    @override
    def choose(self, candidates: Sequence[int], *, busy: int, seed: int, key: tuple[int, ...]) -> Sequence[int]:
        return candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places(Selector):
    """At most `size` busy clients. size: S of the papers, >= 1."""

    size: int

    @override
    def choose(self, candidates: Sequence[int], *, busy: int, seed: int, key: tuple[int, ...]) -> Sequence[int]:
        places = max(0, self.size - busy)
        if places >= len(candidates):
            return candidates
        return self._draw(candidates, places, stream(seed, Stream.SELECTION, *key)) if places else ()

    @abstractmethod
    def _draw(self, candidates: Sequence[int], places: int, rng: Generator) -> Sequence[int]:
        """Fill 1 or more places, fewer than there are candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Random(_Places):
    """Drawn uniformly without replacement."""

    @override
    def _draw(self, candidates: Sequence[int], places: int, rng: Generator) -> Sequence[int]:
        if places == 1:  # what a buffered trigger asks for after each update; five times as fast
            return [candidates[int(rng.integers(len(candidates)))]]
        drawn = rng.choice(len(candidates), size=places, replace=False)
        return [candidates[index] for index in sorted(drawn.tolist())]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin(Selector):
    """In turn: version t belongs to the clients t * size, t * size + 1, ..., `size` of them, counted modulo N.

    Of those, the candidates; in the place of others nobody else. size: m of the paper, 1 to N. clients: N.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/rounds.md#round-robin
    """

    size: int
    clients: int

    in_rounds: ClassVar[bool] = True

    @override
    def choose(self, candidates: Sequence[int], *, busy: int, seed: int, key: tuple[int, ...]) -> Sequence[int]:
        first = key[0] * self.size % self.clients
        end = first + self.size
        past_zero = candidates[: bisect_left(candidates, end - self.clients)]
        return [*past_zero, *candidates[bisect_left(candidates, first) : bisect_left(candidates, end)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastAvailable(_Places):
    """Clients that are least often available first; drawn uniformly among equals, or low ids would come first."""

    availability: tuple[float, ...]  # p_i of every client

    @override
    def _draw(self, candidates: Sequence[int], places: int, rng: Generator) -> Sequence[int]:
        ranks = rng.permutation(len(candidates)).tolist()
        ranked = (
            (self.availability[client_id], rank, client_id) for client_id, rank in zip(candidates, ranks, strict=True)
        )
        return sorted(client_id for _, _, client_id in heapq.nsmallest(places, ranked))


SELECTORS: Mapping[str, type[Selector]] = {
    "all": All,
    "random": Random,
    "round-robin": RoundRobin,
    "availability": LeastAvailable,
}
"""Built-in selectors by their names in the configuration."""

REGISTRY = Registry(kind="selector", base=Selector, where="unstale.coordinator.selectors", built_in=SELECTORS)


def create(settings: SelectorSettings, *, clients: int, availability: tuple[float, ...] | None) -> Selector:
    """The selector that these settings choose. clients, availability: as in `CoordinatorSettings`. Raises UserError."""
    made = REGISTRY.make(settings, clients=clients, availability=availability)
    if availability is None and takes(REGISTRY.factory(settings.name), "availability"):
        raise UserError(f"selector {settings.name!r} needs a scenario with a dropout by rounds, and none was given")
    return made
