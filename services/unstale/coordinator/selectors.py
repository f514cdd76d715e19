"""Who gets a task: one class a selector. Source: design.md 3."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from unstale.seeds import Stream, stream


class Selector(ABC):
    """The interface. A selector keeps no state, and draws from nothing but its arguments."""

    @abstractmethod
    def choose(
        self, candidates: Sequence[int], *, busy: int, seed: int, key: tuple[int, ...]
    ) -> Sequence[int]:
        """Clients out of the candidates, ascending.

        candidates: client ids, ascending. busy: clients that hold a place already. seed, key: what a draw is
        made from; the key is the version, followed by the number of tasks given so far where a version sees
        several draws.
        """


@dataclass(frozen=True, slots=True)
class All(Selector):
    """Everyone."""

    @override
    def choose(
        self, candidates: Sequence[int], *, busy: int, seed: int, key: tuple[int, ...]
    ) -> Sequence[int]:
        return candidates


@dataclass(frozen=True, slots=True)
class Random(Selector):
    """At most `size` busy clients, drawn uniformly without replacement. size: S of the papers, >= 1."""

    size: int

    @override
    def choose(
        self, candidates: Sequence[int], *, busy: int, seed: int, key: tuple[int, ...]
    ) -> Sequence[int]:
        places = max(0, self.size - busy)
        if places >= len(candidates):
            return candidates
        if places == 0:
            return ()
        rng = stream(seed, Stream.SELECTION, *key)
        if places == 1:  # what a buffered trigger asks for after each update; five times as fast
            return [candidates[int(rng.integers(len(candidates)))]]
        drawn = rng.choice(len(candidates), size=places, replace=False)
        return [candidates[index] for index in sorted(drawn.tolist())]


SELECTORS: Mapping[str, type[Selector]] = {"all": All, "random": Random}
"""Every selector by its name in the configuration."""
