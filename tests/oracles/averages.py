"""Oracles of the policies that average the round's own updates (docs/methods/policies.md)."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from oracles.oracle import Oracle, Update, Vector, decay, dot, mean, normalise
from unstale.seeds import Stream, stream


class FedAvg(Oracle):
    """2.1, and the server of FedProx 2.4 and MOON 2.5."""

    def __init__(self, *, weighting: str = "uniform", **run: Any) -> None:
        super().__init__(**run)
        self.weighting = weighting

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        n = [u.n if self.weighting == "samples" else 1 for u in A]
        p = [ni / sum(n) for ni in n]
        return self.along(w, A, p, eta)


class FedAvgAtMost(Oracle):
    """2.2. The clients are drawn from the round's stream."""

    def __init__(
        self, *, size: int = 50, share: float | None = None, wait_for_selected: bool = False, **run: Any
    ) -> None:
        super().__init__(**run)
        self.S, self.share, self.wait = size, share, wait_for_selected
        self.picked: list[int] = []
        self.first: dict[int, Vector] = {}

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        rng = stream(self.seed, Stream.SELECTION, self.version)
        if self.wait:
            return self._wait(w, A, eta, rng)
        if not A:
            return w
        most = self.S
        if self.share is not None:
            most = min(most, max(1, math.floor(Fraction(str(self.share)) * len(A))))
        chosen = range(len(A))
        if len(A) > most:
            chosen = rng.choice(len(A), size=most, replace=False).tolist()
        return self.along(w, A, [1 / len(chosen) if i in chosen else 0.0 for i in range(len(A))], eta)

    def _wait(self, w: Vector, A: list[Update], eta: float, rng: Any) -> Vector:
        if not self.picked:  # also in an empty round: the sample belongs to the round, not to its arrivals
            self.picked = rng.choice(self.N, size=self.S, replace=False).tolist()
        taken = [0.0] * len(A)
        for i, u in enumerate(A):
            if u.client in self.picked and u.client not in self.first:
                self.first[u.client] = u.g
                taken[i] = 1 / self.S
        if len(self.first) < self.S:
            self.counts = False
            return w
        average = mean([self.first[client] for client in self.picked])
        self.picked, self.first, self.weights = [], {}, taken
        return w - eta * average


class FedAvgIs(Oracle):
    """2.3"""

    def __init__(self, *, probabilities: float | Sequence[float], **run: Any) -> None:
        super().__init__(**run)
        one = isinstance(probabilities, float)
        self.p = [probabilities] * self.N if one else list(probabilities)

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        for i, u in enumerate(A):
            self.weights[i] = 1 / self.N / self.p[u.client]
            w = w - eta * self.weights[i] * u.g
        return w


class Scaffold(Oracle):
    """2.6, the server."""

    def __init__(self, **run: Any) -> None:
        super().__init__(**run)
        self.c = self.zeros()

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        for u in A:
            self.c = self.c + u.extra / self.N
        return self.along(w, A, [1 / len(A)] * len(A), eta)

    def sent(self) -> Vector:
        return self.c


def scaffold_client(
    w_b: Vector, c: Vector, c_i: Vector, gradient: Callable[[Vector], Vector], k: int, eta_l: float
) -> tuple[Vector, Vector, Vector]:
    """2.6, the client: u_i, dc_i and its next c_i."""
    y = w_b
    for _ in range(k):
        y = y - eta_l * (gradient(y) - c_i + c)
    u = w_b - y
    dc = u / (k * eta_l) - c
    return u, dc, c_i + dc


class DynSgd(Oracle):
    """2.7"""

    def __init__(self, *, normalise: bool = True, **run: Any) -> None:
        super().__init__(**run)
        self.normalise = normalise

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        phat = [1 / (u.s + 1) for u in A]
        p = normalise(phat) if self.normalise else [x / len(A) for x in phat]
        return self.along(w, A, p, eta)


class Sasgd(Oracle):
    """2.8"""

    def __init__(self, *, divide_by_k: bool = True, **run: Any) -> None:
        super().__init__(**run)
        self.divide_by_k = divide_by_k

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        for i, u in enumerate(A):
            tau1 = u.s + 1
            self.weights[i] = (1 / len(A) if self.divide_by_k else 1) / tau1
            w = w - eta * self.weights[i] * u.g
        return w


class Twafl(Oracle):
    """2.9"""

    def __init__(self, *, normalise: bool = True, weighting: str = "batch", **run: Any) -> None:
        super().__init__(**run)
        self.normalise, self.weighting = normalise, weighting

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        m = [1 if self.weighting == "equal" else u.n if u.m is None else u.m for u in A]
        phat = [mi * decay(u.s) for mi, u in zip(m, A, strict=True)]
        p = normalise(phat) if self.normalise else [x / sum(m) for x in phat]
        return self.along(w, A, p, eta)


class Refl(Oracle):
    """2.11"""

    def __init__(self, *, beta: float = 0.35, **run: Any) -> None:
        super().__init__(**run)
        self.beta = beta

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        return self.along(w, A, self.shares(A), eta)

    def shares(self, A: list[Update]) -> list[float]:
        """p"""
        smin = min(u.s for u in A)
        uF = mean([u.g for u in A if u.s == smin])
        L = [0.0 if u.s == smin else dot(u.g - uF, u.g - uF) for u in A]
        Lmax = max(L)
        phat = []
        for u, Li in zip(A, L, strict=True):
            ratio = Li / Lmax if Lmax > 0 else 0.0
            late = (1 - self.beta) / (u.s - smin + 1) + self.beta * (1 - math.exp(-ratio))
            phat.append(1.0 if u.s == smin else late)
        return normalise(phat)


class FedAsync(Oracle):
    """2.17. Independent of eta: the clients' models are mixed unscaled."""

    def __init__(
        self,
        *,
        alpha: float = 0.6,
        staleness: str = "polynomial",
        exponent: float = 0.5,
        a_h: float = 10.0,
        b: int = 4,
        hinge_plus_one: bool = True,
        **run: Any,
    ) -> None:
        super().__init__(**run)
        self.alpha, self.staleness, self.exponent = alpha, staleness, exponent
        self.a_h, self.b, self.hinge_plus_one = a_h, b, hinge_plus_one

    def f(self, s: int) -> float:
        """The factor of alpha for an update."""
        if self.staleness == "constant":
            return 1.0
        if self.staleness == "polynomial":
            return (s + 1) ** -self.exponent
        if s <= self.b:
            return 1.0
        return 1 / (self.a_h * (s - self.b) + (1 if self.hinge_plus_one else 0))

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        mixed, left = w, []  # left: the remaining share of each client's model
        for u in A:
            w_b = w if u.w_b is None else u.w_b
            w_end = w_b - (eta if u.eta_l is None else u.eta_l) * u.g
            a = self.alpha * self.f(u.s)
            mixed = (1 - a) * mixed + a * w_end
            left = [share * (1 - a) for share in left] + [a]
        self.weights = left
        return mixed


class FedBuff(Oracle):
    """2.18"""

    def __init__(self, *, staleness: str = "polynomial", **run: Any) -> None:
        super().__init__(**run)
        self.staleness = staleness

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        for i, u in enumerate(A):
            damping = 1.0 if self.staleness == "none" else math.sqrt(1 + u.s)
            self.weights[i] = 1 / len(A) / damping
            w = w - eta * self.weights[i] * u.g
        return w


class Direct(Oracle):
    """2.19, m = K.

    2.19 is written in parameter units for eta_g = 1. In the model form u_i := w_t - w_end is turned into gradient units
    as every other u_i is (1.4): divided by the eta_l that the client used, then multiplied by the current eta.
    """

    def __init__(self, *, stale_form: str = "delta", **run: Any) -> None:
        super().__init__(**run)
        self.stale_form = stale_form

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        rows = []
        for u in A:
            eta_l = eta if u.eta_l is None else u.eta_l
            w_b = w if u.w_b is None else u.w_b
            w_end = w_b - eta_l * u.g
            rows.append(u.g if self.stale_form == "delta" else (w - w_end) / eta_l)
        self.weights = [1 / len(A)] * len(A)
        return w - eta * mean(rows)


class Weighted(Oracle):
    """2.20, m = K."""

    def __init__(self, *, half_life: float = 20.0, **run: Any) -> None:
        super().__init__(**run)
        self.half_life = half_life

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        for i, u in enumerate(A):
            self.weights[i] = 1 / len(A) * 2 ** (-u.s / self.half_life)
            w = w - eta * self.weights[i] * u.g
        return w


def first_order(u: Vector, w: Vector, w_b: Vector, lam_u: float) -> Vector:
    """2.21: DC-ASGD's correction of a stale u, in parameter units."""
    return u + lam_u * u * u * (w - w_b)
