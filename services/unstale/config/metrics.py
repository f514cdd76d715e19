"""The metric that a run shows first, and the value of a metric that ends it."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass

from unstale.config.settings import Settings
from unstale.settings.learning import ObjectiveSettings
from unstale.settings.values import TARGET
from unstale.training.measured import MainMetric

ACCURACY = MainMetric("accuracy", higher_is_better=True)
LOSS = MainMetric("loss", higher_is_better=False)
_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Target:
    """A value of a metric that ends the run."""

    name: str
    sign: str  # of `_SIGNS`
    value: float

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.value:g}"

    def is_reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether these metrics reach the value; not without this metric, or where it is not a number."""
        return self.name in metrics and bool(_SIGNS[self.sign](metrics[self.name], self.value))


def target(settings: Settings) -> Target | None:
    """The value of `run.until`, None for no such end."""
    if settings.run.until is None:
        return None
    match = TARGET.fullmatch(settings.run.until)
    assert match is not None, "the settings are checked"
    return Target(match[1], match[2], float(match[3]))


def main_metric(settings: Settings, imported: MainMetric | None = None) -> MainMetric:
    """The metric that a run shows first, and which of its values is better: of `run.until`, else of app or objective.

    It is the loss for code that is not imported: a recorded run may name any. imported: `Workspace.main`.
    """
    until = target(settings)
    if until is not None:
        return MainMetric(until.name, higher_is_better=until.sign.startswith(">"))
    if settings.is_app or imported is not None:
        return imported or LOSS
    if settings.objective.name == ObjectiveSettings().name:
        return ACCURACY
    from unstale.training.objectives import OBJECTIVES  # imports torch

    objective = OBJECTIVES.get(settings.objective.name)
    return LOSS if objective is None else objective.main
