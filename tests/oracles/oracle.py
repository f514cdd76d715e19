"""The base of all oracles: an update as a record, the numerical conventions, and the round counter.

Names are those of docs/methods/README.md: w, g, s, n, m, eta, N, K = len(A). A: the updates of a round in order of
arrival. A vector is a float64 array [d].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Update:
    """One arrival. m: examples behind g; None means n. eta_l: the client's rate; None means eta of the round.

    w_b: the model it was computed from; None means the current one. extra: the second vector of SCAFFOLD.
    """

    client: int
    s: int
    g: Vector
    n: int = 1
    m: int | None = None
    loss: float = 1.0
    eta_l: float | None = None
    w_b: Vector | None = None
    extra: Vector | None = None


class Oracle:
    """One policy: `step` is one round, and all other memory is in plain attributes.

    counts: whether the last round counts for a schedule of rates. margin: distance of the last round from the
    opposite decision at a threshold or a choice, in the unit compared; float32 may decide differently where it is tiny.
    weights: of each update of the last round in its step, if the method defines them; 0 without a step.
    """

    def __init__(
        self, *, clients: int, dimension: int, seed: int = 0, round_size: int | None = None, rounds: int | None = None
    ) -> None:
        self.N, self.d, self.seed = clients, dimension, seed
        self.round_size, self.rounds = round_size, rounds
        self.version = 0
        self.counts = True
        self.margin = math.inf
        self.weights: list[float] = []

    def step(self, w: Vector, updates: Sequence[Update], eta: float) -> Vector:
        """The next model, also of an empty round; the round counter advances."""
        self.counts, self.margin, self.weights = True, math.inf, [0.0] * len(updates)
        w_next = self.next_model(w, list(updates), eta)
        self.version += 1
        return w_next

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        """The equations of one policy."""
        raise NotImplementedError

    def along(self, w: Vector, A: Sequence[Update], p: Sequence[float], eta: float) -> Vector:
        """w - eta sum_i p_i g_i, of at least one update; p are the round's weights."""
        self.weights = list(p)
        return w - eta * weighted(p, [u.g for u in A])

    def sent(self) -> Vector | None:
        """The values sent to clients besides the model."""
        return None

    def near(self, difference: float) -> None:
        """Record a comparison by the difference of its two sides."""
        self.margin = min(self.margin, abs(difference))

    def zeros(self) -> Vector:
        """A vector [d]."""
        return np.zeros(self.d)


def dot(a: Vector, b: Vector) -> float:
    """a.b"""
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def norm(a: Vector) -> float:
    """|a|"""
    return math.sqrt(dot(a, a))


def cos(a: Vector, b: Vector) -> float:
    """1.5: 0 where a or b is almost zero."""
    product = norm(a) * norm(b)
    return dot(a, b) / product if product > 1e-12 else 0.0


def clip(a: Vector, c: float) -> Vector:
    """1.5: a, scaled to at most the length c."""
    length = norm(a)
    return a if length == 0 else a * min(1.0, c / length)


def normalise(p: Sequence[float]) -> list[float]:
    """1.5: shares of 1; uniform if the sum is not usable."""
    total = sum(p)
    if total == 0 or not math.isfinite(total):
        return [1 / len(p)] * len(p)
    return [x / total for x in p]


def weighted(p: Sequence[float], rows: Sequence[Vector]) -> Vector:
    """sum_i p_i row_i, of at least one row."""
    total = np.zeros_like(rows[0])
    for share, row in zip(p, rows, strict=True):
        total = total + share * row
    return total


def mean(rows: Sequence[Vector]) -> Vector:
    """(1/K) sum_i row_i, of at least one row."""
    return weighted([1 / len(rows)] * len(rows), rows)


def decay(s: int) -> float:
    """(e/2)^-s"""
    return (math.e / 2) ** -s
