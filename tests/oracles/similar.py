"""Oracles of the two policies that weight by similarity, WKAFL and FedHist."""

import math
from dataclasses import dataclass
from typing import Any

from oracles.oracle import Oracle, Update, Vector, clip, cos, decay, mean, norm, normalise, weighted


class Wkafl(Oracle):
    """2.14, step by step. An empty round changes neither the model nor the estimate [M]."""

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        clip_bound: float | None = None,
        stage_two_bound: float = 5.0,
        beta: float = 10.0,
        similarity_min: float = 0.3,
        gamma: float = 0.01,
        stage_two_loss: float | None = None,
        stage_two_round: int | None = None,
        momentum: str = "estimate",
        rate_staleness: str = "zero-based",
        threshold: str = "inclusive",
        zero_gradient: str = "dissimilar",
        no_gradient_selection: bool = False,
        no_staleness: bool = False,
        no_non_iidness: bool = False,
        **run: Any,
    ) -> None:
        super().__init__(**run)
        self.alpha = 0.0 if no_non_iidness else alpha
        self.CB = math.inf if clip_bound is None else clip_bound
        self.B, self.beta, self.sim_min, self.gamma = stage_two_bound, beta, similarity_min, gamma
        self.eps, self.J2 = stage_two_loss, stage_two_round
        if self.eps is None and self.J2 is None and self.rounds is not None:
            self.J2 = self.rounds // 2
        self.momentum, self.rate_staleness, self.threshold = momentum, rate_staleness, threshold
        self.zero_gradient = zero_gradient
        self.no_gradient_selection, self.no_staleness = no_gradient_selection, no_staleness
        self.previous = self.zeros()
        self.stage = 1
        self.e, self.sim, self.p = self.zeros(), [], []  # of the last round, for tests

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        if not A:
            return w
        gt = [u.g + self.alpha * self.previous for u in A]  # 1
        if self.stage == 1 and self.stage_two(A):  # 2
            self.stage = 2
        gc = [clip(g, self.CB) for g in gt]  # 3
        a = [1 / len(A)] * len(A) if self.no_staleness else normalise([decay(u.s) for u in A])
        e = weighted(a, gc)  # 4
        self.weights = a
        G = e if self.no_gradient_selection else self.select(gc, e)  # 5 to 7
        tau = min(u.s for u in A) + (1 if self.rate_staleness == "one-based" else 0)
        rate = eta if self.no_staleness else eta / (self.gamma * tau + 1)  # 8
        self.previous = G if self.momentum == "aggregate" else e  # 9
        self.e = e
        return w - rate * G

    def stage_two(self, A: list[Update]) -> bool:
        """Whether the stage-two rule holds."""
        if self.eps is not None:
            average = sum(u.loss for u in A) / len(A)
            self.near(average - self.eps)
            return average <= self.eps
        return self.J2 is not None and self.version >= self.J2

    def select(self, gc: list[Vector], e: Vector) -> Vector:
        """Steps 5 to 7."""
        self.sim, chosen = [], []
        for g in gc:
            # The spec's "zero client gradient" is read as step 3's vector being exactly zero.
            forced = norm(g) == 0 and self.zero_gradient == "similar"
            sim = 1.0 if forced else cos(g, e)
            self.near(sim - self.sim_min)
            enough = sim >= self.sim_min if self.threshold == "inclusive" else sim > self.sim_min
            self.sim.append(sim)
            chosen.append(math.exp(self.beta * sim) if enough else 0.0)
        if not any(chosen):
            return e
        self.p = self.weights = [x / sum(chosen) for x in chosen]
        if self.stage == 2:
            gc = [clip(g, self.B * norm(e)) for g in gc]
        return weighted(self.p, gc)


@dataclass(frozen=True)
class Record:
    """The record of an update in FedHist: sender, rounds from download to use, base version, raw g."""

    client: int
    tau1: int
    base: int
    g: Vector


class FedHist(Oracle):
    """2.15. An empty round makes no step and stores no gradient; its list of records is empty [M]."""

    def __init__(
        self,
        *,
        h: int | None = None,
        alpha: float = 0.1,
        utility_weight: float = 0.1,
        gamma: float = 0.2,
        similarity_min: float = 0.3,
        compared_with: str = "all",
        egs: bool = True,
        haa: str = "full",
        ina: bool = True,
        ina_norms: str = "raw",
        **run: Any,
    ) -> None:
        super().__init__(**run)
        self.h = h if h is not None else max(1, math.floor(self.N / (2 * self.round_size) + 0.5))
        self.alpha = alpha if egs else 0.0
        self.lam = utility_weight if haa == "full" else 0.0
        self.haa, self.gamma, self.sim_T = haa, gamma, similarity_min
        self.ina, self.ina_norms = ina, ina_norms
        self.later = compared_with == "later"
        self.GH: list[Vector] = []  # oldest first
        self.LH: dict[int, list[Record]] = {}  # by round
        self.U = dict.fromkeys(range(self.N), 0.0)
        self.phat, self.p, self.Gagg = [], [], self.zeros()  # of the last round, for tests

    def next_model(self, w: Vector, A: list[Update], eta: float) -> Vector:
        r = self.version
        if A:
            applied = self.aggregate(A)
            w = w - eta * applied
            self.GH = [*self.GH, applied][-self.h :]
        self.LH[r] = [Record(u.client, u.s + 1, r - u.s, u.g) for u in A]
        self.LH = {rho: records for rho, records in self.LH.items() if r - self.h <= rho <= r}
        if self.haa == "full" and r >= self.h:
            self.judge(r - self.h)
        return w

    def aggregate(self, A: list[Update]) -> Vector:
        """EGS, HAA and INA: G^r."""
        gt = [u.g + self.alpha * self.opposite(u.g) for u in A]
        self.phat = [max(0.0, decay(u.s + 1) + self.lam * self.U[u.client]) for u in A]
        self.p = [1 / len(A)] * len(A) if self.haa == "off" else normalise(self.phat)
        self.Gagg, self.weights = weighted(self.p, gt), self.p
        if not self.ina or norm(self.Gagg) <= 1e-12:
            return self.Gagg
        lengths = [norm(u.g) for u in A] if self.ina_norms == "raw" else [norm(g) for g in gt]
        return self.Gagg / norm(self.Gagg) * sum(lengths) / len(A)

    def opposite(self, g: Vector) -> Vector:
        """The applied gradient least similar to g; the latest of equals; zeros if there is none."""
        if not self.GH:
            return self.zeros()
        angles = [cos(g, G) for G in self.GH]
        lowest = min(angles)
        others = sorted(angles)
        if self.alpha != 0 and len(others) > 1:
            self.near(others[1] - others[0])
        latest = max(j for j, angle in enumerate(angles) if angle == lowest)
        return self.GH[latest]

    def judge(self, rho: int) -> None:
        """The utilities of round rho's clients, from later updates of the same model."""
        S = [
            record.g
            for q, records in self.LH.items()
            for record in records
            if record.base == rho and not (self.later and q == rho)
        ]
        if not S:
            return
        gpred = mean(S)
        for record in self.LH[rho]:
            sim = cos(record.g, gpred)  # at sim_T the utility is 0 on either side: no margin is needed
            old = decay(record.tau1)
            ph = 1 - old if sim >= self.sim_T else old
            util = (sim - self.sim_T) * ph * len(S)
            self.U[record.client] = (1 - self.gamma) * self.U[record.client] + self.gamma * util
