"""The metric that a run shows first."""

from unstale.config.settings import Settings
from unstale.training.measured import MainMetric

ACCURACY = MainMetric("accuracy", higher_is_better=True)
LOSS = MainMetric("loss", higher_is_better=False)


def main_metric(settings: Settings) -> MainMetric:
    """The metric that a run shows first, and which of its values is better."""
    if settings.is_app:
        from unstale.config.app import load_app  # imports torch

        app = load_app(settings)
        return LOSS if app is None else app.main
    return ACCURACY
