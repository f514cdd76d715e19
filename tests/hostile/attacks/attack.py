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
    """One attack, and its requirements besides those of the harness for every attack.

    Attributes:
        name: of the attack.
        about: its description, for people.
        scenes: names of the servers that it can attack; the first one is the usual one.
        run: attacks while `Target.is_active`, and returns its figures.
        memory_bytes_max: bound on the additional memory of the server at its peak.
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
