"""Partitions of training examples among clients, and statistics of them.

One method per module; the interface is in `interface`, the names in `registry`.
Source: docs/methods/partitions.md#partitions
"""

from unstale.training.partition.histogram import Spread, Summary, block_holders, label_counts, summary, top_holders
from unstale.training.partition.interface import Examples, Indices, Partition, check, split
from unstale.training.partition.own_test_sets import split_test_set
from unstale.training.partition.registry import PARTITIONS, create
from unstale.training.partition.slow_class import slow_clients
from unstale.training.partition.variant import VariantStream

__all__ = [
    "PARTITIONS",
    "Examples",
    "Indices",
    "Partition",
    "Spread",
    "Summary",
    "VariantStream",
    "block_holders",
    "check",
    "create",
    "label_counts",
    "slow_clients",
    "split",
    "split_test_set",
    "summary",
    "top_holders",
]
