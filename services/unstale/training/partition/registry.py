"""Partitions by name."""

from typing import Any

from unstale.errors import UserError
from unstale.training.build import build
from unstale.training.partition.blocks import Blocks
from unstale.training.partition.classes import Classes
from unstale.training.partition.column import Column
from unstale.training.partition.dirichlet import Dirichlet
from unstale.training.partition.dirichlet_client import DirichletClient
from unstale.training.partition.iid import Iid
from unstale.training.partition.interface import Partition
from unstale.training.partition.label_count import LabelCount, NaturalSynthetic
from unstale.training.partition.natural import Natural
from unstale.training.partition.slow_class import SlowClass

PARTITIONS: dict[str, type[Partition]] = {
    "blocks": Blocks,
    "classes": Classes,
    "column": Column,
    "dirichlet": Dirichlet,
    "dirichlet-client": DirichletClient,
    "iid": Iid,
    "label-count": LabelCount,
    "natural": Natural,
    "natural-synthetic": NaturalSynthetic,
    "slow-class": SlowClass,
}

_KEYS = {key for partition in PARTITIONS.values() for key in partition.model_fields}


def create(name: str, **settings: Any) -> Partition:
    """The partition called `name`. settings: its own, None for one that was not given.

    Raises UserError for an unknown name, a setting that it does not take, and a value out of bounds.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    if name in PARTITIONS:
        for key in given:
            if key in _KEYS and key not in PARTITIONS[name].model_fields:
                raise UserError(
                    f"partition {name!r} takes no partition.{key}, got {given[key]}; leave it out"
                )
    return build("partition", PARTITIONS, name, given)
