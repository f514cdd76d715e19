"""The interface of an aggregation policy: one matrix of updates in, one step of the server out.

Legend: K updates of the round, in order of arrival; d parameters; N clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from unstale.part_settings import PartSettings
from unstale.policies.weights import normalise, weighted_sum, wide_chunks
from unstale.settings.values import Section

Loop = Literal["sync", "k-async", "availability"]
"""How rounds come about.

Source: docs/methods/rounds.md#loops
"""


def host_memory(rows: int, columns: int) -> Tensor:
    """Zeros [rows, columns], float32, in ordinary memory of the host; touched row by row."""
    return torch.zeros(rows, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """What a policy is told of the run.

    dimension: d, parameters of the model, >= 1. clients: N, >= 1; client ids are below it. device: where the matrix of
    updates lies. seed: of the run, for `unstale.seeds.stream`. round_size: the most updates of a round (K), and rounds:
    how many there will be (R); None where it is not known. allocate: makes zeros [rows, columns], float32, on the host,
    for a memory that is too large for the device: in ordinary, pinned or memory-mapped memory.
    """

    dimension: int
    clients: int
    device: torch.device
    seed: int = 0
    round_size: int | None = None
    rounds: int | None = None
    allocate: Callable[[int, int], Tensor] = host_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """The updates of one round. Row i of every field belongs to the i-th arrival. Nothing here is written to.

    version: v, rounds applied before this one; update i was computed from version v - s_i.
    matrix_Kd: float32, each row contiguous, on the policy's device. Flattened pseudo-gradients g_i;
        finite, with a norm that float32 holds. A gradient may be 0: nothing divides by its length.
    staleness_K: int64, rounds, 0 is fresh: version at aggregation - base version.
    num_examples_K: int64, >= 1. n_i, examples that the client holds.
    loss_K: float32. Mean training loss that the client reports.
    client_ids_K: int64, 0 <= id < clients. A client may be there twice where senders do not wait for their round.
    batch_sizes_K: int64, >= 1. m_i, examples behind the update: of the mini-batch in `gradient` mode, else n_i; None
        means num_examples_K.
    extra_Kd: float32, as matrix_Kd: the second vector that each client sent. Only for a policy that `sends_extra`.
    model_d, base_models: the current model w_v and, for each update, the model it was computed from (K
        references, often the same tensor). Only filled for a policy that `needs_base_models`; None means that
        every update was computed from the current model.
    rate: eta, the server's effective learning rate. local_rates_K: float32, eta_l of each client; None means
        `rate`.
    columns: reads columns start to end of the matrix, [K, end - start], where its rows lie on a disk. Then matrix_Kd is
        [K, 0]. Only for a policy that `column_wise`.
    """

    version: int
    matrix_Kd: Tensor
    staleness_K: Tensor
    num_examples_K: Tensor
    loss_K: Tensor
    client_ids_K: Tensor
    batch_sizes_K: Tensor | None = None
    extra_Kd: Tensor | None = None
    model_d: Tensor | None = None
    base_models: tuple[Tensor, ...] | None = None
    rate: float = 1.0
    local_rates_K: Tensor | None = None
    columns: Callable[[int, int], Tensor] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, when the fields do not fit one another."""
        if self.matrix_Kd.ndim != 2 or self.matrix_Kd.dtype != torch.float32:
            raise ValueError(
                "matrix_Kd must be a float32 matrix [K, d],"
                f" got {self.matrix_Kd.dtype} {tuple(self.matrix_Kd.shape)}"
            )
        rows = len(self)
        for name in ("staleness_K", "num_examples_K", "loss_K", "client_ids_K", "batch_sizes_K"):
            values_K = getattr(self, name)
            if values_K is not None and values_K.shape != (rows,):
                raise ValueError(
                    f"{name} must have shape ({rows},) to fit matrix_Kd, got {tuple(values_K.shape)}"
                )
        if self.extra_Kd is not None and self.extra_Kd.shape != self.matrix_Kd.shape:
            raise ValueError(
                f"extra_Kd must have the shape of matrix_Kd, {tuple(self.matrix_Kd.shape)},"
                f" got {tuple(self.extra_Kd.shape)}"
            )
        if self.base_models is not None and len(self.base_models) != rows:
            raise ValueError(
                f"base_models must hold {rows} models to fit matrix_Kd, got {len(self.base_models)}"
            )

    def __len__(self) -> int:
        return self.matrix_Kd.shape[0]

    def part(self, chunk: slice) -> Tensor:
        """Some columns of the matrix, [K, c], wherever they lie. chunk: without a step."""
        if self.columns is not None:
            return self.columns(chunk.start, chunk.stop).to(self.matrix_Kd.device)
        # Most rounds are one chunk, and a view of everything costs as much as any other call of torch.
        is_whole = chunk.stop - chunk.start == self.matrix_Kd.shape[1]
        return self.matrix_Kd if is_whole else self.matrix_Kd[:, chunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the server does: w <- w - rate * rate_factor * direction_d.

    direction_d: [d] float32; it may be memory of the policy's own, which its next step overwrites. rate_factor:
    multiplies the server's learning rate. weights_K: [K] float64 on the CPU, the weight that each update had in the
    direction, for metrics and `explain`, and for the average of the buffers. counts: whether the round counts for a
    schedule of learning rates; not so where a policy only waited.
    """

    direction_d: Tensor
    rate_factor: float
    weights_K: Tensor
    counts: bool = True


class PolicySettings(PartSettings):
    """Settings of a policy."""


S = TypeVar("S", bound=Section)


class Policy(ABC, Generic[S]):
    """How updates become one step. Deterministic; reads no clock; loops over no parameter tensors.

    Every policy accepts an empty batch: then nothing moves, unless its own rule says otherwise.
    """

    Settings: ClassVar[type[PolicySettings]] = PolicySettings
    source: ClassVar[str]
    """Where the method is defined, for people: the paper, and the page and heading of docs/methods."""
    loops: ClassVar[tuple[Loop, ...]] = ("sync", "k-async", "availability")
    """The loops that its source defines it for. It runs in every other one too."""
    memory: ClassVar[str] = "none"
    """What it keeps between rounds, for people, in numbers: `d`, `N x d + N`."""
    training: ClassVar[str | None] = None
    """The local training that clients must use for it; None: any."""
    sends_extra: ClassVar[bool] = False
    """Whether clients are sent `extra_d` beside the model, and send a second vector [d] beside theirs."""
    once_a_cycle: ClassVar[bool] = False
    """Whether a client's next update waits until every other client has contributed (GSGM's blocking loop)."""
    synchronous_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings whose default is another one where rounds wait for their participants."""
    reference_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings whose default is another one in the profile `reference`: what the authors' released code does."""
    order_matters: ClassVar[bool] = False
    """Whether the order of arrival changes a step by more than rounding."""
    example_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings to examine it with, where some are required (`unstale conformance`)."""
    longest_step: ClassVar[float] = 1.0
    """The most that a round of fresh, equal updates moves the model, in lengths of such an update, by default."""
    column_wise: bool = False
    """Whether it looks at the matrix only through `weighted`, so that its weights depend on what is known beside the
    rows. The rows need then not be in memory together."""
    is_homogeneous: ClassVar[bool] = True
    """Whether updates twice as long give a step twice as long; not so where a setting is a length."""
    golden: ClassVar[Path | None] = None
    """Golden vectors of its own, for `unstale conformance`: a file in the format of tests/oracles/write_vectors.py."""
    needs_base_models: bool = False
    """Whether `UpdateBatch.model_d` and `base_models` must be filled. Settings may decide it."""

    def __init__(self, settings: S, context: PolicyContext) -> None:
        self.settings = settings
        self.context = context
        self._result_d: Tensor | None = None

    @property
    def dimension(self) -> int:
        """d, parameters of the model."""
        return self.context.dimension

    @property
    def clients(self) -> int:
        """N, clients of the run."""
        return self.context.clients

    @property
    def device(self) -> torch.device:
        """Where the matrix of updates lies."""
        return self.context.device

    @abstractmethod
    def step(self, batch: UpdateBatch) -> Step:
        """One round. Writes to no argument; what it remembers for the next round is in `state_dict`."""

    @property
    def result_d(self) -> Tensor:
        """Memory for a direction, [d] float32, the same until it is given away: fresh memory costs as much as the sum.
        To be asked for in each step; what is written there lasts as long as that."""
        if self._result_d is None:
            self._result_d = torch.empty(self.dimension, dtype=torch.float32, device=self.device)
        return self._result_d

    def give_away(self, direction_d: Tensor) -> bool:
        """Whether the memory of the last step's direction is the caller's from here on, because nothing that lasts lies
        there."""
        if direction_d is not self._result_d:
            return False
        self._result_d = None
        return True

    def weighted(self, batch: UpdateBatch, weights_K: Tensor, rate_factor: float = 1.0) -> Step:
        """The step along sum_i weights_i * g_i, in `result_d`. weights_K: [K] float64 on the CPU."""
        result_d = self.result_d
        for chunk in wide_chunks(len(batch), self.dimension, self.device):
            is_whole = chunk.stop - chunk.start == self.dimension
            weighted_sum(batch.part(chunk), weights_K, out_d=result_d if is_whole else result_d[chunk])
        return Step(direction_d=result_d, rate_factor=rate_factor, weights_K=weights_K)

    def buffers_change(self, changes_Kb: Tensor, weights_K: Tensor) -> Tensor:
        """How the model's float buffers change: [b] float32, their changes averaged by the weights of the step.

        changes_Kb: [K, b] float32, K >= 1, what each client's differ by from the server's. Uniform where all weights
        are 0.
        A policy that is robust against single updates is so here, too.
        Source: docs/methods/README.md#numerical-conventions
        """
        return weighted_sum(changes_Kb, normalise(weights_K))

    @property
    def extra_d(self) -> Tensor | None:
        """What clients are sent beside the model: [d] float32, never written to once given out; None: nothing."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """All that the policy keeps between rounds: tensors, numbers, lists of numbers. A copy."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of a policy with the same settings, to the bit."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")
