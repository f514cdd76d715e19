"""The interface of a compensator: stale updates in, estimates of fresh ones out.

Legend: K updates of the round, in order of arrival; d parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from unstale.compensators.network import LocalSteps, Network
from unstale.part_settings import PartSettings

UNCHANGED = "none"
"""The method of an update that is not compensated, fresh or stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleUpdate:
    """An update of a round, fresh or stale. Tensors are float32, on the learner's device, and read-only."""

    # client_id and task_id identify the update, and are the key of its random numbers
    client_id: int
    task_id: int
    base_version: int
    staleness: int  # rounds; 0 is fresh
    num_examples: int  # n_i
    local_rate: float  # eta_l
    vector_d: Tensor  # g_i, [d], the pseudo-gradient: u_i = eta_l g_i
    # w_b, [d]; None if the base model is no longer kept, and the update cannot be compensated
    kept_base_d: Tensor | None

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the update in the run."""
        return self.client_id, self.task_id

    @property
    def base_d(self) -> Tensor:
        """w_b, which must be kept."""
        assert self.kept_base_d is not None, f"version {self.base_version} is not kept"
        return self.kept_base_d


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRound:
    """The updates of a round before the policy applies them. Tensors are read-only."""

    version: int  # v, of the current model
    model_d: Tensor  # w_v, [d] float32
    buffers_b: Tensor  # float buffers of that version, [b]
    updates: Sequence[StaleUpdate]


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """Distance of an estimate from the update that the client later sent.

    Source: docs/methods/measures.md#compensation-errors
    """

    client_id: int
    method: str  # of the estimate; `none` for the stale update itself
    l1: float  # |estimate - true|_1 over all parameters, in parameter units
    cosine: float  # 1 - cos
    staleness: int  # rounds from the base version of the estimate to that of the true update


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensated:
    """How one update was compensated."""

    method: str = UNCHANGED  # of the estimate; `none` for an unchanged update
    share: float = 0.0  # weight of the estimate in the result, a times trust; the update itself has the rest
    # of its inversion; None without one
    iterations: int | None = None
    disparity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Replacements for the updates of a round."""

    vectors: Mapping[int, Tensor]  # pseudo-gradients [d] float32, by index in the round; other updates are unchanged
    counts_as_fresh: Collection[int]  # indices of those that the policy treats as updates of the current version
    updates: Sequence[Compensated]  # how each update was compensated, in order
    errors: Sequence[MeasuredError] = ()  # measured in this round
    # number of updates that were not compensated as configured, by reason
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    # messages for people, each shown once in a run; without numbers of clients or rounds, so that few differ
    notes: Sequence[str] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)  # about the compensator, as `Step.metrics`


NO_BASE = "no-base"
"""Reason for a fallback: the base model of the update is no longer kept."""

WITHOUT_BASE = "the base versions of some updates are no longer kept; these updates are not compensated"
"""The note for `no-base`."""

Made = dict[str, Any]
"""Results that take long to compute or are not reproducible: nested tensors, numbers, texts, lists and dicts. Stored
with the round."""

FreshUpdate = Callable[[StaleUpdate, StaleRound], Tensor]


class Executor(Protocol):
    """Computes groups of inversions on other machines."""

    def submit(self, group: bytes) -> "Future[bytes]":
        """Start to compute a group: the tensors of `remote_inversion.packed` as safetensors. Returns at once.

        The future has the tensors of `remote_inversion.computed` as safetensors, or fails with WorkerLostError.
        """

    def stop(self) -> None:
        """Cancel all groups, now and later. Any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensatorContext:
    """Parts of the run that a compensator uses."""

    network: Network | None  # the model as a function; None to check settings only
    steps: LocalSteps  # how clients train
    seed: int  # of the run
    device: torch.device  # of the updates
    clock: Callable[[], float] | None = None  # monotonic seconds; None where time is virtual
    # in a simulation, the pseudo-gradient [d] that the client computes from the current model
    fresh_update: FreshUpdate | None = None
    executor: Executor | None = None  # inverts updates on other machines; None to invert them here


S = TypeVar("S", bound=PartSettings)


class Compensator(ABC, Generic[S]):
    """Replaces stale updates before the policy sees them.

    A round has two steps: `make` does the work that takes long or depends on time; `take` does the rest, and changes
    the state. The result of `make` is stored with the round, so that a resumed or replayed run computes the same.
    """

    Settings: ClassVar[type[PartSettings]] = PartSettings
    source: ClassVar[str]  # where the method is defined, if the docstring does not end with `Source: ...`
    memory: ClassVar[str] = "none"  # numbers kept between rounds, for people
    inverts: ClassVar[bool] = False  # it reconstructs data of clients from their updates
    is_recorded: ClassVar[bool] = False  # the result of `make` is stored with the round
    only_simulated: ClassVar[bool] = False  # it needs information that no server has

    def __init__(self, settings: S, context: CompensatorContext) -> None:
        self.settings = settings
        self.context = context

    @property
    def begins_early(self) -> bool:
        """Whether to call `begin`."""
        return False

    def begin(self, update: StaleUpdate) -> None:
        """Start to work on a stale update of an open round. Its tensors stay unchanged until the round is applied."""

    def work(self) -> bool:
        """Do a little of the work that was begun; whether more is to do."""
        return False

    def make(self, stale: StaleRound) -> Made:  # noqa: ARG002  (most compensators compute all in `take`)
        """Do the work of a round that takes long. Writes to no argument."""
        return {}

    @abstractmethod
    def take(self, stale: StaleRound, made: Made) -> Outcome:
        """Compensate a round. made: by `make`, of this process or of an earlier one."""

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state between rounds, without the work that was only begun."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a compensator with the same settings."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")
