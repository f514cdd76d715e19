"""Partitions by name."""

from unstale.settings.learning import PartitionSettings
from unstale.settings.part import part
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


def create(settings: PartitionSettings) -> Partition:
    """The partition of these settings. Raises UserError."""
    return part(settings, "partition", PARTITIONS)
