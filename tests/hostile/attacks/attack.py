"""The interface of an attack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hostile.target import Target

ACCURACY_MIN = 0.6
"""Of the bundled digits, which a linear model learns in a few seconds."""

Facts = Mapping[str, float]
"""Figures of an attack, by name: messages sent, updates accepted, connections closed by the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack, and what must hold under it beside all that the harness asserts of every attack.

    Attributes:
        name: of the attack.
        about: what it does, for people.
        scenes: names of the servers that it can be tried against; the first one is the usual one.
        run: does it until `Target.goes_on` says no, and returns its figures.
        memory_bytes_max: the server may take so much more at its peak than before.
        none_of: figures that must be 0, such as `accepted`.
        logged: a text that the server's log must have after the attack; None for any log.
        honest_rounds: honest updates must be accepted during the attack.
        learns: the model must learn nevertheless: test accuracy of `ACCURACY_MIN` after the attack.
    """

    name: str
    about: str
    scenes: Sequence[str]
    run: Callable[[Target], Facts]
    memory_bytes_max: int = 256 * 1024 * 1024
    none_of: Sequence[str] = ()
    logged: str | None = None
    honest_rounds: bool = True
    learns: bool = False
