"""Parts of a run by name and keys, with the defaults of the configuration."""

from functools import partial
from math import inf
from typing import Any

from unstale.settings.learning import PartitionSettings, ScheduleSettings, TrainingSettings
from unstale.training import registry
from unstale.training.local import LocalTraining
from unstale.training.partition import Partition
from unstale.training.partition import create as create_partition
from unstale.training.schedule import Schedule
from unstale.training.schedule import create as create_schedule


def partition_of(name: str, **values: Any) -> Partition:
    """alpha may be infinite here, unlike in a configuration: it is the limit of equal parts."""
    is_infinite = values.get("alpha") == inf
    made = create_partition(PartitionSettings(name=name, **values | ({"alpha": 1e6} if is_infinite else {})))
    return made.model_copy(update={"alpha": inf}) if is_infinite else made


def training_of(name: str, **values: Any) -> LocalTraining:
    return registry.create(TrainingSettings(name=name, **values))


gradient, sgd, fedprox, moon, scaffold = (
    partial(training_of, name) for name in ("gradient", "sgd", "fedprox", "moon", "scaffold")
)


def schedule_of(name: str, *, learning_rate: float, rounds: int, **values: Any) -> Schedule:
    return create_schedule(ScheduleSettings(name=name, **values), learning_rate=learning_rate, rounds=rounds)
