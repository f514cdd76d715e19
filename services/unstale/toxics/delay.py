"""Distributions of delays in seconds. A number is a constant delay."""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from math import exp
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from unstale.seeds import Generator
from unstale.settings.values import Section
from unstale.toxics import trace

Duration = Annotated[float, Field(ge=0, le=1e9)]
"""Seconds, at most thirty years, so that no sum is infinite."""


class Distribution(Section):
    """A distribution of seconds >= 0."""

    @abstractmethod
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        """Draw seconds for a message or task. at_s, number: its time and number."""


class Constant(Distribution):
    """The same value for each message."""

    distribution: Literal["constant"] = "constant"
    value_s: Duration

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return self.value_s


class Uniform(Distribution):
    """U(low_s, high_s)."""

    distribution: Literal["uniform"] = "uniform"
    low_s: Duration = 0.0
    high_s: Duration

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.low_s > self.high_s:
            raise ValueError(f"low_s is {self.low_s:g}, expected at most high_s, which is {self.high_s:g}")
        return self

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return float(rng.uniform(self.low_s, self.high_s))


class Normal(Distribution):
    """max(0, N(mean_s, deviation_s^2))."""

    distribution: Literal["normal"] = "normal"
    mean_s: Duration
    deviation_s: Duration

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return max(0.0, float(rng.normal(self.mean_s, self.deviation_s)))


class Lognormal(Distribution):
    """median_s * exp(sigma z), z ~ N(0, 1)."""

    distribution: Literal["lognormal"] = "lognormal"
    median_s: Duration
    sigma: float = Field(ge=0, le=10)

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return self.median_s * exp(self.sigma * float(rng.standard_normal()))


class Exponential(Distribution):
    """Exp(mean_s)."""

    distribution: Literal["exponential"] = "exponential"
    mean_s: Duration

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return float(rng.exponential(self.mean_s))


class Pareto(Distribution):
    """P(X > x) = (least_s / x)^shape for x >= least_s; finite mean for shape > 1."""

    distribution: Literal["pareto"] = "pareto"
    least_s: Duration
    shape: float = Field(ge=0.1)

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        return self.least_s * (1 + float(rng.pareto(self.shape)))


class Trace(Distribution):
    """Recorded delays: by time (file or steps_s), or by number (values_s).

    file: absolute path of a CSV `time_s,delay_s`, read once into steps_s. The delay at a time is that of the last row
    that is not later. The last row lasts as long as the one before it, then the trace repeats.
    values_s: message or task n takes values_s[n mod length].
    """

    distribution: Literal["trace"] = "trace"
    file: Path | None = None
    steps_s: tuple[trace.Step, ...] | None = None
    values_s: tuple[Duration, ...] | None = Field(None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _read_file(cls, data: Any) -> Any:
        return trace.with_content(data, "file", "steps_s", trace.read_delays)

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.steps_s is None) == (self.values_s is None):
            raise ValueError("a trace has a file or values_s, expected exactly one of them")
        if self.steps_s is not None:
            trace.check_delays(self.steps_s, "steps_s, row", first=1)
        return self

    @override
    def draw(self, rng: Generator, at_s: float, number: int = 0) -> float:
        if self.values_s is not None:
            return self.values_s[number % len(self.values_s)]
        assert self.steps_s is not None
        (before_s, _), (last_s, _) = self.steps_s[-2:]
        period_s = last_s + (last_s - before_s)
        row = bisect_right(self.steps_s, at_s % period_s, key=lambda step: step[0])
        return self.steps_s[row - 1][1]


_AnyDistribution = Constant | Uniform | Normal | Lognormal | Exponential | Pareto | Trace
DISTRIBUTIONS: Mapping[str, type[Distribution]] = {
    kind.model_fields["distribution"].default: kind for kind in get_args(_AnyDistribution)
}


def _number_as_constant(data: Any) -> Any:
    if isinstance(data, int | float) and not isinstance(data, bool):
        return {"distribution": "constant", "value_s": data}
    if not isinstance(data, Mapping | Distribution):
        raise PydanticCustomError("expected", "seconds, or a mapping with a distribution")
    return data


Delay = Annotated[
    Annotated[_AnyDistribution, Field(discriminator="distribution")], BeforeValidator(_number_as_constant)
]
"""Type of a setting: `delay: 0.3`, or `delay: {distribution: exponential, mean_s: 0.3}`."""
