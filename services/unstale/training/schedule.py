"""Schedules of the learning rate.

Legend: t rounds counted so far, R rounds of the run, eta_0 the configured learning rate.
"""

from abc import ABC, abstractmethod
from math import cos, pi

from pydantic import BaseModel, ConfigDict

from unstale.settings.learning import ScheduleSettings
from unstale.settings.part import part

RATE_MIN = 1e-12
"""Smallest rate; updates are divided by it."""


class Schedule(BaseModel, ABC):
    """eta as a function of t: a warm-up, then the course of the schedule, which starts at t = W.

        eta(t) = eta_0 * (t + 1) / W   for t < W;   course(t - W) afterwards

    learning_rate: eta_0. rounds: R, of the run. warmup: W.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float
    rounds: int
    warmup: int

    def rate(self, t: int) -> float:
        """eta after t rounds, t >= 0; greater than 0."""
        assert t >= 0
        if t < self.warmup:
            return self.learning_rate * ((t + 1) / self.warmup)
        return max(self._course(t - self.warmup), RATE_MIN)

    @abstractmethod
    def _course(self, t: int) -> float:
        """eta at t rounds after the warm-up."""


class Constant(Schedule):
    """eta_0 throughout."""

    def _course(self, t: int) -> float:  # noqa: ARG002
        return self.learning_rate


class Inverse(Schedule):
    """eta_0 / (1 + t / P): with P = 1 it is eta_0 / (t + 1), FedAR's and MIFA's for logistic regression.

    P: period.
    Source: MIFA (Gu et al., NeurIPS 2021), docs/methods/training.md#schedules
    """

    period: float

    def _course(self, t: int) -> float:
        return self.learning_rate / (1 + t / self.period)


class Step(Schedule):
    """eta_0 * factor^floor(t / every)."""

    every: int
    factor: float

    def _course(self, t: int) -> float:
        return self.learning_rate * self.factor ** (t // self.every)


class Exponential(Schedule):
    """eta_0 * factor^t."""

    factor: float

    def _course(self, t: int) -> float:
        return self.learning_rate * self.factor**t


class Cosine(Schedule):
    """Half a cosine from eta_0 at the start to `final` at the end of the run:

    final + (eta_0 - final) * (1 + cos(pi * t / (R - W))) / 2
    """

    final: float

    def _course(self, t: int) -> float:
        share = min(1.0, t / max(1, self.rounds - self.warmup))
        return self.final + (self.learning_rate - self.final) * (1 + cos(pi * share)) / 2


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "exponential": Exponential,
    "inverse": Inverse,
    "step": Step,
}


def create(settings: ScheduleSettings, *, learning_rate: float, rounds: int) -> Schedule:
    """The schedule of these settings. learning_rate: eta_0. rounds: of the run. Raises UserError."""
    return part(settings, "training.schedule", SCHEDULES, learning_rate=learning_rate, rounds=rounds)
