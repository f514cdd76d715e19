"""How a run stands, and how it ended: the same words from the server and from the simulator. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from types import MappingProxyType

from unstale.metrics.fairness import Fairness
from unstale.metrics.named import in_order
from unstale.metrics.spread import Spread
from unstale.training.measured import MainMetric

NONE: Mapping[str, Spread] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How the run stands after an evaluation, on the shell's own clock, which is virtual in the simulator."""

    version: int
    rounds: int  # versions to make
    metrics: Mapping[str, float]  # on the test set, the main one first; empty without one
    staleness_mean: float  # over the updates aggregated since the evaluation before, rounds; nan without any
    updates_per_s: float  # accepted since then
    clients: dict[str, int]  # number by state
    elapsed_s: float  # since the first task
    client_metrics: Mapping[str, Spread] = field(default_factory=dict)  # of the last evaluation by each client itself
    training_metrics: Mapping[str, Spread] = field(default_factory=dict)  # of the updates of the last round


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the run ended."""

    reason: str  # `finished`, `reached` or `shutdown`
    versions: int
    metrics: Mapping[str, float]  # of the last evaluation on the test set, the main one first; empty without one
    seconds: float  # from the first task to the end, on the shell's clock
    updates: dict[str, int]  # number by outcome
    staleness_mean: float  # over all updates aggregated
    overflows: int  # rounds whose step left the range of float32 and was not taken
    model_digest: str  # SHA-256 of the last version, in hex
    fairness: Fairness | None = None  # over the clients' own last evaluations, None when they were not asked
    client_metrics: Mapping[str, Spread] = field(default_factory=dict)  # as in `Progress`
    training_metrics: Mapping[str, Spread] = field(default_factory=dict)
    missed: str | None = None  # a line on `run.until` of a finished run that did not reach it


class Tally:
    """Counts what happens between evaluations and over the whole run, on the shell's clock."""

    def __init__(self, rounds: int, main: MainMetric) -> None:
        self._rounds = rounds
        self._main = main
        self._started_s: float | None = None
        self._since_s = 0.0
        self._accepted = 0
        self._overflows = 0
        self._staleness = Counter[int]()
        self._staleness_in_all = Counter[int]()
        self._metrics: Mapping[str, float] = {}
        self._notes: set[str] = set()

    def started(self, at_s: float) -> None:
        """The first task goes out; told again, nothing changes."""
        if self._started_s is None:
            self._started_s = self._since_s = at_s

    def accepted(self) -> None:
        self._accepted += 1

    def applied(self, staleness: Sequence[int], *, overflowed: bool) -> None:
        """A round is a version. overflowed: its step was not taken."""
        self._overflows += overflowed
        self._staleness.update(staleness)
        self._staleness_in_all.update(staleness)

    def evaluated(
        self,
        version: int,
        metrics: Mapping[str, float],
        clients: Mapping[str, int],
        at_s: float,
        *,
        client_metrics: Mapping[str, Spread] = NONE,
        training_metrics: Mapping[str, Spread] = NONE,
    ) -> Progress:
        """A version was measured: how the run stands, and a new count begins."""
        self._metrics = in_order(metrics, self._main)
        period_s = at_s - self._since_s
        progress = Progress(
            version=version,
            rounds=self._rounds,
            metrics=self._metrics,
            staleness_mean=_mean(self._staleness),
            updates_per_s=self._accepted / period_s if period_s > 0 else 0.0,
            clients=dict(clients),
            elapsed_s=self._elapsed_s(at_s),
            client_metrics=dict(client_metrics),
            training_metrics=dict(training_metrics),
        )
        self._since_s, self._accepted = at_s, 0
        self._staleness.clear()
        return progress

    def news(self, notes: Iterable[str]) -> list[str]:
        """Return the notes that this run has not given before, each once. The caller keeps their number small."""
        new = [note for note in dict.fromkeys(notes) if note not in self._notes]
        self._notes.update(new)
        return new

    def ended(
        self,
        reason: str,
        versions: int,
        updates: Mapping[str, int],
        digest: str,
        at_s: float,
        fairness: Fairness | None = None,
        *,
        client_metrics: Mapping[str, Spread] = NONE,
        training_metrics: Mapping[str, Spread] = NONE,
    ) -> Outcome:
        """The run is over since `at_s`. digest: of the last version."""
        return Outcome(
            reason=reason,
            versions=versions,
            metrics=self._metrics,
            seconds=self._elapsed_s(at_s),
            updates=dict(updates),
            staleness_mean=_mean(self._staleness_in_all),
            overflows=self._overflows,
            model_digest=digest,
            fairness=fairness,
            client_metrics=dict(client_metrics),
            training_metrics=dict(training_metrics),
        )

    def _elapsed_s(self, at_s: float) -> float:
        return 0.0 if self._started_s is None else at_s - self._started_s


def _mean(times: Counter[int]) -> float:
    """Return the mean of counted numbers, nan without any."""
    return sum(number * count for number, count in times.items()) / times.total() if times else nan
