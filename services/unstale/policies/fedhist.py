"""FedHist: updates meet the past direction least like them, and clients weigh by how useful they proved later."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies import pairwise
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import column_chunks, device_weights, exponential, normalise, uniform, weighted_sum

_OURS = "ours: the FedHist paper publishes no value"
_NEAR = 1e-6
"""Cosines that differ by less are compared again in float64."""

_EQUAL = 1e-12
"""Cosines that differ by less are equal: float64 does not tell them apart."""


class FedHistSettings(PolicySettings):
    h: int | None = setting(
        None,
        "Rounds remembered; null: N / (2 K), at least 1, with K the updates of a round.",
        "FedHist paper: N / (2 K), which it calls a lower bound of the mean staleness; that is N / K",
        ge=1,
        le=100_000,
    )
    alpha: float = setting(
        0.1, "What the least similar of the past directions counts in an update.", _OURS + "; as in WKAFL", ge=0, le=1e6
    )
    utility_weight: float = setting(
        0.1, "lambda: what a client's utility counts beside its staleness.", _OURS, ge=0, le=1e6
    )
    gamma: float = setting(0.2, "The share of a new utility in the moving average.", _OURS, ge=0, le=1)
    similarity_min: float = setting(
        0.3, "sim_T: the cosine from which on an update counts as useful.", _OURS + "; as in WKAFL", ge=-1, le=1
    )
    compared_with: Literal["all", "later"] = setting(
        "all",
        "Updates from the model of the evaluated round that utilities compare with: all, of which an update may be one "
        "itself, or those of later rounds.",
        "FedHist paper, read literally; later is ours",
    )
    egs: bool = setting(True, "Fuse updates with past directions.", "FedHist paper; false is its ablation")
    haa: Literal["full", "staleness", "off"] = setting(
        "full",
        "Weigh by staleness and utility, by staleness alone, or all the same.",
        "FedHist paper; off is its ablation, staleness is ours",
    )
    ina: bool = setting(
        True, "Give the direction the mean length of the updates.", "FedHist paper; false is its ablation"
    )
    ina_norms: Literal["raw", "fused"] = setting(
        "raw",
        "Whose mean length: the updates as they came, or as fused with past directions.",
        "FedHist paper, text and Eq. 14; fused is ours",
    )


@dataclass(slots=True, kw_only=True)
class _Round:
    """The updates of a round as they came. rows_Kd: the first K rows of block; lengths_K: of the rows, float64."""

    version: int
    clients: list[int]
    staleness: list[int]
    block: Tensor
    lengths_K: Tensor = field(default_factory=lambda: torch.empty(0).double())  # empty until they are read

    @property
    def rows_Kd(self) -> Tensor:
        return self.block[: len(self.clients)]

    def places_from(self, version: int) -> list[int]:
        """Which rows were computed from a version."""
        return [i for i, s in enumerate(self.staleness) if self.version - s == version]


class FedHist(Policy[FedHistSettings]):
    """Weighs updates by staleness and by what their senders' earlier updates were worth, and mixes in the past.

        EGS  gt_i = g_i + alpha * co_i,   co_i = argmin_{G in GH} cos(g_i, G)
        HAA  p = normalise(max(0, (e/2)^-(s_i + 1) + lambda * U[client i]));   Gagg = sum_i p_i gt_i
        INA  direction_d = G = Gagg / |Gagg| * (1/K) sum_i |g_i|
        then, of the round h before, with S the updates computed from its model, its own and those that came since, or
        with compared_with `later` only those that came since:
        util = (sim - sim_T) * ph * |S|,   sim = cos(g, mean S),   U <- (1 - gamma) U + gamma * util
        ph = 1 - (e/2)^-(s + 1) where sim >= sim_T, else (e/2)^-(s + 1);   nothing where S is empty

    GH: the last h directions, [h, d] float32; of equal cosines the most recent counts. U: [N] float64, zeros at first.
    The rows of the last h + 1 rounds are kept: on a CPU where the context keeps large memories, else on the device, or,
    where they do not fit it, on a CPU by `stages.OnHost`.
    What an option leaves out is not kept either. h is that of the run's round size; where it is not known, of the first
    round that has updates. A Gagg that is but rounding keeps its length. An empty round takes no step and adds no
    direction to GH; nor does a direction that float32 does not hold. A step waits for a device twice, and once more
    where two past directions are equally unlike an update to 1e-6.
    Source: FedHist (Jiang et al., 2023), docs/methods/policies-with-memory.md#fedhist
    """

    Settings = FedHistSettings
    loops = ("k-async",)
    memory = "h d + (h + 1) K d + N"

    @staticmethod
    def history_rows(settings: FedHistSettings, context: PolicyContext) -> int:
        if context.round_size is None:
            return 0
        h = settings.h or _backtracking(context.clients, context.round_size)
        return (h if settings.egs else 0) + ((h + 1) * context.round_size if settings.haa == "full" else 0)

    def __init__(self, settings: FedHistSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self._alpha = settings.alpha if settings.egs else 0.0
        self._judges = settings.haa == "full" and settings.utility_weight > 0
        self._h = settings.h
        if self._h is None and context.round_size is not None:
            self._h = _backtracking(context.clients, context.round_size)
        self._history_hd = torch.empty(0, self.dimension, device=self.device)
        self._history_lengths_h = torch.empty(0, dtype=torch.float64)
        self._pushed = 0  # directions ever; the one before last is at (pushed - 2) % h
        self._utility_N = [0.0] * context.clients
        self._rounds: list[_Round] = []  # oldest first
        self._spare: Tensor | None = None

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        weights_K = self._weights(batch)
        if len(batch) > 0:
            self._h = self._h or _backtracking(self.clients, len(batch))
            if self._judges:
                self._keep(batch)
        judged, since = self._due(batch.version)
        # All products are read together: each read waits for the device.
        products = [parts for each in judged for parts in _products_since(each, since)]
        if len(batch) == 0:
            self.result_d.zero_()
            totals = pairwise.totals(*products) if products else []
        else:
            squares_K, along_Kn, *totals = pairwise.totals(*self._add(batch.matrix_Kd, weights_K), *products)
            lengths_K = squares_K.sqrt()
            if self._judges:
                self._rounds[-1].lengths_K = lengths_K
            self._fuse(batch.matrix_Kd, weights_K, lengths_K, along_Kn)
        for each, along_K, square in zip(judged, totals[::2], totals[1::2], strict=True):
            self._judge(each, since, along_K, float(square.sqrt()))
        self._forget(batch.version)
        return Step(direction_d=self.result_d, rate_factor=1.0, weights_K=weights_K, metrics=self._metrics())

    def _metrics(self) -> dict[str, float]:
        """The distribution of the utilities over the clients."""
        if not self._judges:
            return {}
        utility_N = self._utility_N
        return {"utility_mean": fmean(utility_N), "utility_min": min(utility_N), "utility_max": max(utility_N)}

    def _weights(self, batch: UpdateBatch) -> Tensor:
        """HAA: p."""
        if self.settings.haa == "off" or len(batch) == 0:
            return uniform(len(batch))
        if not self._judges:  # counted from the freshest, so that nothing underflows: nothing is added
            return normalise(exponential(batch.staleness_K - batch.staleness_K.min()))
        fresh_K = exponential(batch.staleness_K + 1)
        utility_K = [self._utility_N[client] for client in batch.client_ids_K.tolist()]
        useful_K = self.settings.utility_weight * torch.tensor(utility_K, dtype=torch.float64)
        return normalise((fresh_K + useful_K).clamp(min=0))

    def _keep(self, batch: UpdateBatch) -> None:
        """Add the rows of a round to the rounds."""
        block = self._block(len(batch))
        block[: len(batch)].copy_(batch.matrix_Kd)
        self._rounds.append(
            _Round(
                version=batch.version,
                clients=batch.client_ids_K.tolist(),
                staleness=batch.staleness_K.tolist(),
                block=block,
            )
        )

    def _add(self, matrix_Kd: Tensor, weights_K: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """sum_i p_i g_i into result_d; |g_i|^2 [K] and g_i . G_j [K, n] of each chunk of columns."""
        held_nd = self._history_hd[: min(self._pushed, self._h or 0)] if self._alpha else matrix_Kd[:0]
        on_device_K = device_weights(weights_K, matrix_Kd.device)
        own, along = [], []
        for columns in column_chunks(max(matrix_Kd, held_nd, key=len)):
            part_Kc = matrix_Kd[:, columns]
            own.append(pairwise.squares(part_Kc))
            weighted_sum(part_Kc, on_device_K, out_d=self.result_d[columns])
            along.append(_products(part_Kc, held_nd[:, columns]))
        return own, along

    def _fuse(self, matrix_Kd: Tensor, weights_K: Tensor, lengths_K: Tensor, along_Kn: Tensor) -> None:
        """G from sum_i p_i g_i, into result_d and the history."""
        result_d = self.result_d
        opposite_K = self._opposite(matrix_Kd, lengths_K, along_Kn)
        wanted_K, exact = lengths_K, dict[int, list[Tensor]]()
        if self.settings.ina_norms == "fused" and opposite_K:
            wanted_K, exact = self._fused_lengths(matrix_Kd, lengths_K, along_Kn, opposite_K)
        square, *exact_squares = pairwise.read(self._add_opposite(opposite_K, weights_K), *exact.values())
        length = float(square.sum(0).sqrt())
        if not math.isfinite(length):
            return
        rounding = pairwise.ROUNDING * float(weights_K @ lengths_K)
        if self.settings.ina and length > max(pairwise.NO_DIRECTION, rounding):
            for i, parts in zip(exact, exact_squares, strict=True):
                wanted_K[i] = pairwise.in_order(parts).sqrt()
            mean_length = float(wanted_K.mean())
            result_d.mul_(mean_length / length)
            length = mean_length
        if self._alpha:
            self._push(length)

    def _opposite(self, matrix_Kd: Tensor, lengths_K: Tensor, along_Kn: Tensor) -> list[int]:
        """Which direction of the history each update is fused with: EGS's argmin. Empty when there is none."""
        past = along_Kn.shape[1]
        if past == 0:
            return []
        cosines_Kn = pairwise.cosines(along_Kn, lengths_K[:, None] * self._history_lengths_h[:past])
        if bool((_lowest(cosines_Kn, _NEAR).sum(1) > 1).any()):
            cosines_Kn = pairwise.cosines64(matrix_Kd, self._history_hd[:past])
        recency_n = (torch.arange(past) - self._pushed) % past  # past - 1: the most recent
        return torch.where(_lowest(cosines_Kn, _EQUAL), recency_n, -1).argmax(1).tolist()

    def _fused_lengths(
        self, matrix_Kd: Tensor, lengths_K: Tensor, along_Kn: Tensor, opposite_K: list[int]
    ) -> tuple[Tensor, dict[int, list[Tensor]]]:
        """|gt_i|, [K] float64 on the CPU, and for rows where g and co nearly cancel the squares of the chunks."""
        along_K = along_Kn[range(len(opposite_K)), opposite_K]
        squares_K, cancelled = pairwise.fused_squares(
            lengths_K, along_K, self._history_lengths_h[opposite_K], self._alpha
        )
        exact = {
            i: pairwise.inner_products(matrix_Kd[i], shift_d=self._history_hd[opposite_K[i]], alpha=self._alpha)
            for i in cancelled
        }
        return squares_K.sqrt(), exact

    def _add_opposite(self, opposite_K: list[int], weights_K: Tensor) -> list[Tensor]:
        """Add alpha * sum_i p_i co_i to result_d; |Gagg|^2 of each chunk of columns."""
        shares: dict[int, float] = {}
        for slot, weight in zip(opposite_K, weights_K.tolist(), strict=bool(opposite_K)):
            shares[slot] = shares.get(slot, 0.0) + self._alpha * weight
        own = []
        for columns in column_chunks(self.result_d[None]):
            result_c = self.result_d[columns]
            for slot, share in shares.items():
                result_c.add_(self._history_hd[slot, columns], alpha=share)
            own.append(torch.dot(result_c, result_c))
        return own

    def _push(self, length: float) -> None:
        """Add result_d to the history, in place of the oldest when there are h."""
        assert self._h is not None
        if self._pushed == 0:
            self._history_hd = self._room(self._h)
            self._history_lengths_h = torch.zeros(self._h, dtype=torch.float64)
        slot = self._pushed % self._h
        self._history_hd[slot].copy_(self.result_d)
        self._history_lengths_h[slot] = length
        self._pushed += 1

    def _due(self, version: int) -> tuple[list[_Round], list[tuple[_Round, int]]]:
        """The round h before this version, if its clients are judged now, and S: rounds and rows in them."""
        if not self._judges or self._h is None:
            return [], []
        base = version - self._h
        first = base + (self.settings.compared_with == "later")
        since = [(each, i) for each in self._rounds if each.version >= first for i in each.places_from(base)]
        return [each for each in self._rounds if since and each.version == base], since

    def _judge(self, judged: _Round, since: list[tuple[_Round, int]], along_K: Tensor, length: float) -> None:
        """U of the clients of a round. along_K: g_i . sum S, float64. length: |sum S|."""
        settings, count = self.settings, len(since)
        terms = sum(float(each.lengths_K[i]) for each, i in since)
        similar_K = pairwise.cosines(along_K / count, judged.lengths_K * length / count)
        if length <= pairwise.ROUNDING * terms:
            similar_K = torch.zeros_like(similar_K)
        old_K = exponential(torch.tensor(judged.staleness) + 1)
        worth_K = torch.where(similar_K >= settings.similarity_min, 1 - old_K, old_K)
        utility_K = (similar_K - settings.similarity_min) * worth_K * count
        for client, utility in zip(judged.clients, utility_K.tolist(), strict=True):
            self._utility_N[client] += settings.gamma * (utility - self._utility_N[client])

    def _forget(self, version: int) -> None:
        """Delete the rounds that no later one judges, except for the largest block."""
        if not self._judges or self._h is None:
            return
        done = [each.block for each in self._rounds if each.version <= version - self._h]
        self._spare = max([*done, *([] if self._spare is None else [self._spare])], key=len, default=None)
        self._rounds = [each for each in self._rounds if each.version > version - self._h]

    def _block(self, rows: int) -> Tensor:
        """Memory for the rows of a round: that of a round let go of, where it is large enough."""
        spare, self._spare = self._spare, None
        return spare if spare is not None and len(spare) >= rows else self._room(rows)

    def _room(self, rows: int) -> Tensor:
        if self.device.type == "cpu":
            return self.context.allocate(rows, self.dimension)
        return torch.empty(rows, self.dimension, dtype=torch.float32, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        past, rounds = min(self._pushed, self._h or 0), self._rounds
        return {
            "h": self._h or 0,
            "history_nd": self._history_hd[:past].clone(),
            "history_lengths_n": self._history_lengths_h[:past].clone(),
            "pushed": self._pushed,
            "utility_N": list(self._utility_N),
            "rounds": [each.version for each in rounds],
            "round_sizes": [len(each.clients) for each in rounds],
            "clients_M": [client for each in rounds for client in each.clients],
            "staleness_M": [s for each in rounds for s in each.staleness],
            "lengths_M": torch.cat([torch.empty(0).double(), *(each.lengths_K for each in rounds)]),
            "rows_Md": torch.cat(
                [torch.empty(0, self.dimension, device=self.device), *(each.rows_Kd for each in rounds)]
            ),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._h, self._pushed = state["h"] or None, state["pushed"]
        self._utility_N = list(state["utility_N"])
        past = len(state["history_nd"])
        if past:
            assert self._h is not None
            self._history_hd = self._room(self._h)
            self._history_hd[:past].copy_(state["history_nd"])
            self._history_lengths_h = torch.zeros(self._h, dtype=torch.float64)
            self._history_lengths_h[:past].copy_(state["history_lengths_n"])
        self._rounds, self._spare, first = [], None, 0
        for version, size in zip(state["rounds"], state["round_sizes"], strict=True):
            of_round = slice(first, first + size)
            block = self._room(size)
            block.copy_(state["rows_Md"][of_round])
            self._rounds.append(
                _Round(
                    version=version,
                    clients=list(state["clients_M"][of_round]),
                    staleness=list(state["staleness_M"][of_round]),
                    block=block,
                    lengths_K=state["lengths_M"][of_round].clone(),
                )
            )
            first += size


def _lowest(cosines_Kn: Tensor, margin: float) -> Tensor:
    """Which are no more than the margin above the least of their row."""
    # Not `<=`: a product that float32 does not hold compares with nothing.
    return ~(cosines_Kn > cosines_Kn.min(1, keepdim=True).values + margin)


def _products_since(judged: _Round, since: list[tuple[_Round, int]]) -> tuple[list[Tensor], list[Tensor]]:
    """g_i . sum S [K] and |sum S|^2 of each chunk of columns, for the rows g of a round and S, not empty."""
    along, own, (first_d, *others) = [], [], [each.block[i] for each, i in since]
    for columns in column_chunks(first_d[None]):  # what must stay in the cache is their sum
        sum_c = first_d[columns].clone()
        for other_d in others:
            sum_c.add_(other_d[columns])
        along.append(torch.mv(judged.rows_Kd[:, columns], sum_c))
        own.append(torch.dot(sum_c, sum_c))
    return along, own


def _products(part_Kc: Tensor, held_nc: Tensor) -> Tensor:
    """g_i . G_j, [K, n]. With the fewer rows on the left: up to half as fast again."""
    return part_Kc @ held_nc.T if len(part_Kc) < len(held_nc) else (held_nc @ part_Kc.T).T


def _backtracking(clients: int, round_size: int) -> int:
    """N / (2 K), to the nearest whole number, halves up; at least 1."""
    return max(1, math.floor(clients / (2 * round_size) + 0.5))
