"""The interface of an aggregation policy: one matrix of updates in, one step of the server out.

Legend: K updates of the round, in order of arrival; d parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """The updates of one round. Row i of every field belongs to the i-th arrival. Nothing here is written to.

    matrix_Kd: float32, contiguous, on the policy's device. Flattened pseudo-gradients g_i, algorithms.md 1.4.
    staleness_K: int64, rounds, 0 is fresh: version at aggregation - base version.
    num_examples_K: int64, >= 1. Examples that weigh an update: what the client holds (n_i), or, in `gradient`
        mode, what its mini-batch held (m_i).
    loss_K: float32. Mean training loss that the client reports.
    client_ids_K: int64, 0 <= id < clients.
    model_d, base_models: the current model w_v and, for each update, the model it was computed from (K
        references, often the same tensor). Only filled for a policy that `needs_base_models`; None means that
        every update was computed from the current model.
    rate: eta, the server's effective learning rate. local_rates_K: float32, eta_l of each client; None means
        `rate`.
    """

    matrix_Kd: Tensor
    staleness_K: Tensor
    num_examples_K: Tensor
    loss_K: Tensor
    client_ids_K: Tensor
    model_d: Tensor | None = None
    base_models: tuple[Tensor, ...] | None = None
    rate: float = 1.0
    local_rates_K: Tensor | None = None

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, when the fields do not fit one another."""
        if self.matrix_Kd.ndim != 2 or self.matrix_Kd.dtype != torch.float32:
            raise ValueError(
                "matrix_Kd must be a float32 matrix [K, d],"
                f" got {self.matrix_Kd.dtype} {tuple(self.matrix_Kd.shape)}"
            )
        rows = len(self)
        for name in ("staleness_K", "num_examples_K", "loss_K", "client_ids_K"):
            shape = tuple(getattr(self, name).shape)
            if shape != (rows,):
                raise ValueError(f"{name} must have shape ({rows},) to fit matrix_Kd, got {shape}")
        if self.base_models is not None and len(self.base_models) != rows:
            raise ValueError(
                f"base_models must hold {rows} models to fit matrix_Kd, got {len(self.base_models)}"
            )

    def __len__(self) -> int:
        return self.matrix_Kd.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the server does: w <- w - rate * rate_factor * direction_d.

    direction_d: [d] float32. rate_factor: multiplies the server's learning rate. weights_K: [K] float64 on
    the CPU, the weight that each update had in the direction, for metrics and `explain`.
    """

    direction_d: Tensor
    rate_factor: float
    weights_K: Tensor


class PolicySettings(BaseModel):
    """Settings of a policy: frozen, checked when made, unknown names refused. Every field is described."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


S = TypeVar("S", bound=PolicySettings)


class Policy(ABC, Generic[S]):
    """How updates become one step. Deterministic; reads no clock; loops over no parameter tensors.

    Every policy accepts an empty batch: then nothing moves, unless its own rule says otherwise.
    """

    Settings: ClassVar[type[PolicySettings]] = PolicySettings
    source: ClassVar[str]
    """Where the method is defined, for people: the paper, and the section of algorithms.md."""
    synchronous_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings whose default is another one where rounds wait for their participants."""
    needs_base_models: ClassVar[bool] = False
    """Whether `UpdateBatch.model_d` and `base_models` must be filled."""

    def __init__(self, settings: S, *, dimension: int, clients: int, device: torch.device) -> None:
        self.settings = settings
        self.dimension = dimension
        self.clients = clients
        self.device = device

    @abstractmethod
    def step(self, batch: UpdateBatch) -> Step:
        """One round. Writes to no argument; what it remembers for the next round is in `state_dict`."""

    def state_dict(self) -> dict[str, Any]:
        """All that the policy keeps between rounds: tensors, numbers, lists of numbers. A copy."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of a policy with the same settings, to the bit."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")
