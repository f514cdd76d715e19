"""The mean staleness of the K-asynchronous loop, beside N/K and N/(2K).

Source: FedHist (Jiang et al., 2023), docs/methods/rounds.md#loops
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from statistics import fmean
from typing import Any

import numpy as np

from unstale.config.settings import Settings
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners import analytic

SETTLING = 10  # N/K rounds at the start, of which the steady state has none


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """Simulate, and average s + 1 over updates.

    options: of `analytic.run`. found: `mean staleness`, without the first 10 N/K rounds, or half of the run if that is
    shorter; `mean staleness over N/K`; `mean staleness of the first cycle`, of the first N/K rounds, and the same
    `over N/K`. Raises UserError.
    """
    started_s = now_s()
    trajectory = analytic.run(settings, options, on_progress)
    assert settings.trigger.k is not None, "the K-asynchronous loop has a K"
    ratio = settings.clients / settings.trigger.k
    rounds = trajectory.staleness
    start = min(round(SETTLING * ratio), len(rounds) // 2)
    steady, first = mean_of(rounds[start:]), mean_of(rounds[: max(1, round(ratio))])
    sums = accumulate(fmean(staleness) + 1 for staleness in rounds)
    means_R = np.array([total / number for number, total in enumerate(sums, 1)])
    return Record(
        found={
            "mean staleness": steady,
            "mean staleness over N/K": steady / ratio,
            "mean staleness of the first cycle": first,
            "first cycle over N/K": first / ratio,
            "curves": {"mean staleness so far, over N/K": analytic.curve(means_R / ratio)},
            **trajectory.notes,
        },
        seconds=now_s() - started_s,
    )


def mean_of(rounds: Sequence[Sequence[int]]) -> float:
    """Mean of s + 1 over all updates. rounds: stalenesses of the updates of each round."""
    return fmean(chain.from_iterable(rounds)) + 1
