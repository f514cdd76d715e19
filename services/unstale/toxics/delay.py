"""Distributions of seconds, chosen by `distribution` in a scenario. A bare number stands for a constant.

A draw takes the generator of one message or task, so that it is the same whatever else is drawn.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from math import erf, exp, pi, sqrt
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import override

from unstale.seeds import Generator
from unstale.toxics import trace

Duration = Annotated[float, Field(ge=0, le=1e9)]  # thirty years, so that no time becomes infinite
"""Seconds, finite (the models say so) and not negative."""


class Distribution(BaseModel, ABC):
    """Seconds, >= 0."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @abstractmethod
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        """Seconds. at_s: time of the scenario, and number: of the message or task, for those that depend on them."""

    @property
    @abstractmethod
    def expected_s(self) -> float | None:
        """The mean of what is drawn; None where there is none."""


class Constant(Distribution):
    """Always the same."""

    distribution: Literal["constant"] = "constant"
    value_s: Duration

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return self.value_s

    @property
    @override
    def expected_s(self) -> float:
        return self.value_s


class Uniform(Distribution):
    """U(low_s, high_s)."""

    distribution: Literal["uniform"] = "uniform"
    low_s: Duration = 0.0
    high_s: Duration

    @model_validator(mode="after")
    def _low_is_not_above_high(self) -> Self:
        if self.low_s > self.high_s:
            raise trace.mistake(f"low_s is {self.low_s:g}, expected at most high_s, which is {self.high_s:g}")
        return self

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return float(rng.uniform(self.low_s, self.high_s))

    @property
    @override
    def expected_s(self) -> float:
        return (self.low_s + self.high_s) / 2


class Normal(Distribution):
    """max(0, N(mean_s, deviation_s^2)): draws below 0 count as 0."""

    distribution: Literal["normal"] = "normal"
    mean_s: Duration
    deviation_s: Duration

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return max(0.0, float(rng.normal(self.mean_s, self.deviation_s)))

    @property
    @override
    def expected_s(self) -> float:
        """m Phi(m/s) + s phi(m/s), m = mean_s, s = deviation_s: what counts as 0 makes it longer than m."""
        if self.deviation_s == 0:
            return self.mean_s
        z = self.mean_s / self.deviation_s
        density = exp(-z * z / 2) / sqrt(2 * pi)
        return self.mean_s * (1 + erf(z / sqrt(2))) / 2 + self.deviation_s * density


class Lognormal(Distribution):
    """median_s * exp(sigma z), z ~ N(0, 1)."""

    distribution: Literal["lognormal"] = "lognormal"
    median_s: Duration
    sigma: float = Field(ge=0, le=10)

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return self.median_s * exp(self.sigma * float(rng.standard_normal()))

    @property
    @override
    def expected_s(self) -> float:
        return self.median_s * exp(self.sigma**2 / 2)


class Exponential(Distribution):
    """Exp(mean_s)."""

    distribution: Literal["exponential"] = "exponential"
    mean_s: Duration

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return float(rng.exponential(self.mean_s))

    @property
    @override
    def expected_s(self) -> float:
        return self.mean_s


class Pareto(Distribution):
    """P(X > x) = (least_s / x)^shape for x >= least_s: few take very long. It has a mean for shape > 1 only."""

    distribution: Literal["pareto"] = "pareto"
    least_s: Duration
    shape: float = Field(ge=0.1)

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return self.least_s * (1 + float(rng.pareto(self.shape)))

    @property
    @override
    def expected_s(self) -> float | None:
        return self.shape * self.least_s / (self.shape - 1) if self.shape > 1 else None


class Trace(Distribution):
    """What was recorded: by time (a file, or steps_s), or in turn (values_s).

    file: CSV `time_s,delay_s`, an absolute path; it is read once and kept as steps_s. The delay at a time is that of
    the last row whose time is not later. After the last row, which lasts as long as the one before it, it starts again.
    values_s: message or task number n takes values_s[n mod their number].
    """

    distribution: Literal["trace"] = "trace"
    file: Path | None = None
    steps_s: tuple[trace.Step, ...] | None = None
    values_s: tuple[Duration, ...] | None = Field(None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _read_the_file(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("file") is None:
            return given
        if given.get("steps_s") is not None:
            raise trace.mistake("file and steps_s are both given, expected one of them")
        return {**given, "file": None, "steps_s": trace.read_delays(Path(str(given["file"])))}

    @model_validator(mode="after")
    def _is_one_trace(self) -> Self:
        if (self.steps_s is None) == (self.values_s is None):
            raise trace.mistake("a trace has a file or values_s, expected exactly one of them")
        if self.steps_s is not None:
            trace.check_delays(self.steps_s, "steps_s, row", first=1)
        return self

    @property
    def period_s(self) -> float:
        """After how long steps_s start again."""
        assert self.steps_s is not None
        (before_s, _), (last_s, _) = self.steps_s[-2:]
        return last_s + (last_s - before_s)

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        if self.values_s is not None:
            return self.values_s[number % len(self.values_s)]
        assert self.steps_s is not None
        row = bisect_right(self.steps_s, at_s % self.period_s, key=lambda step: step[0])
        return self.steps_s[row - 1][1]

    @property
    @override
    def expected_s(self) -> float:
        if self.values_s is not None:
            return sum(self.values_s) / len(self.values_s)
        assert self.steps_s is not None
        ends_s = [time_s for time_s, _ in self.steps_s[1:]] + [self.period_s]
        steps = zip(self.steps_s, ends_s, strict=True)
        return sum((end_s - time_s) * delay_s for (time_s, delay_s), end_s in steps) / self.period_s


DISTRIBUTIONS: Mapping[str, type[Distribution]] = {
    "constant": Constant,
    "uniform": Uniform,
    "normal": Normal,
    "lognormal": Lognormal,
    "exponential": Exponential,
    "pareto": Pareto,
    "trace": Trace,
}


def _constant(given: Any) -> Any:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return {"distribution": "constant", "value_s": given}
    if not isinstance(given, Mapping | Distribution):
        raise trace.expected("seconds, or a mapping with a distribution")
    return given


Delay = Annotated[
    Annotated[
        Constant | Uniform | Normal | Lognormal | Exponential | Pareto | Trace,
        Field(discriminator="distribution"),
    ],
    BeforeValidator(_constant),
]
"""The type of a setting: `delay: 0.3`, or `delay: {distribution: exponential, mean_s: 0.3}`."""
