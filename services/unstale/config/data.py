"""The data of a run and the examples of each client, made from the configuration."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.settings.learning import DataSettings
from unstale.training import partition as partitions
from unstale.training.datasets import Dataset, Source, part, read, varied, with_validation


def dataset(settings: Settings, *, code: Collection[str] | None = None) -> Dataset:
    """The data set, read where it lies on this machine, or the part of it that is used; with `data.variant`, that and
    the one that takes its place.

    code: names `package.module:factory` that may be imported; None for any.
    """
    share, validation = settings.data.share, settings.data.validation
    first, *second = [part(read(source), share=share) for source in sources(settings.data, code)]
    if not second:
        return first if validation is None else with_validation(first, validation)
    if validation is not None:
        raise UserError(
            f"data.validation is {validation:g} with data.variant, whose test set is that of two data sets; leave out "
            "one of them"
        )
    rate = settings.data.variant.rate
    assert rate is not None, "there is no second one without"
    return varied(first, second[0], rate=rate, normalise=settings.data.normalise)


def sources(data: DataSettings, code: Collection[str] | None = None) -> list[Source]:
    """The source of the data set, and of the one that takes its place where there is one. code: as for `dataset`."""

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


def partition(settings: Settings) -> partitions.Partition:
    """How the training set is shared out."""
    return partitions.create(settings.partition)


def check_partition(settings: Settings, data: Dataset) -> None:
    """Raise UserError when the data set cannot be shared out among the clients, who do that themselves."""
    if settings.evaluate_clients_every is not None and not _has_own_tests(settings, data):
        raise UserError(
            f"evaluate_clients_every is {settings.evaluate_clients_every}, but the test set of data.name "
            f"{settings.data.name!r} does not say whose its examples are, as partition.name "
            f"{settings.partition.name!r} needs; leave it out"
        )
    partitions.check(partition(settings), data.train.labels_N.numpy(), settings.clients, _numbers(data.train.groups_N))
    if data.later is not None:
        changes(settings, data, client_partitions(settings, data))


def client_partitions(settings: Settings, data: Dataset) -> list[partitions.Indices]:
    """The training examples of each client.

    They are a function of the data set, the partition's settings, the number of clients and the seed alone, so that
    processes agree on them without a word.
    """
    return partitions.split(
        partition(settings),
        data.train.labels_N.numpy(),
        settings.clients,
        stream(settings.seed, Stream.PARTITION),
        _numbers(data.train.groups_N),
    )


def changes(
    settings: Settings, data: Dataset, client_indices: Sequence[partitions.Indices]
) -> partitions.VariantStream | None:
    """Which examples each client holds at each version; None where they stay. client_partitions: of
    `client_partitions`.
    """
    if data.later is None:
        return None
    return partitions.VariantStream(
        client_indices,
        data.train.labels_N.numpy(),
        data.later.labels_L.numpy(),
        rate=data.later.rate,
        seed=settings.seed,
    )


def client_test_partitions(
    settings: Settings, data: Dataset, client_indices: Sequence[partitions.Indices]
) -> list[partitions.Indices] | None:
    """The test examples of each client; None where they belong to groups that the test set does not know."""
    if not _has_own_tests(settings, data):
        return None
    return partitions.split_test_set(
        partition(settings),
        client_indices,
        partitions.Examples(data.train.labels_N.numpy(), _numbers(data.train.groups_N)),
        partitions.Examples(data.test.labels_N.numpy(), _numbers(data.test.groups_N)),
        stream(settings.seed, Stream.OWN_TEST_SETS),
    )


def _has_own_tests(settings: Settings, data: Dataset) -> bool:
    return data.test.groups_N is not None or not partition(settings).by_group


def _numbers(groups_N: Tensor | None) -> partitions.Indices | None:
    return None if groups_N is None else groups_N.numpy()
