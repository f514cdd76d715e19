"""WKAFL: an estimate of the unbiased gradient from fresh updates, then the updates that point its way."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from pydantic import model_validator
from pydantic_core import PydanticCustomError
from torch import Tensor

from unstale.flat import is_finite
from unstale.part_settings import setting
from unstale.policies import pairwise
from unstale.policies.policy import Policy, PolicyContext, PolicySettings, Step, UpdateBatch
from unstale.policies.weights import column_chunks, device_weights, exponential, normalise, uniform, weighted_sum

_RELEASED = "WKAFL's released code, the paper prints none"
_CERTAINLY_FINITE = 1e30  # length of a vector that has no infinity, whatever the rounding


class WkaflSettings(PolicySettings):
    alpha: float = setting(0.1, "What the estimate of the round before counts in each update.", _RELEASED, ge=0, le=1e6)
    clip_bound: float | None = setting(
        None,
        "CB: longer vectors are cut to this length; null: none are.",
        "ours: the released bounds of 70 to 500 belong to pixels of 0 to 255",
        gt=0,
    )
    stage_two_bound: float = setting(
        5.0,
        "B: in stage two, vectors longer than this many times the estimate are cut to that.",
        _RELEASED + "; 10 for EMNIST",
        gt=0,
    )
    beta: float = setting(
        10.0,
        "How much more similar updates weigh: exp(beta * cosine).",
        _RELEASED + "; 50 for CIFAR-10, 20 for CelebA",
        ge=0,
        le=1e6,
    )
    similarity_min: float = setting(
        0.3, "The least cosine with the estimate that an update needs to be selected.", _RELEASED, ge=-1, le=1
    )
    gamma: float = setting(
        0.01,
        "How much staleness lowers the learning rate: it is divided by 1 + gamma * the least of the round.",
        _RELEASED + "; 0.1 for EMNIST, 0.05 for CelebA",
        ge=0,
        le=1e6,
    )
    stage_two_loss: float | None = setting(
        None,
        "Stage two begins with the first round whose average loss is at most this; null: not by loss.",
        "WKAFL paper, which gives no value; its algorithm has the sum, its text the average",
        ge=0,
    )
    stage_two_round: int | None = setting(
        None,
        "Stage two begins with this version; null: halfway, where neither a loss is set nor no end known.",
        "ours: half of the rounds; WKAFL's released code: 1000 to 5000",
        ge=0,
    )
    momentum: Literal["estimate", "aggregate"] = setting(
        "estimate",
        "What the next round's updates get a share of: this round's estimate, or its direction.",
        "WKAFL paper, Eq. 4; its convergence section and released code: aggregate",
    )
    rate_staleness: Literal["zero-based", "one-based"] = setting(
        "zero-based",
        "Whether a fresh update has staleness 0 or 1 in the rule of the learning rate.",
        "WKAFL paper, remark on Eq. 10; its released code: one-based",
    )
    threshold: Literal["inclusive", "strict"] = setting(
        "inclusive",
        "Whether a cosine of exactly similarity_min selects.",
        "WKAFL paper, Eq. 6; its released code: strict",
    )
    zero_gradient: Literal["dissimilar", "similar"] = setting(
        "dissimilar",
        "Whether the cosine of a zero vector counts as 0 or as 1.",
        "ours; WKAFL's released code: similar in two of four files",
    )
    no_gradient_selection: bool = setting(False, "Ablation: step along the estimate.", "WKAFL paper, ablations")
    no_staleness: bool = setting(
        False, "Ablation: the estimate is a plain average, and the learning rate stays.", "WKAFL paper, ablations"
    )
    no_non_iidness: bool = setting(False, "Ablation: alpha is 0.", "WKAFL paper, ablations")

    @model_validator(mode="after")
    def _one_rule_for_stage_two(self) -> Self:
        if self.stage_two_loss is not None and self.stage_two_round is not None:
            raise PydanticCustomError(
                "stage_two",
                "settings 'stage_two_loss' and 'stage_two_round' are both set, expected at most one of them",
            )
        return self


class Wkafl(Policy[WkaflSettings]):
    """Estimates the unbiased gradient from the freshest updates, and keeps those that are similar to it.

        gt_i = g_i + alpha * e_prev;   gc_i = clip(gt_i, CB)
        e = sum_i a_i gc_i,   a = normalise((e/2)^-s_i)
        p_i ~ exp(beta * cos(gc_i, e)) where the cosine is at least similarity_min, else 0
        in stage two:  gc_i <- clip(gc_i, B * |e|)
        direction_d = sum_i p_i gc_i, or e where nothing is selected;   rate_factor = 1 / (gamma * min s_i + 1)
        e_prev <- e

    e_prev: [d] float32, zeros at first. Stage two begins by loss or by version, and never ends; where neither rule is
    set, at half of the run's rounds, and never where that number is not known. An estimate that is but rounding is
    similar to nothing. The weights of the step are p, or a where nothing is selected. An empty round changes nothing;
    an estimate that float32 does not hold is not remembered.
    On a CPU no gt is ever written: every sum of them is one of rows and of e_prev, and so are their lengths and
    products. On an accelerator they are written in chunks, so that one wait gives lengths and products of any rows;
    there is a second one where some row is longer than CB.
    Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/policies-with-memory.md#wkafl
    """

    Settings = WkaflSettings
    loops = ("k-async",)
    memory = "2 d + the stage"
    reference_defaults = MappingProxyType(
        {"momentum": "aggregate", "rate_staleness": "one-based", "threshold": "strict"}
    )

    def __init__(self, settings: WkaflSettings, context: PolicyContext) -> None:
        super().__init__(settings, context)
        self._alpha = 0.0 if settings.no_non_iidness else settings.alpha
        self._previous_d = torch.zeros(self.dimension, dtype=torch.float32, device=self.device)
        self._estimate_d = torch.zeros_like(self._previous_d)
        self._stage = 1

    @torch.no_grad()
    def step(self, batch: UpdateBatch) -> Step:
        if len(batch) == 0:
            weights_K = uniform(0)
            return Step(
                direction_d=self.result_d.zero_(), rate_factor=1.0, weights_K=weights_K, metrics=self._metrics(None)
            )
        if self._stage == 1 and self._stage_two_begins(batch):
            self._stage = 2
        late_K = batch.staleness_K - batch.staleness_K.min()
        shares_K = uniform(len(batch)) if self.settings.no_staleness else normalise(exponential(late_K))
        fused = _Fused(batch.matrix_Kd, self._previous_d, self._alpha)
        along_K, length = fused.estimate(shares_K, out_d=self._estimate_d)
        kept_K = _clipped(fused.lengths_K, self.settings.clip_bound)
        if bool((kept_K < 1).any()):
            along_K, length = fused.estimate(shares_K * kept_K, out_d=self._estimate_d)
        selected_K = self._selected(along_K * kept_K, fused.lengths_K * kept_K, shares_K, length)
        longest = length
        if selected_K is None:
            self.result_d.copy_(self._estimate_d)
        else:
            if self._stage == 2:
                kept_K = kept_K * _clipped(fused.lengths_K * kept_K, self.settings.stage_two_bound * length)
            fused.sum(selected_K * kept_K, out_d=self.result_d)
            if self.settings.momentum == "aggregate":
                longest = float((selected_K * kept_K) @ fused.lengths_K)
        self._remember(longest)
        return Step(
            direction_d=self.result_d,
            rate_factor=self._rate_factor(batch),
            weights_K=shares_K if selected_K is None else selected_K,
            metrics=self._metrics(selected_K),
        )

    def _metrics(self, selected_K: Tensor | None) -> dict[str, float]:
        """The stage, and the number of selected updates. selected_K: on the CPU; None where the direction is e."""
        return {"stage": self._stage, "selected": 0 if selected_K is None else int(torch.count_nonzero(selected_K))}

    def _stage_two_begins(self, batch: UpdateBatch) -> bool:
        settings = self.settings
        if settings.stage_two_loss is not None:
            return float(batch.loss_K.to("cpu", torch.float64).mean()) <= settings.stage_two_loss
        if settings.stage_two_round is not None:
            return batch.version >= settings.stage_two_round
        return self.context.rounds is not None and batch.version >= self.context.rounds // 2

    def _selected(self, along_K: Tensor, lengths_K: Tensor, shares_K: Tensor, length: float) -> Tensor | None:
        """p, [K] float64 on the CPU; None where the direction is e.

        along_K: gc_i . e. lengths_K: |gc_i|. length: |e|.
        """
        settings = self.settings
        if settings.no_gradient_selection:
            return None
        similar_K = pairwise.cosines(along_K, lengths_K * length)
        if length <= pairwise.ROUNDING * float(shares_K @ lengths_K):
            similar_K = torch.zeros_like(similar_K)
        if settings.zero_gradient == "similar":
            similar_K = torch.where(lengths_K <= pairwise.NO_DIRECTION, 1.0, similar_K)
        least = settings.similarity_min
        chosen_K = similar_K >= least if settings.threshold == "inclusive" else similar_K > least
        if not bool(chosen_K.any()):
            return None
        raw_K = torch.exp(settings.beta * (similar_K - similar_K[chosen_K].max())) * chosen_K
        return raw_K / raw_K.sum()

    def _remember(self, longest: float) -> None:
        """e_prev <- e, or the direction. longest: at least its length; NaN where float32 does not hold the lengths."""
        if self.settings.momentum == "aggregate":
            self._estimate_d.copy_(self.result_d)
        # No wait for the device where the length proves that every number is finite.
        if longest < _CERTAINLY_FINITE or is_finite(self._estimate_d):
            self._previous_d, self._estimate_d = self._estimate_d, self._previous_d

    def _rate_factor(self, batch: UpdateBatch) -> float:
        if self.settings.no_staleness:
            return 1.0
        late = int(batch.staleness_K.min()) + (self.settings.rate_staleness == "one-based")
        return 1 / (self.settings.gamma * late + 1)

    def state_dict(self) -> dict[str, Any]:
        return {"previous_d": self._previous_d.clone(), "stage": self._stage}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._previous_d.copy_(state["previous_d"])
        self._stage = state["stage"]


class _Fused:
    """The vectors gt_i = g_i + alpha * x of a round, never written out as a whole.

    matrix_Kd: g. shift_d: x. lengths_K: |gt_i|, [K] float64 on the CPU, from the first estimate on.
    """

    def __init__(self, matrix_Kd: Tensor, shift_d: Tensor, alpha: float) -> None:
        self._matrix_Kd, self._shift_d, self._alpha = matrix_Kd, shift_d, alpha
        # On a CPU written chunks of gt cost more than products with g and x.
        self._is_written = bool(alpha) and matrix_Kd.device.type != "cpu"
        self._added = 0.0 if self._is_written else alpha  # how much of x the products lack
        self._measured, self._cancelled = False, list[int]()

    def estimate(self, weights_K: Tensor, out_d: Tensor) -> tuple[Tensor, float]:
        """e = sum_i weights_i gt_i into out_d; gives gt_i . e, [K] float64 on the CPU, and |e|.

        One read of the matrix for all of it, the first time `lengths_K` included.
        """
        products = []
        on_device_K, share = device_weights(weights_K, out_d.device), self._alpha * float(weights_K.sum())
        for part_Kc, shift_c, sum_c in self._chunks(out_d):
            _add(part_Kc, on_device_K, shift_c, share, out_c=sum_c)
            rows_Kc = torch.add(part_Kc, shift_c, alpha=self._alpha) if self._is_written else part_Kc
            of_chunk = [torch.mv(rows_Kc, sum_c), torch.dot(shift_c, sum_c), torch.dot(sum_c, sum_c)]
            if not self._measured:
                along_Kc = torch.mv(rows_Kc, shift_c) if self._added else rows_Kc.new_zeros(len(rows_Kc))
                of_chunk += [pairwise.squares(rows_Kc), along_Kc, torch.dot(shift_c, shift_c)]
            products.append(of_chunk)
        rows_sum_K, shift_sum, square, *first = pairwise.totals(*map(list, zip(*products, strict=True)))
        if first:
            self._measured = True
            squares_K, rows_shift_K, shift = first
            self.lengths_K, self._cancelled = pairwise.fused_lengths(
                squares_K.sqrt(), rows_shift_K, shift.sqrt(), self._added, lambda i: (self._matrix_Kd[i], self._shift_d)
            )
        along_K = rows_sum_K + self._added * shift_sum
        for i in self._cancelled:
            along_K[i] = pairwise.inner(self._matrix_Kd[i], out_d, shift_d=self._shift_d, alpha=self._alpha)
        return along_K, float(square.sqrt())

    def sum(self, weights_K: Tensor, out_d: Tensor) -> None:
        """sum_i weights_i gt_i into out_d. weights_K: [K] float64 on the CPU."""
        on_device_K, share = device_weights(weights_K, out_d.device), self._alpha * float(weights_K.sum())
        for part_Kc, shift_c, out_c in self._chunks(out_d):
            _add(part_Kc, on_device_K, shift_c, share, out_c=out_c)

    def _chunks(self, out_d: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Columns of g, x and a vector."""
        for columns in column_chunks(self._matrix_Kd):
            yield self._matrix_Kd[:, columns], self._shift_d[columns], out_d[columns]


def _add(part_Kc: Tensor, on_device_K: Tensor, shift_c: Tensor, share: float, out_c: Tensor) -> None:
    """sum_i weights_i g_i + share * x into out_c."""
    weighted_sum(part_Kc, on_device_K, out_d=out_c)
    if share:
        out_c.add_(shift_c, alpha=share)


def _clipped(lengths_K: Tensor, bound: float | None) -> Tensor:
    """What is left of vectors of these lengths when none may be longer than the bound; all of zero vectors."""
    if bound is None:
        return torch.ones_like(lengths_K)
    return torch.where(lengths_K > bound, bound / lengths_K, 1.0)
