"""The interface of a compensator: stale updates in, estimates of fresh ones out.

Legend: K updates of the round, in order of arrival; d parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from unstale.compensators.executor import Executor
from unstale.compensators.local_update import LocalSteps
from unstale.compensators.network import Network
from unstale.part_settings import PartSettings

UNCHANGED = "none"
"""The method of an update that stays as it came, fresh or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleUpdate:
    """One update, as it came. Its tensors are float32, on the learner's device, and not written to.

    task_id: with the client id it names the update, and keys draws. staleness: rounds, 0 is fresh. num_examples: n_i.
    local_rate: eta_l. vector_d: g_i, [d], the pseudo-gradient: u_i = eta_l g_i. kept_base_d: w_b, [d]; None where it is
    kept no more, and nothing can be done for the update.
    """

    client_id: int
    task_id: int
    base_version: int
    staleness: int
    num_examples: int
    local_rate: float
    vector_d: Tensor
    kept_base_d: Tensor | None

    @property
    def key(self) -> tuple[int, int]:
        """Names the update in the run."""
        return self.client_id, self.task_id

    @property
    def base_d(self) -> Tensor:
        """w_b, where it is kept."""
        assert self.kept_base_d is not None, f"version {self.base_version} is not kept"
        return self.kept_base_d


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRound:
    """The updates of a round that is about to be applied. version: v. model_d: w_v, [d] float32, and buffers_b: [b],
    the float buffers of that version; neither is written to."""

    version: int
    model_d: Tensor
    buffers_b: Tensor
    updates: Sequence[StaleUpdate]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredError:
    """How far an estimate of a client's update was from the one that it did make.

    method: of the estimate; `none` for the stale update itself. l1: |estimate - true|_1 over all parameters, in
    parameter units. cosine: 1 - cos. staleness: rounds that the estimate had to bridge.
    Source: docs/methods/measures.md#compensation-errors
    """

    client_id: int
    method: str
    l1: float
    cosine: float
    staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensated:
    """What became of one update. method: what was made of it; `none` when it stays. share: what part of the result
    is the estimate, the rest being the update as it came: a, times trust. iterations, disparity: of its inversion, None
    without one.
    """

    method: str = UNCHANGED
    share: float = 0.0
    iterations: int | None = None
    disparity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round's updates are replaced by.

    vectors: by place in the round, [d] float32, pseudo-gradients; an update that is not there stays as it is.
    counts_as_fresh: which of them the policy is to take for updates of the current version. updates: what
    became of each, in order. errors: that were measured. fallbacks: by reason, how many updates got a lesser
    compensation than was asked for. notes: sentences for people, each to be said once in a run; few,
    and so without the number of a client or a round, which would make a new one of each.
    """

    vectors: Mapping[int, Tensor]
    counts_as_fresh: Collection[int]
    updates: Sequence[Compensated]
    errors: Sequence[MeasuredError] = ()
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


NO_BASE = "no-base"
"""A reason for a fall-back: there is nothing that the update could be compared with."""


WITHOUT_BASE = "some updates were made from a version that is kept no more; such updates stay as they are"
"""The note for `no-base`."""


Made = dict[str, Any]
"""What took long to make or cannot be made again to the bit: tensors, numbers, texts, lists and dicts of them. It is
written down with the round."""


FreshUpdate = Callable[[StaleUpdate, StaleRound], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensatorContext:
    """What a compensator is told of the run.

    network: the model as a function; None where only settings are to be checked. steps: how clients train. seed: of the
    run. device: where the updates lie. clock: seconds that never go back; None where time is virtual.
    fresh_update: the pseudo-gradient [d] that the client of an update would make of the current model instead; in a
    simulation only. executor: where updates are inverted; None for here.
    """

    network: Network | None
    steps: LocalSteps
    seed: int
    device: torch.device
    clock: Callable[[], float] | None = None
    fresh_update: FreshUpdate | None = None
    executor: Executor | None = None


S = TypeVar("S", bound=PartSettings)


class Compensator(ABC, Generic[S]):
    """What becomes of stale updates before the policy sees them.

    A round is compensated in two steps: `make` does what may take long, or depends on how much time there is; `take`
    does the rest, and changes the state. What `make` returned is kept with the round, so that a run that is taken up or
    computed again gets the same without it.
    """

    Settings: ClassVar[type[PartSettings]] = PartSettings
    source: ClassVar[str]
    """Where the method is defined, for people."""
    memory: ClassVar[str] = "none"
    """What it keeps between rounds, for people, in numbers."""
    inverts: ClassVar[bool] = False
    """Whether it reconstructs data of clients from their updates."""
    is_recorded: ClassVar[bool] = False
    """Whether what `make` returns is to be kept with the round."""
    only_simulated: ClassVar[bool] = False
    """Whether it knows what no server can know."""

    def __init__(self, settings: S, context: CompensatorContext) -> None:
        self.settings = settings
        self.context = context

    @property
    def begins_early(self) -> bool:
        """Whether `begin` is to be called."""
        return False

    def begin(self, update: StaleUpdate) -> None:
        """A stale update has come in, and its round is still open: work on it may begin. Its tensors stay as they are
        until the round is applied."""

    def work(self) -> bool:
        """Do a little of what was begun; whether there is more to do."""
        return False

    def make(self, stale: StaleRound) -> Made:  # noqa: ARG002  (most make nothing that takes long)
        """What takes long, of a round. Writes to no argument."""
        return {}

    @abstractmethod
    def take(self, stale: StaleRound, made: Made) -> Outcome:
        """What the updates of a round are replaced by. made: by `make`, of this compensator or of one before it."""

    def state_dict(self) -> dict[str, Any]:
        """All that it keeps between rounds, but what was only begun. A copy."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of one with the same settings."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")
