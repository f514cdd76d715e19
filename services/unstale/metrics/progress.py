"""How a run stands, and how it ended: the same words from the server and from the simulator. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan

from unstale.metrics.fairness import Fairness


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How the run stands after an evaluation, on the shell's own clock, which is virtual in the simulator."""

    version: int
    rounds: int  # versions to make
    accuracy: float  # share of the test set, in [0, 1]
    loss: float  # nats
    staleness_mean: float  # over the updates aggregated since the evaluation before, rounds; nan without any
    updates_per_s: float  # accepted since then
    clients: dict[str, int]  # number by state
    elapsed_s: float  # since the first task


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the run ended."""

    reason: str  # `finished` or `shutdown`
    versions: int
    test_accuracy: float  # of the last evaluation, nan without one
    test_loss: float  # likewise
    seconds: float  # from the first task to the end, on the shell's clock
    updates: dict[str, int]  # number by outcome
    staleness_mean: float  # over all updates aggregated
    overflows: int  # rounds whose step left the range of float32 and was not taken
    model_digest: str  # SHA-256 of the last version, in hex
    fairness: Fairness | None = None  # over the clients' own last evaluations, None when they were not asked


class Tally:
    """Counts what happens between evaluations and over the whole run, on the shell's clock."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._started_s: float | None = None
        self._since_s = 0.0
        self._accepted = 0
        self._overflows = 0
        self._staleness = Counter[int]()
        self._staleness_in_all = Counter[int]()
        self._accuracy = self._loss = nan
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
            staleness_mean=_mean(self._staleness),
            updates_per_s=self._accepted / period_s if period_s > 0 else 0.0,
            clients=dict(clients),
            elapsed_s=self._elapsed_s(at_s),
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
    ) -> Outcome:
        """The run is over since `at_s`. digest: of the last version."""
        return Outcome(
            reason=reason,
            versions=versions,
            test_accuracy=self._accuracy,
            test_loss=self._loss,
            seconds=self._elapsed_s(at_s),
            updates=dict(updates),
            staleness_mean=_mean(self._staleness_in_all),
            overflows=self._overflows,
            model_digest=digest,
            fairness=fairness,
        )

    def _elapsed_s(self, at_s: float) -> float:
        return 0.0 if self._started_s is None else at_s - self._started_s


def _mean(times: Counter[int]) -> float:
    """Return the mean of counted numbers, nan without any."""
    return sum(number * count for number, count in times.items()) / times.total() if times else nan
