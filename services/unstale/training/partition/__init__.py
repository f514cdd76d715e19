"""Partitions of training examples among clients, by name, and statistics of them.

Source: docs/methods/partitions.md#partitions
"""

from unstale.plugins import Registry
from unstale.settings.learning import PartitionSettings
from unstale.training.partition.classes import Blocks, Classes, LabelCount, NaturalSynthetic
from unstale.training.partition.dirichlet import Dirichlet, DirichletClient, Iid, SlowClass, slow_clients
from unstale.training.partition.groups import Column, Natural
from unstale.training.partition.interface import (
    Examples,
    Indices,
    Partition,
    Spread,
    Summary,
    check,
    label_counts,
    split,
    split_test_set,
    summary,
)
from unstale.training.partition.variant import VariantStream

__all__ = [
    "PARTITIONS",
    "REGISTRY",
    "Examples",
    "Indices",
    "Partition",
    "Spread",
    "Summary",
    "VariantStream",
    "check",
    "create",
    "label_counts",
    "slow_clients",
    "split",
    "split_test_set",
    "summary",
]

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

REGISTRY = Registry(kind="partition", base=Partition, where="unstale.training.partition", built_in=PARTITIONS)


def create(settings: PartitionSettings) -> Partition:
    """The partition of these settings. Raises UserError."""
    return REGISTRY.make(settings)
