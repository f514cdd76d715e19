"""The metric that a run shows first."""

from unstale.config.settings import Settings
from unstale.training.measured import MainMetric

ACCURACY = MainMetric("accuracy", higher_is_better=True)


def main_metric(settings: Settings) -> MainMetric:  # noqa: ARG001  (every objective is a classification)
    """The metric that a run shows first, and which of its values is better."""
    return ACCURACY
