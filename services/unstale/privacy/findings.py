"""What reconstructed examples tell of the data that they were reconstructed from. Pure.

A reconstructed example is compared with its client's own examples, and with as many of other clients: what is not
closer to the first than to the second tells nothing of this client. Other clients hold other classes; so there is a
second pair of pools, which have as many of each class, and what is closer to its own there tells more than the class.
The pools of a pair are of one size, because of more examples the closest is closer, by chance.

Legend: r reconstructed examples, c clients, D draws of the bootstrap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from unstale.privacy.image_similarity import Measure
from unstale.seeds import Generator

OWN, OTHERS = "own", "others"
OWN_SAME_CLASSES, SAME_CLASSES = "own_same_classes", "same_classes"
BESIDE = {OTHERS: OWN, SAME_CLASSES: OWN_SAME_CLASSES}
"""By pool of others, the own one that it is compared with."""

POOLS = (OWN, OTHERS, OWN_SAME_CLASSES, SAME_CLASSES)

DRAWS = 10_000
OUTSIDE = 0.05  # of the interval of a difference

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """The reconstruction of one update, held against the pools that there are."""

    client_id: int
    labels: Sequence[int]  # of each example, the class that its label says most of
    best: Mapping[str, Mapping[str, Numbers]]  # by measure and pool, how alike the closest of the pool is, [r]
    pool_examples: Mapping[str, int]  # by pool, how many there were to choose from, as many as in the pool `BESIDE` it
    # by pool, total variation distance of its shares of classes from those that were reconstructed, in [0, 1]
    label_distance: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean, and values that so many per cent are below."""

    mean: float
    p5: float
    p25: float
    median: float
    p75: float
    p95: float

    @classmethod
    def of(cls, values: Numbers) -> "Distribution":
        p5, p25, median, p75, p95 = np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist()
        return cls(mean=float(values.mean()), p5=p5, p25=p25, median=median, p75=p75, p95=p95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much closer examples are to their client's own data than to as many of others: mean, > 0 for closer, in the
    unit of the measure; low and high bound it with 95 % (nan with one client). closer_share: of the examples; those
    that are equally close count half.
    """

    mean: float
    low: float
    high: float
    closer_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measure over all examples. pools: how close they come. closer: by pool of others, to own data than to it."""

    measure: str
    unit: str
    larger_is_closer: bool
    pools: Mapping[str, Distribution]
    closer: Mapping[str, Difference]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfClass:
    """Reconstructed examples of one class. means: by measure and pool."""

    label: int
    examples: int
    means: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What all reconstructions tell. pool_examples, label_distance: as in `Matches`, means over updates."""

    updates: int
    clients: int
    examples: int
    pool_examples: Mapping[str, float]
    measures: Sequence[Compared]
    classes: Sequence[OfClass]
    label_distance: Mapping[str, float]


def findings(matches: Sequence[Matches], measures: Sequence[Measure], rng: Generator) -> Findings:
    """Over one or more updates; of the pools that each of them has. rng: for the bootstrap."""
    pools = _common_pools(matches)
    clients_r = np.concatenate([np.full(len(one.labels), one.client_id) for one in matches])
    labels_r = np.concatenate([np.asarray(one.labels) for one in matches])
    best = {measure.key: _joined([one.best[measure.key] for one in matches], pools) for measure in measures}
    return Findings(
        updates=len(matches),
        clients=len(np.unique(clients_r)),
        examples=len(labels_r),
        pool_examples={pool: fmean(one.pool_examples[pool] for one in matches) for pool in pools},
        measures=[_compared(measure, best[measure.key], clients_r, rng) for measure in measures],
        classes=[_of_class(int(label), labels_r == label, best) for label in np.unique(labels_r)],
        label_distance={pool: fmean(one.label_distance[pool] for one in matches) for pool in pools},
    )


def _common_pools(matches: Sequence[Matches]) -> list[str]:
    """The pools of every update."""
    for one in matches:
        for pool, own in BESIDE.items():
            assert one.pool_examples.get(pool) == one.pool_examples.get(own), one.pool_examples
    return [pool for pool in POOLS if all(pool in one.pool_examples for one in matches)]


def _joined(by_update: Sequence[Mapping[str, Numbers]], pools: Sequence[str]) -> dict[str, Numbers]:
    """The numbers of all updates, by pool."""
    return {pool: np.concatenate([by_pool[pool] for by_pool in by_update]) for pool in pools}


def difference(closer_r: Numbers, clients_r: NDArray[np.int64], rng: Generator) -> Difference:
    """closer_r: of each example, by how much it is closer to its client's own data. clients_r: whose it is.

    The interval is of a bootstrap over clients: examples of one client are much alike, so that to draw examples would
    make it too short.
    """
    _, whose_r = np.unique(clients_r, return_inverse=True)
    sums_c = np.bincount(whose_r, weights=closer_r)
    counts_c = np.bincount(whose_r)
    low = high = nan
    if len(counts_c) > 1:
        drawn_Dc = rng.integers(len(counts_c), size=(DRAWS, len(counts_c)))
        means_D = sums_c[drawn_Dc].sum(1) / counts_c[drawn_Dc].sum(1)
        low, high = np.quantile(means_D, (OUTSIDE / 2, 1 - OUTSIDE / 2)).tolist()
    return Difference(
        mean=float(closer_r.mean()),
        low=low,
        high=high,
        closer_share=float((closer_r > 0).mean() + (closer_r == 0).mean() / 2),
    )


def label_distance(shares_C: Numbers, labels_n: NDArray[np.int64]) -> float:
    """Total variation distance of shares of classes from those of some labels: 0 for equal, 1 for none in common."""
    held_C = np.bincount(labels_n, minlength=len(shares_C)) / max(len(labels_n), 1)
    return float(np.abs(shares_C - held_C).sum() / 2)


def _compared(measure: Measure, best: Mapping[str, Numbers], clients_r: NDArray[np.int64], rng: Generator) -> Compared:
    sign = 1 if measure.larger_is_closer else -1
    return Compared(
        measure=measure.key,
        unit=measure.unit,
        larger_is_closer=measure.larger_is_closer,
        pools={pool: Distribution.of(values_r) for pool, values_r in best.items()},
        closer={
            pool: difference(sign * (best[own] - best[pool]), clients_r, rng)
            for pool, own in BESIDE.items()
            if pool in best
        },
    )


def _of_class(label: int, chosen_r: NDArray[np.bool_], best: Mapping[str, Mapping[str, Numbers]]) -> OfClass:
    means = {
        measure: {pool: float(values_r[chosen_r].mean()) for pool, values_r in pools.items()}
        for measure, pools in best.items()
    }
    return OfClass(label=label, examples=int(chosen_r.sum()), means=means)
