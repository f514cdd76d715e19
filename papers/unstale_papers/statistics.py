"""Statistics over seeds: means, tests of differences, and agreement of orders. Pure.

Legend: n numbers, one of each seed, pair or method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import fmean, stdev

from scipy.special import stdtr

from unstale.report.statistics import spread
from unstale_papers.record import Record

SIGNIFICANCE = 0.05
DECIMALS = 12  # of a difference: further digits are rounding errors
METHODS_MIN = 3  # two random orders of two methods agree half of the time

AUTOCORRELATED = (
    "The accuracies of neighbouring rounds of one run are alike (autocorrelated), so they are no independent pairs, "
    "and a tiny p over rounds is no evidence: look at the test over seeds."
)
"""Note beside each result of `over_rounds`.

Source: docs/methods/measures.md#paired-t-test
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and spread of n seeds. std: with n - 1. low, high: ends of the 95 % interval of the mean, by Student's t.
    All three are None with one seed.
    """

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None


def over_seeds(values: Sequence[float]) -> Spread | None:
    """The mean, or None without values and where one is not finite."""
    if not values or not all(map(isfinite, values)):
        return None
    found = spread(values)
    if found.n == 1:
        return Spread(n=1, mean=found.mean, std=None, low=None, high=None)
    return Spread(n=found.n, mean=found.mean, std=found.std, low=found.low, high=found.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class TTest:
    """Student's two-sided test of n differences. t: infinite where all are equal. p: of a t at least as far from 0,
    with n - 1 degrees of freedom.
    """

    n: int
    mean: float
    t: float
    p: float


def t_test(differences: Sequence[float], *, against: float = 0.0) -> TTest | None:
    """Test whether the mean of differences is `against`: t = (mean - against) / (sd / sqrt(n)), sd with n - 1.

    None for fewer than two, where one is not finite, and where all equal `against`, which leaves t undefined.
    Source: docs/methods/measures.md#paired-t-test
    """
    n = len(differences)
    if n < 2 or not all(map(isfinite, differences)):
        return None
    mean, std = fmean(differences), stdev(differences)
    if std == 0:
        mean = differences[0]  # the mean of many may be rounded
        return None if mean == against else TTest(n=n, mean=mean, t=inf if mean > against else -inf, p=0.0)
    t = (mean - against) / (std / sqrt(n))
    return TTest(n=n, mean=mean, t=t, p=2 * float(stdtr(n - 1, -abs(t))))


def over_rounds(pairs: Sequence[tuple[Record, Record]]) -> TTest | None:
    """The paired t-test of two methods over all evaluated rounds and all seeds: accuracies of the first less those of
    the second, at the versions that both evaluated; not version 0, which no round made. Mind `AUTOCORRELATED`.

    pairs: for each seed, the record of one method and that of the other.
    """
    differences = []
    for ours, theirs in pairs:
        at = dict(zip(theirs.version_E, theirs.accuracy_E, strict=False))
        both = zip(ours.version_E, ours.accuracy_E, strict=False)
        differences += [accuracy - at[version] for version, accuracy in both if version > 0 and version in at]
    return t_test(differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of two orders of n methods. tau: Kendall's tau-b, 1 for equal orders, -1 for reversed ones. p: exact
    and two-sided, of a tau at least as far from 0 among all n! orders; None with ties. ties: whether one of the orders
    has ties.
    """

    n: int
    tau: float
    p: float | None
    ties: bool

    @property
    def text(self) -> str:
        """A few words with n, because agreement of few methods is weak evidence."""
        sureness = "ties, so no exact p" if self.p is None else f"p = {self.p:.2g}"
        return f"tau {self.tau:.2f} of {self.n} methods, {sureness}"


def kendall(published: Sequence[float], measured: Sequence[float]) -> Agreement | None:
    """Kendall's tau-b of published and measured numbers of some methods.

    A pair of methods that is tied in one of the orders counts for neither sign, and tau-b divides by the geometric
    mean of the untied pairs of both. None for fewer than three methods, and where one order has only ties.
    """
    from scipy.stats import kendalltau  # takes half a second, which `list` avoids

    n = len(published)
    assert len(measured) == n
    alike = min(len(set(published)), len(set(measured)))
    if n < METHODS_MIN or alike < 2:
        return None
    ties = alike < n
    found = kendalltau(published, measured, method="auto" if ties else "exact")
    return Agreement(n=n, tau=float(found.statistic), p=None if ties else float(found.pvalue), ties=ties)


def ranks(keys: Sequence[tuple[float, ...]]) -> list[int]:
    """The rank of each, from 0; tied ones share a rank."""
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    return [places[key] for key in keys]
