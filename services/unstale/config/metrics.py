"""The metric that a run shows first."""

from unstale.config.settings import Settings
from unstale.settings.learning import ObjectiveSettings
from unstale.training.measured import MainMetric

ACCURACY = MainMetric("accuracy", higher_is_better=True)
LOSS = MainMetric("loss", higher_is_better=False)


def main_metric(settings: Settings) -> MainMetric:
    """The metric that a run shows first, and which of its values is better: that of the objective.

    It is the loss for an objective of code, which is not imported: a recorded run may name any.
    """
    if settings.objective.name == ObjectiveSettings().name:
        return ACCURACY
    from unstale.training.objectives import OBJECTIVES  # imports torch

    objective = OBJECTIVES.get(settings.objective.name)
    return LOSS if objective is None else objective.main
