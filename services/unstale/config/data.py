"""The data set of a run and its division among the clients, made from the configuration."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.settings.learning import DataSettings
from unstale.training.datasets import Dataset, Source, Split, part, read, varied, with_validation
from unstale.training.partition import Examples, Indices, Partition, VariantStream, check, create, split, split_test_set


def read_dataset(chosen: DataSettings, *, code: Collection[str] | None = None) -> Dataset:
    """Read the data set from this machine, or the share of it that is used; with `data.variant`, both data sets.

    code: names `package.module:factory` that may be imported; None for any.
    """
    first, *second = [part(read(source), share=chosen.share) for source in sources(chosen, code)]
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

    dataset: Dataset
    partition: Partition
    clients: int
    seed: int

    @classmethod
    def of(cls, settings: Settings, data: Dataset) -> Self:
        """The division that the settings describe."""
        return cls(dataset=data, partition=create(settings.partition), clients=settings.clients, seed=settings.seed)

    @property
    def has_own_tests(self) -> bool:
        """Whether each client has test examples of its own: not if they belong to groups unknown to the test set."""
        return self.dataset.test.groups_N is not None or not self.partition.by_group

    def check(self) -> None:
        """Raise UserError if the data set cannot be divided."""
        examples = _examples(self.dataset.train)
        check(self.partition, examples.labels_n, self.clients, examples.groups_n)
        if self.dataset.later is not None:
            self.changes(self.train())

    def train(self) -> list[Indices]:
        """Indices of the training examples of each client."""
        return list(self._shares)

    @cached_property
    def _shares(self) -> Sequence[Indices]:
        examples = _examples(self.dataset.train)
        rng = stream(self.seed, Stream.PARTITION)
        return split(self.partition, examples.labels_n, self.clients, rng, examples.groups_n)

    def test(self, train: Sequence[Indices]) -> list[Indices] | None:
        """Indices of the test examples of each client; None without `has_own_tests`. train: of `train`."""
        if not self.has_own_tests:
            return None
        rng = stream(self.seed, Stream.OWN_TEST_SETS)
        examples = _examples(self.dataset.train), _examples(self.dataset.test)
        return split_test_set(self.partition, train, *examples, rng)

    def changes(self, train: Sequence[Indices]) -> VariantStream | None:
        """The examples of each client at each version; None for data that does not change. train: of `train`."""
        later = self.dataset.later
        if later is None:
            return None
        labels = self.dataset.train.labels_N.numpy(), later.labels_L.numpy()
        return VariantStream(train, *labels, rate=later.rate, seed=self.seed)


def _examples(split: Split) -> Examples:
    return Examples(split.labels_N.numpy(), None if split.groups_N is None else split.groups_N.numpy())
