"""The metric that a run shows first, and the value of a metric that ends it."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass

from unstale.config.settings import Settings
from unstale.settings.values import TARGET
from unstale.training.measured import MainMetric

ACCURACY = MainMetric("accuracy", higher_is_better=True)
_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Target:
    """A value of a metric that ends the run."""

    name: str
    sign: str  # of `_SIGNS`
    value: float

    def is_reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether these metrics reach the value; not without this metric, or where it is not a number."""
        return self.name in metrics and bool(_SIGNS[self.sign](metrics[self.name], self.value))


def target(settings: Settings) -> Target | None:
    """The value of `run.until`, None for no such end."""
    if settings.run.until is None:
        return None
    found = TARGET.fullmatch(settings.run.until)
    assert found is not None, "the settings are checked"
    return Target(found[1], found[2], float(found[3]))


def main_metric(settings: Settings) -> MainMetric:
    """The metric that a run shows first: that of `run.until`, else the accuracy of the classification."""
    until = target(settings)
    return ACCURACY if until is None else MainMetric(until.name, higher_is_better=until.sign.startswith(">"))
