"""Takes the place of flwr-datasets, which loads CIFAR-10 from the Hugging Face hub: local images, or generated ones."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image

from flwr_datasets.partitioner import IidPartitioner

EXAMPLES = 800


def _read() -> tuple[Any, Any]:
    """Images [n, 32, 32, 3] uint8 and labels [n]: of CIFAR10_NPZ, or noise whose colour depends on the label."""
    if file := os.environ.get("CIFAR10_NPZ"):
        with np.load(file) as arrays:
            step = len(arrays["y_train"]) // EXAMPLES  # the file may be sorted by label
            return arrays["x_train"][::step][:EXAMPLES], arrays["y_train"][::step][:EXAMPLES]
    draw = np.random.default_rng(0)
    labels = draw.integers(10, size=EXAMPLES)
    noise = draw.integers(100, size=(EXAMPLES, 32, 32, 3))
    colours = draw.integers(155, size=(10, 1, 1, 3))
    return (noise + colours[labels]).astype(np.uint8), labels


class FederatedDataset:
    def __init__(self, *, dataset: str, partitioners: Mapping[str, IidPartitioner]) -> None:
        self.images, self.labels = _read()
        self.partitions = partitioners["train"].num_partitions

    def load_partition(self, partition_id: int) -> "Dataset":
        if delays := os.environ.get("PARTITION_DELAYS_S"):  # of a machine that is slow to read its data
            time.sleep(float(delays.split(",")[partition_id]))
        own = slice(partition_id, None, self.partitions)
        return Dataset(self.images[own], self.labels[own])


class Dataset:
    def __init__(self, images: Any, labels: Any, transform: Callable[[Any], Any] | None = None) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def train_test_split(self, *, test_size: float, seed: int) -> "Split":
        order = np.random.default_rng(seed).permutation(len(self.labels))
        first = round(len(order) * test_size)
        parts = {"test": order[:first], "train": order[first:]}
        return Split({name: Dataset(self.images[part], self.labels[part]) for name, part in parts.items()})

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        batch = {"img": [Image.fromarray(self.images[index])], "label": [int(self.labels[index])]}
        assert self.transform is not None
        return {name: values[0] for name, values in self.transform(batch).items()}


class Split(dict[str, Dataset]):
    def with_transform(self, transform: Callable[[Any], Any]) -> "Split":
        return Split({name: Dataset(part.images, part.labels, transform) for name, part in self.items()})
