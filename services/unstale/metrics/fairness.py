"""How well a model serves the clients: its metrics on each client's own test examples. Pure.

Source: FedAR (Jiang et al., 2024), docs/methods/measures.md#fairness-over-clients
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, nan
from statistics import fmean, pstdev, stdev
from typing import Generic, TypeVar

from unstale.metrics.spread import Report

ACCURACY = "accuracy"
PERCENT = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """Accuracy over the clients that have answered. Accuracies are shares in [0, 1]; a std of one client is nan."""

    clients: int
    oldest_version: int  # of the models that they measured, each client one
    newest_version: int
    mean: float
    std: float  # with n - 1
    variance: float  # with n
    worst_tenth: float  # mean over the ceil(n / 10) lowest accuracies
    worst_tenth_std: float
    best_tenth: float  # mean over as many highest ones
    best_tenth_std: float


class OwnEvaluations:
    """Who is asked to measure the model on its own test examples, and what they said last.

    every: rounds between two questions to a client; None asks nobody. One thread writes, any thread may read.
    """

    def __init__(self, every: int | None) -> None:
        self.every = every
        self.answers = 0  # so far
        self._answers: dict[int, tuple[int, Report]] = {}

    def is_wanted(self, client_id: int, version: int) -> bool:
        """Whether a task of this version asks: its client has not answered since the last multiple of `every`."""
        if self.every is None or version < self.every:
            return False
        answer = self._answers.get(client_id)
        return answer is None or answer[0] // self.every < version // self.every

    def answered(self, client_id: int, version: int, metrics: Mapping[str, float], examples: int = 1) -> None:
        """A client measured a version. What was not asked for is passed over."""
        if self.is_wanted(client_id, version):
            self._answers[client_id] = version, Report(client_id, examples, metrics)
            self.answers += 1

    @property
    def reports(self) -> list[Report]:
        """The last answer of each client."""
        return [report for _, report in self._answers.copy().values()]

    @property
    def fairness(self) -> Fairness | None:
        """Over the last answer of each client; None while there is none with an accuracy, a fraction or in percent."""
        answers = [
            (version, report)
            for version, report in self._answers.copy().values()
            if 0 <= report.metrics.get(ACCURACY, nan) <= PERCENT
        ]
        if not answers:
            return None
        accuracies = sorted(report.metrics[ACCURACY] for _, report in answers)
        versions = [version for version, _ in answers]
        tenth = ceil(len(accuracies) / 10)
        worst, best = accuracies[:tenth], accuracies[-tenth:]
        return Fairness(
            clients=len(accuracies),
            oldest_version=min(versions),
            newest_version=max(versions),
            mean=fmean(accuracies),
            std=_std(accuracies),
            variance=pstdev(accuracies) ** 2,
            worst_tenth=fmean(worst),
            worst_tenth_std=_std(worst),
            best_tenth=fmean(best),
            best_tenth_std=_std(best),
        )


class FromAnswers(Generic[T]):
    """A value that is computed from own evaluations when it is read, and again only after another answer."""

    def __init__(self, of: OwnEvaluations, compute: Callable[[], T]) -> None:
        self._of = of
        self._compute = compute
        self._last: tuple[int, T] | None = None

    def __call__(self) -> T:
        """The value now. Any thread."""
        last, answers = self._last, self._of.answers  # read before the answers themselves, so never newer than them
        if last is None or last[0] != answers:
            self._last = last = answers, self._compute()
        return last[1]


def _std(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else nan
