"""The interface of trackers, and the records that they receive."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unstale.metrics.named import POLICY, TRAINING
from unstale.training.measured import MainMetric

ROUND = "round"
EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run whose rounds follow."""

    name: str  # of its directory
    run_id: str | None  # the same after each resumption, another one after a rollback; None for a simulated run
    main: MainMetric
    settings: Mapping[str, Any]  # by key, those that can change the model


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """An applied round. Columns of `run.rounds` and of `run.updates` have the same names."""

    version: int
    elapsed_s: float  # when it was applied, since the first task, in time of the run
    updates: int
    staleness_mean_rounds: float  # over its updates; nan without any
    staleness_max_rounds: int
    wait_s: float
    compensate_s: float
    aggregate_s: float
    learning_rate: float
    rate_factor: float
    overflowed: bool
    digest: str  # SHA-256 of the version, in hex
    training: Mapping[str, float]  # means over its updates, of the loss and of the metrics that clients report
    policy: Mapping[str, float]  # metrics that policy and compensator report of themselves

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers by names such as `round/updates` and `training/loss`."""
        own = {
            "elapsed_s": self.elapsed_s,
            "updates": float(self.updates),
            "wait_s": self.wait_s,
            "compensate_s": self.compensate_s,
            "aggregate_s": self.aggregate_s,
            "learning_rate": self.learning_rate,
            "rate_factor": self.rate_factor,
        }
        if self.updates:
            own["staleness_mean_rounds"] = self.staleness_mean_rounds
            own["staleness_max_rounds"] = float(self.staleness_max_rounds)
        return dict((*_named(ROUND, own), *_named(TRAINING, self.training), *_named(POLICY, self.policy)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluated version. A row of `run.evaluations` has the same numbers."""

    version: int
    elapsed_s: float
    split: str  # `central`, `clients` or `training`
    metrics: Mapping[str, float]  # by name, the main one first

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers by names such as `central/accuracy`; none for the split `training`, which the round has."""
        if self.split == TRAINING:
            return {}
        return dict((*_named(EVALUATION, {"elapsed_s": self.elapsed_s}), *_named(self.split, self.metrics)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a run, or of its server."""

    version: int
    elapsed_s: float  # of the last round or evaluation
    reason: str  # `finished`, `reached` (the value of run.until) or `shutdown`, after which the run may be resumed


class Tracker:
    """Receives a run. Subclasses override some methods, which one thread calls, in this order.

    A call that raised is repeated later. After a resumption another `on_start` and all rounds from the first one
    follow, so a tracker that stores them omits those that it has.
    """

    def on_start(self, run: TrackedRun) -> None:
        """A run starts or is resumed."""

    def on_round(self, applied: Round) -> None:
        """A round was applied. Rounds come by version, from 1."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """A version was evaluated: version 0 before the first round, others after their round."""

    def flush(self) -> None:
        """All rounds and evaluations so far were given, or many of them."""

    def on_finish(self, finish: Finish) -> None:
        """The run has ended, or its server was stopped."""


def _named(group: str, numbers: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    return ((f"{group}/{name}", value) for name, value in numbers.items())
