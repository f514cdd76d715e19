"""Parts as a user writes them, one of each kind. Each computes the same as a built-in one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from unstale.compensators import Compensated, Compensator, Outcome
from unstale.coordinator.selectors import Selector
from unstale.coordinator.triggers import Trigger
from unstale.policies.fedavg import FedAvg
from unstale.seeds import Generator
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic
from unstale.training.datasets import Dataset, load
from unstale.training.local import LocalTraining
from unstale.training.objectives import Classification
from unstale.training.partition import Examples, Indices, Partition
from unstale.training.trainings import Sgd


class MyPolicy(FedAvg):
    """As `fedavg`."""


class MyCompensator(Compensator[Any]):
    """As `none`."""

    source = "this test"

    def take(self, stale: Any, made: Any) -> Outcome:
        return Outcome(vectors={}, counts_as_fresh=(), updates=[Compensated() for _ in stale.updates])


class MyToxic(Toxic):
    """Leaves messages as they are."""

    type = "mine"

    def apply(self, in_flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return (in_flight,)


@dataclass(frozen=True, kw_only=True)
class MyTrigger(Trigger):
    """As `k-async`."""

    k: int

    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        if pending >= self.k:
            return self.k
        return pending if pending > 0 and outstanding == 0 else None


@dataclass(frozen=True, kw_only=True)
class MySelector(Selector):
    """As `all`."""

    def choose(self, candidates: Sequence[int], *, busy: int, seed: int, key: tuple[int, ...]) -> Sequence[int]:
        return candidates


class MyPartition(Partition):
    """As `iid`: example i, after a shuffle, belongs to client i * N // n."""

    def check(self, examples: Examples, clients: int) -> None:
        pass

    def partitions(self, examples: Examples, clients: int, rng: Generator) -> list[Indices]:
        return np.array_split(rng.permutation(len(examples)), clients)


class MyTraining(Sgd):
    """As `sgd`."""

    name = "mine"


class MyObjective(Classification):
    """As `classification`."""


EVERYTHING: Mapping[str, type] = {
    "compensator": MyCompensator,
    "objective": MyObjective,
    "partition": MyPartition,
    "policy": MyPolicy,
    "selector": MySelector,
    "toxic": MyToxic,
    "training": MyTraining,
    "trigger": MyTrigger,
}


@dataclass(frozen=True, kw_only=True)
class WithSettings(MyTrigger):
    """`MyTrigger` with settings of its own."""

    level: Annotated[float, Field(gt=0, le=1)]
    words: tuple[str, ...] = ()
    other: torch.Tensor | None = None  # a type that no setting has

    def __post_init__(self) -> None:
        if len(self.words) == 3:
            raise ValueError("three words")


class ScaledPartition(MyPartition):
    share: int = Field(1, ge=1)
    min_examples: int  # a key of the section


class ClippedTraining(MyTraining):
    clip: float
    style: Literal["norm", "value"] = "norm"


@dataclass(frozen=True, kw_only=True)
class EvenSelector(MySelector):
    even: bool = False


pairs = MyTrigger(k=2)
even = MyPartition()


def pair_trigger() -> MyTrigger:
    return MyTrigger(k=2)


def as_many(k: int) -> MyTrigger:
    return MyTrigger(k=k)


linear: Callable[..., nn.Module] = lambda input_shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, classes))  # noqa: E731


def plugged_digits() -> Dataset:
    return load("digits")


SLOW = {"description": "One client is slow.", "groups": [{"name": "slow", "clients": [1], "device": {"step_s": 9.0}}]}


# --- what is no part ---


class NotAPart:
    pass


class NoTake(Trigger):
    pass


class NoKind(LocalTraining):
    """A `LocalTraining` without the attributes that it needs."""

    def batches(self, examples: Any, rng: Generator) -> list[Tensor]:
        return []

    def batches_in_order(self, examples: int, number: int) -> list[Tensor]:
        return []

    def compute(self, model: Any, examples: Any, objective: Any, task: Any) -> Any:
        return torch.zeros(0)


class NoDataclass(Trigger):
    k: int

    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return None


class NeedsShare(MyTrigger):
    def __init__(self, share: float) -> None:
        self.share = share


class Fails(MyTrigger):
    def __init__(self) -> None:
        raise ValueError("no luck")


class Counted(MyPartition):
    count: int = Field(ge=1)


def invalid() -> Counted:
    return Counted(count=0)


def nothing() -> None:
    return None


NUMBER = 3
