"""The metric that a recorded run shows first. Readers of the record do not import the user's code, which names it."""

import json

from unstale.config import metrics
from unstale.config.settings import Settings
from unstale.journal.database import Database
from unstale.training.measured import MainMetric

MAIN_METRIC = "main_metric"  # a fact: JSON of name and direction


def record(database: Database, settings: Settings, main: MainMetric) -> None:
    """Store the main metric of a run, where its settings alone do not give it."""
    if main != main_metric(database, settings):
        database.set_meta({MAIN_METRIC: json.dumps([main.name, main.higher_is_better])})


def main_metric(database: Database, settings: Settings) -> MainMetric:
    """The main metric of a recorded run."""
    stored = database.meta(MAIN_METRIC)
    return metrics.main_metric(settings) if stored is None else MainMetric(*json.loads(stored))
