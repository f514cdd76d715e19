"""Oracles of the policies with memory (docs/methods/policies-with-memory.md).

A client with two rows in one round: its rows count in order of arrival and the last one is stored [M].
"""

import math
from typing import Any

from oracles.oracle import Oracle, Update, Vector, mean


def on_last_rows(A: list[Update], share: float) -> list[float]:
    """The share for the last row of each client, 0 for its earlier rows."""
    last = {u.client: i for i, u in enumerate(A)}
    return [share if last[u.client] == i else 0.0 for i, u in enumerate(A)]


class Gsgm(Oracle):
    """2.10. A sender in Q is ignored; if all senders of a round are in Q, Q restarts without the rest [M].

    released: as in the released code. Its last iteration of a round rolls M over first, and adds its own q to the
    new A, which then starts the next round's sum.
    """

    def __init__(self, *, alpha: float = 0.1, released: bool = False, **run: Any) -> None:
        super().__init__(**run)
        self.alpha, self.released = alpha, released
        self.M, self.A = self.zeros(), self.zeros()
        self.Q: set[int] = set()

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        if all(u.client in self.Q for u in A):
            self.roll_over()
            self.Q = set()
        fresh: list[Update] = []
        for i, u in enumerate(A):
            if u.client not in self.Q:  # a second row of one sender is in Q by then
                fresh.append(u)
                self.Q.add(u.client)
                self.weights[i] = 1.0
        self.weights = [share / len(fresh) for share in self.weights]
        complete = len(self.Q) == self.N
        if self.released and complete:
            self.roll_over()
        gbar = mean([u.g for u in fresh])
        q = gbar + self.alpha * self.M
        self.A = self.A + (1 / self.N if self.released else len(fresh) / self.N) * q
        if complete:
            self.Q = set()
            if not self.released:
                self.roll_over()
        return w - eta * (gbar if self.released else q)

    def roll_over(self) -> None:
        """M <- A; A <- 0"""
        self.M, self.A = self.A, self.zeros()


class Mifa(Oracle):
    """2.12.

    `force` requires all clients in the first round. Otherwise rounds pass until each client has been
    seen, their updates are stored, and the round with the first update of the last client steps [M].
    `wait`: updates before each client was available once are dropped; then G fills; the round after that steps.
    """

    def __init__(self, *, init: str = "force", **run: Any) -> None:
        super().__init__(**run)
        self.init = init
        self.G = [self.zeros() for _ in range(self.N)]
        self.available: set[int] = set()
        self.filled: set[int] = set()

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        steps = True
        if self.init == "force":
            self.filled |= {u.client for u in A}
            steps = len(self.filled) == self.N
        elif self.init == "wait" and len(self.available) < self.N:
            self.available |= {u.client for u in A}
            self.counts = False
            return w
        elif self.init == "wait":
            steps = len(self.filled) == self.N  # as it was before this round
            self.filled |= {u.client for u in A}
        for u in A:
            self.G[u.client] = u.g
        self.counts = steps
        if not steps:
            return w
        self.weights = on_last_rows(A, 1 / self.N)
        for G_i in self.G:
            w = w - eta / self.N * G_i
        return w


class FedVarp(Oracle):
    """2.13. |A_t| is the number of rows."""

    def __init__(self, **run: Any) -> None:
        super().__init__(**run)
        self.y = [self.zeros() for _ in range(self.N)]

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        vt = mean(self.y)
        for i, u in enumerate(A):
            vt = vt + (u.g - self.y[u.client]) / len(A)
            self.weights[i] = 1 / len(A)
        for u in A:
            self.y[u.client] = u.g
        return w - eta * vt


class FedAr(Oracle):
    """2.16"""

    def __init__(
        self,
        *,
        rho: float = 0.1,
        psi_max: float = 2.0,
        cutoff: str = "nonconvex",
        t0: float | None = None,
        b: float = 10.0,
        c: float = 2.0,
        **run: Any,
    ) -> None:
        super().__init__(**run)
        self.rho, self.psi_max, self.cutoff, self.b, self.c = rho, psi_max, cutoff, b, c
        self.t0 = t0 if t0 is not None else 10.0 if cutoff == "convex" else 25.0
        self.G = [self.zeros() for _ in range(self.N)]
        self.tau = [0] * self.N
        self.seen: set[int] = set()

    def g(self, t: int) -> float:
        """The number of silent rounds after which a client no longer counts."""
        if self.cutoff == "none":
            return math.inf
        if self.cutoff == "convex":
            return self.t0 + t / self.b
        return self.c * max(math.sqrt(t), math.sqrt(self.t0))

    def psi(self, i: int, t: int) -> float:
        """The weight of client i."""
        return 0.0 if self.tau[i] >= self.g(t) else min((self.tau[i] + 1) ** self.rho, self.psi_max)

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        t = self.version + 1
        for i in range(self.N):
            if not any(u.client == i for u in A):
                self.tau[i] += 1
        for u in A:
            self.G[u.client] = u.g
            self.tau[u.client] = 0
            self.seen.add(u.client)
        N_t = len([i for i in self.seen if self.psi(i, t) > 0])
        if N_t == 0:
            return w
        self.weights = on_last_rows(A, 1 / N_t)
        for i in sorted(self.seen):
            w = w - eta / N_t * self.psi(i, t) * self.G[i]
        return w
