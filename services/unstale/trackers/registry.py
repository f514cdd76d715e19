"""Trackers by name."""

from collections.abc import Mapping
from typing import Any

from unstale.plugins import Registry
from unstale.settings.trackers import TrackerSettings
from unstale.trackers.mlflow import MlflowTracker
from unstale.trackers.tensorboard import TensorBoardTracker
from unstale.trackers.tracker import Tracker
from unstale.trackers.wandb import WandbTracker

TRACKERS: dict[str, type[Tracker]] = {"mlflow": MlflowTracker, "tensorboard": TensorBoardTracker, "wandb": WandbTracker}
REGISTRY = Registry(kind="tracker", base=Tracker, where="unstale.trackers", built_in=TRACKERS)


def tracker(chosen: Mapping[str, Any]) -> Tracker:
    """The tracker that an item of the key `trackers` chooses. Raises UserError."""
    return REGISTRY.make(TrackerSettings(**chosen))
