"""FedAR: absent clients count by the last update that they sent, more the longer they are away, up to a limit."""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any, Literal, Self

import torch
from pydantic import model_validator
from pydantic_core import PydanticCustomError
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.row_memory import RowMemory, float64_zeros, host_copy, latest_rows, uploaded
from unstale.policies.weights import on_rows

_T0 = {"convex": 10.0, "nonconvex": 25.0}
_NEVER = -1


class FedArSettings(PolicySettings):
    rho: float = setting(
        0.1,
        "How fast an absent client's update gains weight: (tau + 1)^rho after tau rounds.",
        "FedAR paper",
        ge=0,
        le=10,
    )
    psi_max: float = setting(2.0, "The most that an absent client's update weighs.", "FedAR paper", ge=1)
    cutoff: Literal["convex", "nonconvex", "none"] = setting(
        "nonconvex",
        "How long an absent client counts: less than t0 + t/b rounds, c * max(sqrt t, sqrt t0), for ever.",
        "FedAR paper, whose experiments train networks",
    )
    t0: float | None = setting(
        None,
        "For the cut-offs: t0; null means 10 for convex and 25 for nonconvex.",
        "ours: the paper gives no value; both begin at ten rounds",
        gt=0,
    )
    b: float = setting(
        10.0, "For convex: rounds in which the cut-off grows by one.", "FedAR paper: b > 2; the value is ours", gt=2
    )
    c: float = setting(
        2.0,
        "For nonconvex: the factor, at most 2 sqrt t0.",
        "ours: the paper's own value would forget everyone at once",
        gt=0,
    )

    @model_validator(mode="after")
    def _cutoff_grows_slower_than_absence(self) -> Self:
        if self.cutoff == "nonconvex" and self.c > 2 * math.sqrt(self.horizon):
            raise PydanticCustomError(
                "cutoff",
                "setting 'c' is {c}, expected at most 2 sqrt(t0) = {most}, so that a client given up stays so",
                {"c": f"{self.c:g}", "most": f"{2 * math.sqrt(self.horizon):g}"},
            )
        return self

    @property
    def horizon(self) -> float:
        """t0"""
        return self.t0 if self.t0 is not None else _T0.get(self.cutoff, math.inf)


class FedAr(Policy[FedArSettings]):
    """The average over all clients that still count of the last update that each of them sent, the older the heavier.

        G_i <- g_i, tau_i <- 0 for the clients of the round;   tau_i <- tau_i + 1 for the others
        psi_i = 0 if tau_i >= g(t), else min((tau_i + 1)^rho, psi_max);   N_t = |{i seen : psi_i > 0}|
        direction_d = (1/N_t) * sum_{i seen} psi_i G_i;   0 where N_t = 0

    t: version + 1. g(t): the cut-off, in rounds.
    G: [N, d] float32; of a client that is there twice, the last row. Staleness and examples do not matter.
    All of those last seen in the same round share tau, so psi multiplies the sum over such a cohort: a round costs two
    reads of its own rows and one of the cohorts that still count, not of all N. Without a cut-off, the cohorts
    whose psi has come to its end are one.
    Source: FedAR (Jiang et al., 2024), docs/methods/policies-with-memory.md#fedar
    """

    Settings = FedArSettings
    loops = ("availability",)
    memory = "N x d + N + 2 d for each round within the cut-off"

    def __init__(self, settings: FedArSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self._memory = RowMemory(context)
        self._round = 0
        self._seen_N = [_NEVER] * context.clients  # the round in which each client was last there
        self._settled = _NEVER  # clients last seen up to this round are one cohort, which has this name
        self._sums: dict[int, Tensor] = {}  # by round last seen: the sum of its rows, [d] float64
        self._sizes: dict[int, int] = {}
        self._spare: list[Tensor] = []

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        self._round += 1
        psi = self._age(batch.version + 1)
        latest = latest_rows(batch.client_ids_K)
        leaving = self._leave(latest)
        fresh_d = self._vector()
        count = len(latest) + sum(self._sizes.values())
        out_d = self._memory.output(self.result_d)
        for columns, new_Lc, old_Lc in self._memory.exchange(batch, latest):
            for cohort, places in leaving.items():
                sum_d = self._sums[cohort]
                sum_d[columns].sub_(old_Lc.index_select(0, places).sum(0, dtype=torch.float64).to(sum_d.device))
            sum_c = new_Lc.sum(0, dtype=torch.float64)
            fresh_d[columns].copy_(sum_c)
            for cohort, sum_d in self._sums.items():
                sum_c.add_(sum_d[columns].to(sum_c.device), alpha=psi[cohort])
            out_d[columns] = sum_c.div_(max(count, 1))
        if latest:
            self._sums[self._round], self._sizes[self._round] = fresh_d, len(latest)
        else:
            self._spare.append(fresh_d)
        weights_K = on_rows(list(latest.values()), 1 / max(count, 1), len(batch))
        return Step(
            direction_d=self.result_d.copy_(out_d), rate_factor=1.0, weights_K=weights_K, metrics=self._metrics(count)
        )

    def _metrics(self, count: int) -> dict[str, float]:
        """N_t, and tau over the clients that have sent an update. count: N_t."""
        inactive = [self._round - seen for seen in self._seen_N if seen != _NEVER]
        if not inactive:
            return {"counted_clients": count}
        return {"counted_clients": count, "inactive_rounds_mean": fmean(inactive), "inactive_rounds_max": max(inactive)}

    def _age(self, t: int) -> dict[int, float]:
        """Let go of the cohorts that are cut off, join those whose psi has settled, and give psi of what is left."""
        for cohort in list(self._sums):
            tau = self._round - cohort
            if tau >= self._cutoff(t):
                self._drop(cohort)
            elif self._is_settled(tau):
                self._settle(cohort)
        return {cohort: self._psi(self._round - cohort) for cohort in self._sums}

    def _settle(self, cohort: int) -> None:
        """Join a cohort with those that settled before it, under its name. Called in order of age, oldest first."""
        older = self._settled
        if older in self._sums and older != cohort:
            sum_d = self._sums[cohort]
            sum_d.add_(self._sums[older].to(sum_d.device))
            self._sizes[cohort] += self._sizes[older]
            self._drop(older)
        self._settled = cohort

    def _leave(self, latest: dict[int, int]) -> dict[int, Tensor]:
        """Take the round's clients out of their cohorts; by cohort still there, the places in `latest` of who left."""
        leaving: dict[int, list[int]] = {}
        for index, client in enumerate(latest):
            cohort = self._cohort_of(client)
            self._seen_N[client] = self._round
            if cohort in self._sums:
                self._sizes[cohort] -= 1
                leaving.setdefault(cohort, []).append(index)
        for cohort in [cohort for cohort in leaving if self._sizes[cohort] == 0]:
            self._drop(cohort)
            del leaving[cohort]
        rows = uploaded([row for of_cohort in leaving.values() for row in of_cohort], self._memory.device)
        return dict(
            zip(leaving, rows.split_with_sizes([len(of_cohort) for of_cohort in leaving.values()]), strict=True)
        )

    def _vector(self) -> Tensor:
        """[d] float64, with any values."""
        return self._spare.pop() if self._spare else float64_zeros(self.context)

    def _drop(self, cohort: int) -> None:
        self._spare.append(self._sums.pop(cohort))
        del self._sizes[cohort]

    def _cohort_of(self, client: int) -> int:
        seen = self._seen_N[client]
        return seen if seen == _NEVER else max(seen, self._settled)

    def _cutoff(self, t: int) -> float:
        """g(t)"""
        settings = self.settings
        if settings.cutoff == "none":
            return math.inf
        if settings.cutoff == "convex":
            return settings.horizon + t / settings.b
        return settings.c * max(math.sqrt(t), math.sqrt(settings.horizon))

    def _psi(self, tau: int) -> float:
        """The weight after tau rounds of absence, before any cut-off."""
        weight: float = (tau + 1.0) ** self.settings.rho
        return min(weight, self.settings.psi_max)

    def _is_settled(self, tau: int) -> bool:
        """Whether psi stays what it is from tau on."""
        settings = self.settings
        return settings.cutoff == "none" and (settings.rho == 0 or self._psi(tau) == settings.psi_max)

    def state_dict(self) -> dict[str, Any]:
        sums = [sum_d.cpu() for sum_d in self._sums.values()]
        return {
            "rows_Nd": host_copy(self._memory.rows_Nd),
            "round": self._round,
            "seen_N": list(self._seen_N),
            "settled": self._settled,
            "cohorts": list(self._sums),
            "cohort_sums_Td": torch.stack(sums) if sums else torch.empty(0, self.dimension).double(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory.rows_Nd.copy_(state["rows_Nd"])
        self._round, self._settled = state["round"], state["settled"]
        self._seen_N = list(state["seen_N"])
        self._spare += self._sums.values()
        self._sums = {
            cohort: self._vector().copy_(sum_d)
            for cohort, sum_d in zip(state["cohorts"], state["cohort_sums_Td"], strict=True)
        }
        cohorts = [self._cohort_of(client) for client in range(self.clients)]
        self._sizes = {cohort: cohorts.count(cohort) for cohort in self._sums}
