"""The interface of an aggregation policy: it maps one matrix of updates to one step of the server.

Legend: K updates of the round, in order of arrival; d parameters; N clients. In the equations of the policies g_i is
row i of `UpdateBatch.matrix_Kd`, and s_i the staleness of that update.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from unstale.errors import UserError
from unstale.part_settings import PartSettings
from unstale.policies.weights import device_weights, normalise, weighted_sum, wide_chunks
from unstale.settings.values import Section

Loop = Literal["sync", "k-async", "availability"]
"""Kinds of rounds.

Source: docs/methods/rounds.md#loops
"""


METRICS_MAX = 16  # of a step


def host_memory(rows: int, columns: int) -> Tensor:
    """Allocate zeros [rows, columns], float32, in pageable host memory."""
    return torch.zeros(rows, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """The facts about a run that a policy may use."""

    dimension: int  # d, parameters of the model, >= 1
    clients: int  # N, >= 1; client ids are 0 to N - 1
    device: torch.device  # of the matrix of updates
    seed: int = 0  # for `unstale.seeds.stream`
    round_size: int | None = None  # K, most updates of a round; None if unknown
    rounds: int | None = None  # R, rounds of the run; None if unknown
    allocate: Callable[[int, int], Tensor] = host_memory
    """Allocates zeros [rows, columns], float32, for memories of all clients: on the device, or in pageable, pinned or
    memory-mapped host memory if they are too large for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """The updates of one round, read-only. Row i of every field belongs to the i-th arrival."""

    version: int  # v, rounds before this one; update i was computed from version v - s_i
    matrix_Kd: Tensor
    """float32, each row contiguous, on the policy's device. Flattened pseudo-gradients g_i, finite, with a norm that
    float32 holds. A gradient may be 0."""
    staleness_K: Tensor  # int64, rounds, 0 is fresh: version at aggregation - base version
    num_examples_K: Tensor  # int64, >= 1: n_i, examples of the client
    loss_K: Tensor  # float32: mean training loss that the client reports
    client_ids_K: Tensor  # int64, 0 <= id < N; a client may occur twice if senders do not wait for their round
    batch_sizes_K: Tensor | None = None
    """int64, >= 1. m_i, examples behind the update: the mini-batch in `gradient` mode, else n_i; None stands for
    num_examples_K."""
    extra_Kd: Tensor | None = None  # float32, as matrix_Kd: second vectors, for a policy with `sends_extra`
    model_d: Tensor | None = None  # the present model w_v, for a policy with `needs_base_models`
    base_models: tuple[Tensor, ...] | None = None
    """The model of each update (K references, often to one tensor), for a policy with `needs_base_models`; None if
    every update was computed from the present model."""
    rate: float = 1.0  # eta, the server's effective learning rate
    local_rates_K: Tensor | None = None  # float32, eta_l of each client; None stands for `rate`
    columns: Callable[[int, int], Tensor] | None = None
    """Reads columns start to end of a matrix on disk, [K, end - start], valid until the next call, for a `column_wise`
    policy; then matrix_Kd is [K, 0]."""

    def __post_init__(self) -> None:
        """Raise ValueError, with the name of the field, if shapes or types do not match."""
        if self.matrix_Kd.ndim != 2 or self.matrix_Kd.dtype != torch.float32:
            raise ValueError(
                f"matrix_Kd must be a float32 matrix [K, d], got {self.matrix_Kd.dtype} {tuple(self.matrix_Kd.shape)}"
            )
        rows = len(self)
        for name in ("staleness_K", "num_examples_K", "loss_K", "client_ids_K", "batch_sizes_K"):
            values_K = getattr(self, name)
            if values_K is not None and values_K.shape != (rows,):
                raise ValueError(f"{name} must have shape ({rows},) to fit matrix_Kd, got {tuple(values_K.shape)}")
        if self.extra_Kd is not None and self.extra_Kd.shape != self.matrix_Kd.shape:
            raise ValueError(
                f"extra_Kd must have the shape of matrix_Kd, {tuple(self.matrix_Kd.shape)},"
                f" got {tuple(self.extra_Kd.shape)}"
            )
        if self.base_models is not None and len(self.base_models) != rows:
            raise ValueError(f"base_models must hold {rows} models to fit matrix_Kd, got {len(self.base_models)}")

    def __len__(self) -> int:
        return self.matrix_Kd.shape[0]

    def part(self, chunk: slice) -> Tensor:
        """Return columns of the matrix, [K, c], from memory or disk. chunk: Without a step."""
        if self.columns is not None:
            return self.columns(chunk.start, chunk.stop).to(self.matrix_Kd.device)
        # Most rounds are one chunk, and even a view costs a call of torch.
        is_whole = chunk.stop - chunk.start == self.matrix_Kd.shape[1]
        return self.matrix_Kd if is_whole else self.matrix_Kd[:, chunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the server: w <- w - rate * rate_factor * direction_d."""

    direction_d: Tensor  # [d] float32; possibly the policy's own memory, which its next step overwrites
    rate_factor: float
    weights_K: Tensor
    """[K] float64 on the CPU: the weights of the updates in the direction, for metrics, `explain` and buffers."""
    counts: bool = True  # for the schedule of learning rates; False if the policy only waited
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Finite numbers about the policy after this step, by name, up to `METRICS_MAX`: 1 to 64 characters of
    a-z0-9_./-. They are recorded and shown, and must not cost a synchronisation with the device."""


class PolicySettings(PartSettings):
    """Settings of a policy."""


_RENAMED = MappingProxyType({"streams": "column_wise", "scales": "is_homogeneous"})
"""Attributes of `Policy` that older versions had, with their present names."""

S = TypeVar("S", bound=Section)


class Policy(ABC, Generic[S]):
    """Maps the updates of a round to one step. Deterministic; reads no clock.

    Every policy accepts an empty batch: the model stays as it is, unless the policy's rule moves it.
    """

    Settings: ClassVar[type[PolicySettings]] = PolicySettings
    source: ClassVar[str]
    """Definition of the method, for classes whose docstring does not end with it, as `Source: paper, page#heading`."""
    loops: ClassVar[tuple[Loop, ...]] = ("sync", "k-async", "availability")
    """Loops that the source defines the method for. It runs in all others too."""
    memory: ClassVar[str] = "none"
    """State between rounds, in numbers, as a text: `d`, `N x d + N`."""
    training: ClassVar[str | None] = None
    """Local training that the policy requires; None for any."""
    sends_extra: ClassVar[bool] = False
    """Whether the server sends `extra_d` beside the model, and clients a second vector [d] beside their update."""
    once_a_cycle: ClassVar[bool] = False
    """Whether a client's next update waits until every other client has contributed (GSGM's blocking loop)."""
    synchronous_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Defaults of settings in rounds that wait for their participants, where they differ."""
    reference_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Defaults of settings in the profile `reference`, the authors' released code, where they differ."""
    order_matters: ClassVar[bool] = False
    """Whether the order of arrival changes a step by more than rounding."""
    example_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings for `unstale conformance`, if the policy requires some."""
    longest_step: ClassVar[float] = 1.0
    """Longest step for a round of fresh, equal updates, in lengths of such an update, with default settings."""
    column_wise: bool = False
    """Whether the policy reads the matrix through `weighted` only and computes its weights from the other fields. Then
    the rows need not be in memory together."""
    is_homogeneous: ClassVar[bool] = True
    """Whether updates of twice the length give a step of twice the length; False if a setting is a length."""
    golden: ClassVar[Path | None] = None
    """File of golden vectors for `unstale conformance`, in the format of tests/oracles/write_vectors.py."""
    needs_base_models: bool = False
    """Whether the policy reads `UpdateBatch.model_d` and `base_models`; settings may change it."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Refuse attributes of older versions, which would have no effect.

        Raises:
            UserError: The class sets one of them.
        """
        super().__init_subclass__(**keywords)
        for name, present_name in _RENAMED.items():
            if name in vars(cls):
                raise UserError(
                    f"policy class {cls.__qualname__} sets {name}, which is now called {present_name}; rename it"
                )

    @staticmethod
    def history_rows(settings: Any, context: PolicyContext) -> int:  # noqa: ARG004
        """Most vectors [d] of a history that the policy allocates on its device, whatever the context allocates."""
        return 0

    def __init__(self, settings: S, context: PolicyContext) -> None:
        self.settings = settings
        self.context = context
        self.dimension = context.dimension  # d, parameters of the model
        self.clients = context.clients  # N, clients of the run
        self.device = context.device  # of the matrix of updates
        self._result_d: Tensor | None = None

    @abstractmethod
    def step(self, batch: UpdateBatch) -> Step:
        """Apply the rule to one round, without writing to the batch. All state is in `state_dict`."""

    @property
    def result_d(self) -> Tensor:
        """Memory for a direction, [d] float32, reused by the next step: fresh memory costs as much as the sum."""
        if self._result_d is None:
            self._result_d = torch.empty(self.dimension, dtype=torch.float32, device=self.device)
        return self._result_d

    def give_away(self, direction_d: Tensor) -> bool:
        """Hand the memory of the last direction over to the caller; return False if it holds state of the policy."""
        if direction_d is not self._result_d:
            return False
        self._result_d = None
        return True

    def weighted(self, batch: UpdateBatch, weights_K: Tensor, rate_factor: float = 1.0) -> Step:
        """Make the step along sum_i weights_i * g_i, in `result_d`. weights_K: [K] float64 on the CPU."""
        result_d, on_device_K = self.result_d, device_weights(weights_K, self.device)
        for chunk in wide_chunks(len(batch), self.dimension, self.device):
            is_whole = chunk.stop - chunk.start == self.dimension
            weighted_sum(batch.part(chunk), on_device_K, out_d=result_d if is_whole else result_d[chunk])
        return Step(direction_d=result_d, rate_factor=rate_factor, weights_K=weights_K)

    def buffers_change(self, changes_Kb: Tensor, weights_K: Tensor) -> Tensor:
        """Average the changes of the float buffers, [b] float32, by the weights of the step, uniformly if all are 0.

        Robust policies override this with their own rule. changes_Kb: float32, K >= 1, differences from the server's
        buffers. weights_K: float64.
        Source: docs/methods/README.md#numerical-conventions
        """
        return weighted_sum(changes_Kb, normalise(weights_K))

    @property
    def extra_d(self) -> Tensor | None:
        """The second vector for clients, [d] float32, read-only once returned; None for no vector."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Copy the state between rounds: tensors, numbers, texts, lists and dictionaries."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()` of a policy with the same settings, bit by bit."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")
