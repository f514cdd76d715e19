"""Oracles beyond the papers: robust averages, norm clipping, and the server optimisers of Reddi et al. 2021."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from oracles.oracle import Oracle, Update, Vector, clip, dot, mean, norm, normalise, weighted


class CoordinateMedian(Oracle):
    """Yin et al. 2018: each coordinate's median; of an even number of rows the mean of the two in the middle."""

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        middle = self.zeros()
        for j in range(self.d):
            values = sorted(float(u.g[j]) for u in A)
            middle[j] = (values[(len(A) - 1) // 2] + values[len(A) // 2]) / 2
        self.weights = [1 / len(A)] * len(A)  # the client of the value differs by coordinate
        return w - eta * middle


class TrimmedMean(Oracle):
    """Yin et al. 2018: each coordinate's mean without the floor(trim K) lowest and as many highest."""

    def __init__(self, *, trim: float = 0.1, **run: Any) -> None:
        super().__init__(**run)
        self.trim = trim

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        cut = math.floor(self.trim * len(A))
        average = self.zeros()
        for j in range(self.d):
            kept = sorted(float(u.g[j]) for u in A)[cut : len(A) - cut]
            average[j] = sum(kept) / len(kept)
        self.weights = [1 / len(A)] * len(A)  # as for the median
        return w - eta * average


class Krum(Oracle):
    """Blanchard et al. 2017: the mean of the `selected` rows closest to their K - f - 2 nearest others.

    At least one neighbour counts, as far as there is one. Equal scores: the lowest client id (1.5), then arrival.
    """

    def __init__(self, *, byzantine: int = 1, selected: int | None = 1, **run: Any) -> None:
        super().__init__(**run)
        self.f, self.m = byzantine, selected

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        K = len(A)
        neighbours = max(1, K - self.f - 2)
        scores = []
        for i, u in enumerate(A):
            apart = sorted(dot(u.g - other.g, u.g - other.g) for j, other in enumerate(A) if j != i)
            scores.append((sum(apart[:neighbours]), u.client, i))
        scores.sort()
        m = min(K, max(1, K - self.f)) if self.m is None else min(K, self.m)
        if m < K and scores[m][0] != scores[m - 1][0]:  # equal to the last bit: two mutual nearest neighbours
            self.near(scores[m][0] - scores[m - 1][0])
        chosen = [i for _, _, i in scores[:m]]
        return self.along(w, A, [1 / m if i in chosen else 0.0 for i in range(K)], eta)


class MultiKrum(Krum):
    """Krum with the mean of K - f rows, at least one."""

    def __init__(self, *, byzantine: int = 1, selected: int | None = None, **run: Any) -> None:
        super().__init__(byzantine=byzantine, selected=selected, **run)


class GeometricMedian(Oracle):
    """Pillutla et al. 2022: Weiszfeld's iteration from the mean, until convergence.

    iterations and tolerance: where a policy may stop earlier; the oracle does not. smoothing: in units of the
    spread, the least distance within which some row has more than half of all, itself included [M].
    """

    def __init__(self, *, iterations: int = 100, tolerance: float = 1e-6, smoothing: float = 1e-8, **run: Any) -> None:
        super().__init__(**run)
        self.smoothing = smoothing

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        rows = [u.g for u in A]
        z = mean(rows)
        half = len(A) // 2
        reach = [sorted(norm(g - other) for other in rows)[half] for g in rows]
        if len(A) <= 2:
            return self.along(w, A, [1 / len(A)] * len(A), eta)
        if min(reach) == 0:
            return self.along(w, A, normalise([1.0 if r == 0 else 0.0 for r in reach]), eta)
        for iteration in range(20_000):
            beta = [1 / max(self.smoothing * min(reach), norm(z - g)) for g in rows]
            p = normalise(beta)
            following = weighted(p, rows)
            moved, z = norm(following - z), following
            if moved <= 1e-13:
                break
            if iteration == 500:  # it converges slowly towards a row: no policy comes close in its number of iterations
                self.near(0.0)
        return self.along(w, A, p, eta)


def clip_rows(A: list[Update], c: float) -> list[Update]:
    """Norm clipping, before any policy: every g at most c long."""
    return [replace(u, g=clip(u.g, c)) for u in A]


class ServerOptimiser:
    """The step from a policy's direction g: momentum, Adam or Yogi, without bias correction.

        momentum:  m <- beta1 m + g;                 w <- w - eta m
        adam:      m <- beta1 m + (1 - beta1) g;     v <- beta2 v + (1 - beta2) g^2
        yogi:      m as adam;                        v <- v - (1 - beta2) g^2 sign(v - g^2)
        both:      w <- w - eta m / (sqrt(v) + tau),   v_0 = tau^2

    Source: Reddi et al. 2021, Algorithm 2, with g = -Delta; its momentum (FedAvgM, Hsu et al. 2019) is not damped.
    """

    def __init__(
        self, kind: str, dimension: int, *, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
    ) -> None:
        self.kind, self.beta1, self.beta2, self.tau = kind, beta1, beta2, tau
        self.m = np.zeros(dimension)
        self.v = np.full(dimension, tau**2)

    def step(self, w: Vector, g: Vector, eta: float) -> Vector:
        """The next model, one coordinate after the other."""
        w_next = w.copy()
        for j in range(len(w)):
            square = g[j] ** 2
            if self.kind == "momentum":
                self.m[j] = self.beta1 * self.m[j] + g[j]
                w_next[j] = w[j] - eta * self.m[j]
                continue
            self.m[j] = self.beta1 * self.m[j] + (1 - self.beta1) * g[j]
            if self.kind == "adam":
                self.v[j] = self.beta2 * self.v[j] + (1 - self.beta2) * square
            else:
                self.v[j] = self.v[j] - (1 - self.beta2) * square * np.sign(self.v[j] - square)
            w_next[j] = w[j] - eta * self.m[j] / (math.sqrt(self.v[j]) + self.tau)
        return w_next
