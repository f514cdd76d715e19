"""How a run stands, and how it ended: the same words from the server and from the simulator. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan

from unstale.metrics.fairness import Fairness


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How the run stands after an evaluation.

    version, rounds: versions made, and to make. accuracy: share of the test set, in [0, 1]. loss: nats.
    staleness_mean: over the updates aggregated since the evaluation before, rounds; nan when there were none.
    updates_per_s: accepted since then. clients: number by state. elapsed_s: since the first task. The clock is the
    shell's own: virtual in the simulator.
    """

    version: int
    rounds: int
    accuracy: float
    loss: float
    staleness_mean: float
    updates_per_s: float
    clients: dict[str, int]
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the run ended.

    reason: `finished` or `shutdown`. test_accuracy, test_loss: of the last evaluation, nan without one. seconds: from
    the first task to the end, on the shell's clock. updates: number by outcome. staleness_mean: over all updates
    aggregated. overflows: rounds whose step left the range of float32 and was not taken. model_digest: SHA-256 of the
    last version, in hex. fairness: over the clients' own last evaluations, None when they were not asked.
    """

    reason: str
    versions: int
    test_accuracy: float
    test_loss: float
    seconds: float
    updates: dict[str, int]
    staleness_mean: float
    overflows: int
    model_digest: str
    fairness: Fairness | None = None


class Tally:
    """Counts what happens between evaluations and over the whole run, on the shell's clock."""

    def __init__(self, rounds: int) -> None:
        """rounds: versions to make."""
        self._rounds = rounds
        self._started_s: float | None = None
        self._since_s = 0.0
        self._accepted = 0
        self._overflows = 0
        self._staleness = _Mean()
        self._staleness_in_all = _Mean()
        self._accuracy = self._loss = nan
        self._notes: set[str] = set()

    def started(self, at_s: float) -> None:
        """The first task goes out; told again, nothing changes."""
        if self._started_s is None:
            self._started_s = self._since_s = at_s

    def accepted(self, updates: int = 1) -> None:
        """Updates will count."""
        self._accepted += updates

    def applied(self, staleness: Sequence[int], *, overflowed: bool) -> None:
        """A round is a version. overflowed: its step was not taken."""
        self._overflows += overflowed
        self._staleness.add(staleness)
        self._staleness_in_all.add(staleness)

    def evaluated(
        self, version: int, accuracy: float, loss: float, clients: Mapping[str, int], at_s: float
    ) -> Progress:
        """A version was measured: how the run stands, and a new count begins."""
        self._accuracy, self._loss = accuracy, loss
        period_s = at_s - self._since_s
        progress = Progress(
            version=version,
            rounds=self._rounds,
            accuracy=accuracy,
            loss=loss,
            staleness_mean=self._staleness.value,
            updates_per_s=self._accepted / period_s if period_s > 0 else 0.0,
            clients=dict(clients),
            elapsed_s=self._elapsed_s(at_s),
        )
        self._since_s, self._accepted, self._staleness = at_s, 0, _Mean()
        return progress

    def news(self, notes: Iterable[str]) -> list[str]:
        """Those of some sentences for people that were not there before: each is said once in a run. Whoever makes them
        sees to it that there are few.
        """
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
    ) -> Outcome:
        """The run is over since `at_s`. digest: of the last version."""
        return Outcome(
            reason=reason,
            versions=versions,
            test_accuracy=self._accuracy,
            test_loss=self._loss,
            seconds=self._elapsed_s(at_s),
            updates=dict(updates),
            staleness_mean=self._staleness_in_all.value,
            overflows=self._overflows,
            model_digest=digest,
            fairness=fairness,
        )

    def _elapsed_s(self, at_s: float) -> float:
        return 0.0 if self._started_s is None else at_s - self._started_s


class _Mean:
    """Of whole numbers."""

    def __init__(self) -> None:
        self._sum = 0
        self._count = 0

    def add(self, values: Sequence[int]) -> None:
        self._sum += sum(values)
        self._count += len(values)

    @property
    def value(self) -> float:
        """nan while there are none."""
        return self._sum / self._count if self._count else nan
