"""The data set of a run and its division among the clients, made from the configuration."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.settings.learning import DataSettings
from unstale.training.datasets import Data, Dataset, Source, labelled, part, read, varied, with_validation
from unstale.training.datasets.data import Part
from unstale.training.partition import Examples, Indices, Partition, VariantStream, check, create, split, split_test_set


def read_dataset(chosen: DataSettings, *, code: Collection[str] | None = None) -> Data:
    """Read the data set from this machine, or the share of it that is used; with `data.variant`, both data sets.

    code: names `package.module:factory` that may be imported; None for any.
    """
    made, *others = [read(source) for source in sources(chosen, code)]
    if chosen.share == 1 and chosen.validation is None and not others:
        return made
    first, *second = [part(labelled(data), share=chosen.share) for data in (made, *others)]
    if not second:
        return first if chosen.validation is None else with_validation(first, chosen.validation)
    if chosen.validation is not None:
        raise UserError(
            f"data.validation is {chosen.validation:g} with data.variant, whose test set is that of two data sets; "
            "leave out one of them"
        )
    assert chosen.variant.rate is not None, "`sources` refuses a variant without a rate"
    return varied(first, second[0], rate=chosen.variant.rate, normalise=chosen.normalise)


def sources(data: DataSettings, code: Collection[str] | None = None) -> list[Source]:
    """The source of the data set, and of its variant if there is one. code: as for `read_dataset`."""

    def source(name: str, path: str | None, **others: Any) -> Source:
        return Source(
            name=name,
            path=None if path is None else Path(path),
            cache=data.cache,
            download=data.download,
            normalise=data.normalise,
            allow_factory=code is None or name in code,
            **others,
        )

    first, variant = source(data.name, data.path, column=data.column), data.variant
    missing = {
        "name": "the data set whose examples take the place of those of data.name",
        "rate": "how many of a client's examples give way at each version, such as 0.25",
    }
    given = [key for key, value in variant if value is not None]
    if not given:
        return [first]
    for key, meaning in missing.items():
        if key not in given:
            raise UserError(
                f"data.variant.{given[0]} is {getattr(variant, given[0])!r}, but data.variant.{key} is not given; add "
                f"it: {meaning}"
            )
    assert variant.name is not None, "it is given"
    return [first, source(variant.name, variant.path, section="data.variant")]


@dataclass(frozen=True, kw_only=True)
class ClientData:
    """Divides a data set among the clients of a run.

    The result is a function of the data set, the partition, the number of clients and the seed alone, so that all
    processes of a run agree on it without a message.
    """

    data: Data
    partition: Partition
    clients: int
    seed: int
    private: bool = False  # a client's examples are in the order of the data, and a single client has all of them

    @classmethod
    def of(cls, settings: Settings, data: Data) -> Self:
        """The division that the settings describe."""
        return cls(
            data=data,
            partition=create(settings.partition),
            clients=settings.clients,
            seed=settings.seed,
            private=settings.data.private,
        )

    @property
    def has_own_tests(self) -> bool:
        """Whether each client has test examples of its own: not if they belong to groups unknown to the test set."""
        if not self.data.has("test"):
            return False
        return self._is_whole or self.data.groups("test") is not None or not self.partition.by_group

    @property
    def _is_whole(self) -> bool:
        """Whether nothing is divided."""
        return self.data.in_order or (self.private and self.clients == 1)

    def check(self) -> None:
        """Raise UserError if the data set cannot be divided."""
        if self._is_whole:
            self.train()
            return
        examples = self._examples("train")
        check(self.partition, examples.labels_n, self.clients, examples.groups_n)
        self.changes(self.train())

    def train(self) -> list[Indices]:
        """Indices of the training examples of each client."""
        return list(self._train)

    @cached_property
    def _train(self) -> Sequence[Indices]:
        if self._is_whole:
            return [self._all("train")]
        examples = self._examples("train")
        rng = stream(self.seed, Stream.PARTITION)
        return self._ordered(split(self.partition, examples.labels_n, self.clients, rng, examples.groups_n))

    def test(self, train: Sequence[Indices]) -> list[Indices] | None:
        """Indices of the test examples of each client; None without `has_own_tests`. train: of `train`."""
        if not self.has_own_tests:
            return None
        if self._is_whole:
            return [self._all("test")]
        rng = stream(self.seed, Stream.OWN_TEST_SETS)
        return self._ordered(
            split_test_set(self.partition, train, self._examples("train"), self._examples("test"), rng)
        )

    def _ordered(self, partitions: list[Indices]) -> list[Indices]:
        return [np.sort(indices) for indices in partitions] if self.private else partitions

    def changes(self, train: Sequence[Indices]) -> VariantStream | None:
        """The examples of each client at each version; None for data that does not change. train: of `train`."""
        if not isinstance(self.data, Dataset) or self.data.later is None:
            return None
        labels = self.data.labels("train"), self.data.later.labels_L.numpy()
        return VariantStream(train, *labels, rate=self.data.later.rate, seed=self.seed)

    def _examples(self, part: Part) -> Examples:
        return Examples(self.data.labels(part), self.data.groups(part))

    def _all(self, part: Part) -> Indices:
        """All examples of a part, for the only client."""
        if self.clients > 1:
            raise UserError(
                f"data set {self.data.name!r} is iterable, so that one client has all of it, but there are "
                f"{self.clients} clients; expected a data set with __getitem__ and __len__, or clients 1"
            )
        return np.arange(len(self.data.labels(part)))
