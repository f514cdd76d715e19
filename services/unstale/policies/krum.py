"""Krum and Multi-Krum: only the updates that lie closest to their neighbours count."""

from typing import TypeVar

import torch
from torch import Tensor

from unstale.part_settings import setting
from unstale.policies.pairwise import squared_distances
from unstale.policies.policy import Policy, PolicySettings, Step, UpdateBatch


class _KrumSettings(PolicySettings):
    byzantine: int = setting(
        1, "f: how many updates of a round may be wild.", "ours; Blanchard et al. ask for 2 f + 2 < K", ge=0
    )
    selected: int | None


class KrumSettings(_KrumSettings):
    selected: int = setting(1, "m: how many updates are averaged; more than K means all.", "Blanchard et al.", ge=1)


class MultiKrumSettings(_KrumSettings):
    selected: int | None = setting(
        None,
        "m: how many updates are averaged; null means K - f, and more than K means all.",
        "ours; Blanchard et al. leave it open",
        ge=1,
    )


KS = TypeVar("KS", bound=_KrumSettings)


class _Krum(Policy[KS]):
    """The average of the m updates with the lowest scores; what both have in common."""

    def step(self, batch: UpdateBatch) -> Step:
        rows = len(batch)
        weights_K = torch.zeros(rows, dtype=torch.float64)
        if rows > 0:
            scores_K = krum_scores(squared_distances(batch.matrix_Kd), self.settings.byzantine)
            count = min(self.settings.selected or max(rows - self.settings.byzantine, 1), rows)
            # Two updates that are each other's nearest tie in small rounds: the lower client id is taken.
            ranking = sorted(zip(scores_K.tolist(), batch.client_ids_K.tolist(), range(rows), strict=True))
            weights_K[[row for _, _, row in ranking[:count]]] = 1 / count
        return self.weighted(batch, weights_K)


class Krum(_Krum[KrumSettings]):
    """The one update that lies closest to its neighbours.

        direction_d = g_k,   k = argmin_i score_i,
        score_i = sum of |g_i - g_j|^2 over the K - f - 2 updates j nearest to i

    f: settings.byzantine. Staleness and examples do not matter. The published promise needs K >= 2 f + 3; a smaller
    round takes K - f - 2 neighbours too, and at least one where there is one. Ties: the lowest client id. With
    `selected` above 1 it is Multi-Krum.
    Section 4 of the paper, whose n is K.
    Source: Krum (Blanchard et al., NIPS 2017), docs/methods/policies-robust.md#krum
    """

    Settings = KrumSettings


class MultiKrum(_Krum[MultiKrumSettings]):
    """The average of the m updates that lie closest to their neighbours.

        direction_d = (1/m) * sum of the g_i with the m lowest scores

    m: settings.selected, or K - f, at least 1; with m = 1 it is Krum, which says what the scores are. Staleness and
    examples do not matter.
    Section 5 of the paper.
    Source: Krum (Blanchard et al., NIPS 2017), docs/methods/policies-robust.md#multi-krum
    """

    Settings = MultiKrumSettings


def krum_scores(squared_KK: Tensor, byzantine: int) -> Tensor:
    """The sum of each update's squared distances to its nearest others, [K] float64, K > 0.

    squared_KK: [K, K] float64, symmetric. byzantine: f, >= 0. An update without neighbours scores 0.
    """
    rows = len(squared_KK)
    neighbours = min(max(rows - byzantine - 2, 1), rows - 1)
    others_KK = squared_KK.clone().fill_diagonal_(torch.inf)
    return others_KK.sort(dim=1).values[:, :neighbours].sum(dim=1)
