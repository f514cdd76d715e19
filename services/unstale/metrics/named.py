"""Metrics by name: their splits, their order, which of two values is better, and which names are shown. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from unstale.training.measured import MainMetric

CENTRAL = "central"  # on the test set of the server
CLIENTS = "clients"  # mean over the clients' last own evaluations
TRAINING = "training"  # mean over the updates of the last round
POLICY = "policy"  # of policy and compensator

DIGITS_MAX = 1e15

CLIENTS_PER_REPORTER = 10
"""A name is common if more than one of so many clients reports it. With at most 33 names in each report, fewer than 330
names are common, and a tenth of the clients cannot add one."""


def in_order(metrics: Mapping[str, float], main: MainMetric) -> dict[str, float]:
    """The metrics with the main one first; the others keep their order."""
    first = {main.name: metrics[main.name]} if main.name in metrics else {}
    return {**first, **metrics}


def direction(name: str, main: MainMetric) -> bool | None:
    """Whether a higher value of a metric is better; None where nobody says so."""
    return {"accuracy": True, "loss": False, main.name: main.higher_is_better}.get(name)


def formatted(value: float, form: str) -> str:
    """A number in a form like `.4f`; with an exponent where it would have more than 15 digits before the point."""
    return f"{value:.4g}" if form.endswith("f") and abs(value) >= DIGITS_MAX else format(value, form)


def two_of(names: Iterable[str]) -> tuple[str, ...]:
    """The metrics that have columns or curves: the first one, and the loss, or the next one where that is not later."""
    first, others = [*dict.fromkeys(names)][:1], [*dict.fromkeys(names)][1:]
    return (*first, *(["loss"] if "loss" in others else others[:1]))


def common_names(reported: Collection[Iterable[str]], main: MainMetric) -> list[str]:
    """The names that are shown: the common ones, and the main one if a client reports it. reported: by client."""
    counts = Counter(name for names in reported for name in names)
    return [name for name in in_order(counts, main) if name == main.name or _is_common(counts[name], len(reported))]


class NameCounts:
    """Counts the clients that have each name in their last report. Memory: the names of one report of each client."""

    def __init__(self) -> None:
        self._names: dict[int, frozenset[str]] = {}
        self._counts: Counter[str] = Counter()

    def report(self, client_id: int, names: Iterable[str]) -> None:
        """Replace the names of a client."""
        before, now = self._names.get(client_id, frozenset()), frozenset(names)
        self._names[client_id] = now
        self._counts.update(now - before)
        for name in before - now:
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]

    def is_common(self, name: str) -> bool:
        """Whether enough clients report a name."""
        return _is_common(self._counts[name], len(self._names))


def _is_common(reporters: int, clients: int) -> bool:
    return reporters * CLIENTS_PER_REPORTER > clients
