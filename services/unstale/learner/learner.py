"""The learner: holds the global model, and compensates, aggregates and applies rounds of updates.

Legend: K updates of the round, in order of arrival; d parameters; b numbers of float buffers; D numbers of a row:
d + b, or 2 d + b where clients send a second vector.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unstale.compensators import Compensated, Compensator, Made, MeasuredError, Outcome, StaleRound, StaleUpdate
from unstale.errors import UserError
from unstale.flat import is_finite
from unstale.learner.updates import RoundUpdate, Rows
from unstale.learner.versions import Version
from unstale.policies import Policy, Step, UpdateBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensation:
    """The compensation of a round. Fields as in `compensators.Outcome`."""

    updates: Sequence[Compensated]
    errors: Sequence[MeasuredError]
    fallbacks: Mapping[str, int]
    notes: Sequence[str]
    made: Made | None  # stored with the round for replay; None for compensators that are cheap to repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The result of one round."""

    version: int  # the new one
    sent: Version
    learning_rate: float  # eta_l of the tasks of this version
    weights_K: tuple[float, ...]  # of the updates in the step
    staleness: tuple[int, ...]  # of the updates, rounds
    rate_factor: float  # the policy's factor of the learning rate
    overflowed: bool  # the step exceeded float32, and the model stayed as it was
    compensation: Compensation | None = None  # None without a compensator
    metrics: Mapping[str, float] = field(default_factory=dict)  # of policy and compensator, by name


_NOTHING_COMPENSATED = Outcome(vectors={}, counts_as_fresh=(), updates=())


class Learner:
    """Holds the global model and applies rounds to it. The same rounds in the same order give the same bits.

    Every version is a new, read-only tensor, so that older versions can still be sent or trained from. One thread
    applies rounds; another one may call `forget`: every access to the stored versions is one operation on a dict.
    """

    def __init__(
        self,
        model_d: Tensor,
        policy: Policy[Any],
        *,
        learning_rate: Callable[[int], float],
        server_multiplier: float = 1.0,
        buffers_b: Tensor | None = None,
        keep_versions: bool = False,
        past_versions: int = 0,
        compensator: Compensator[Any] | None = None,
    ) -> None:
        """Start at version 0.

        Args:
            model_d: [d] float32 on any device, as buffers_b [b]; copied to the policy's device.
            learning_rate: gives eta_l > 0 for a number of rounds that counted (`Step.counts`).
            server_multiplier: eta_g > 0; the server's rate is eta_g * eta_l.
            keep_versions: whether to store versions even if the policy does not need them.
            past_versions: earlier versions that can be requested without a reference to them.
        """
        assert model_d.shape == (policy.dimension,), (tuple(model_d.shape), policy.dimension)
        assert model_d.dtype == torch.float32, model_d.dtype
        assert server_multiplier > 0, server_multiplier
        self.policy = policy
        self.compensator = compensator
        self.version = 0
        self._rate_of = learning_rate
        self._server_multiplier = server_multiplier
        self._counted = 0
        self.learning_rate = learning_rate(0)  # eta_l of the tasks of the present version
        self._without_gradients = torch.no_grad()  # reused: its creation takes as long as its use
        self.sent = Version(  # the present version
            model_d=model_d.detach().to(policy.device, copy=True),
            buffers_b=(torch.empty(0) if buffers_b is None else buffers_b.detach()).to(policy.device, copy=True),
            extra_d=policy.extra_d,
        )
        keeps_versions = keep_versions or policy.needs_base_models or compensator is not None
        self._versions: dict[int, Version] | None = {0: self.sent} if keeps_versions else None
        # One for each open task (N), for each staged update (N, and two blocks of at most N), the present one and the
        # next. More is a leak.
        self._versions_max = 4 * policy.clients + 2 + past_versions
        self.row_numbers = sum(part.numel() for part in self.sent.parts)  # D

    @property
    def model_d(self) -> Tensor:
        """The present model, [d] float32, read-only."""
        return self.sent.model_d

    @property
    def rate(self) -> float:
        """eta, the server's effective learning rate in the next round."""
        return self._server_multiplier * self.learning_rate

    @property
    def column_wise(self) -> bool:
        """Whether rounds can be read in column blocks, without all rows in memory."""
        return self.policy.column_wise and self.compensator is None

    @property
    def prefetches(self) -> bool:
        """Whether `precompute` is to be called for stale updates before their round closes."""
        return self.compensator is not None and self.compensator.begins_early

    def precompute(self, row_D: Tensor, update: RoundUpdate) -> None:
        """Start the compensation of a stale update whose round is still open.

        row_D: [D] float32, any device; unchanged until the round is applied. update: with its present staleness.
        """
        assert self.compensator is not None
        with self._without_gradients:
            self.compensator.begin(self._stale_update(row_D, update))

    def work(self) -> bool:
        """Continue started compensations for a short time; return whether work is left."""
        with self._without_gradients:
            return self.compensator is not None and self.compensator.work()

    def here(self, rows: Tensor | Rows) -> Tensor | Rows:
        """Copy the rows of a round to the policy's device, unless they are there or not in memory."""
        # Asynchronous: `apply_round` waits for the device before it returns, and the caller reuses the rows only after
        # that. `RowUploads` relies on it, too.
        if isinstance(rows, Tensor) and rows.device != self.policy.device:
            return rows.to(self.policy.device, non_blocking=True)
        return rows

    def make(self, rows: Tensor | Rows, updates: Sequence[RoundUpdate]) -> Made | None:
        """Compute the expensive part of the next round, for `apply_round`; None without a compensator."""
        if self.compensator is None:
            return None
        with self._without_gradients:
            return self.compensator.make(self._stale_round(self.here(rows), updates))

    def apply_round(
        self, rows: Tensor | Rows, updates: Sequence[RoundUpdate], made: Made | None = None, *, may_write: bool = False
    ) -> RoundResult:
        """Make the next version: w <- w - rate * rate_factor * direction.

        If the step exceeds float32 although every update is finite, the model stays as it is and the result says so:
        clients can neither stop the server nor turn the model into NaN.

        Args:
            rows: [K, D] float32, any device: pseudo-gradient, buffers and second vector of updates[i] in row i. `Rows`
                that are not in memory only for a `column_wise` learner. K = 0 is a round without updates.
            made: result of `make`, or stored compensation of this round (`Compensation.made`); None to compute it.
            may_write: whether the rows may be overwritten.
        """
        assert tuple(rows.shape) == (len(updates), self.row_numbers), tuple(rows.shape)
        for update in updates:
            assert update.staleness == self.version - update.base_version, f"{update} at version {self.version}"
        with self._without_gradients:
            here = self.here(rows)
            outcome, compensation = _NOTHING_COMPENSATED, None
            if self.compensator is not None:
                stale = self._stale_round(here, updates)
                made = self.compensator.make(stale) if made is None else made
                outcome = self.compensator.take(stale, made)
                _check_outcome(self.compensator, outcome, stale)
                here = self._replaced(here, outcome.vectors, may_write=may_write or here is not rows)
                compensation = Compensation(
                    updates=outcome.updates,
                    errors=outcome.errors,
                    fallbacks=outcome.fallbacks,
                    notes=outcome.notes,
                    made=made if self.compensator.is_recorded else None,
                )
            step, overflowed = self._move(here, updates, outcome)
        self.version += 1
        if step.counts:
            self._counted += 1
            self.learning_rate = self._rate_of(self._counted)
        if self._versions is not None:
            kept = len(self._versions)
            assert kept < self._versions_max, f"{kept} versions are kept and none was forgotten"
            self._versions[self.version] = self.sent
        return RoundResult(
            version=self.version,
            sent=self.sent,
            learning_rate=self.learning_rate,
            weights_K=tuple(step.weights_K.tolist()),
            staleness=tuple(update.staleness for update in updates),
            rate_factor=step.rate_factor,
            overflowed=overflowed,
            compensation=compensation,
            metrics=_finite({**step.metrics, **outcome.metrics}),
        )

    def base(self, version: int) -> Version:
        """A stored version."""
        assert self._versions is not None, "this learner keeps no versions"
        assert version in self._versions, f"version {version} is not kept; kept are {sorted(self._versions)}"
        return self._versions[version]

    def forget(self, version: int) -> None:
        """Delete a version that no later update refers to, if versions are stored."""
        if self._versions is not None:
            assert version in self._versions, f"version {version} is not kept; kept are {sorted(self._versions)}"
            del self._versions[version]

    def keep_only(self, versions: Container[int]) -> None:
        """Delete every other stored version."""
        for number in list(self._versions or ()):
            if number not in versions:
                self.forget(number)

    def state_dict(self) -> dict[str, Any]:
        """The complete state. Vectors are not copied."""
        return {
            "version": self.version,
            "counted": self._counted,
            "sent": self.sent.state_dict(),
            "versions": {number: version.state_dict() for number, version in (self._versions or {}).items()},
            "policy": self.policy.state_dict(),
            "compensator": None if self.compensator is None else self.compensator.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()` of a learner with the same arguments, bit by bit."""
        device = self.policy.device
        self.version = state["version"]
        self._counted = state["counted"]
        self.learning_rate = self._rate_of(self._counted)
        self.sent = Version.from_state(state["sent"], device)
        if self._versions is not None:
            assert len(state["versions"]) <= self._versions_max, f"{len(state['versions'])} versions are kept"
            self._versions = {number: Version.from_state(kept, device) for number, kept in state["versions"].items()}
            self._versions[self.version] = self.sent
        self.policy.load_state_dict(state["policy"])
        if self.compensator is not None:
            self.compensator.load_state_dict(state["compensator"])

    def _stale_round(self, rows: Tensor | Rows, updates: Sequence[RoundUpdate]) -> StaleRound:
        assert isinstance(rows, Tensor), "a compensator needs the rows of a round in memory"
        return StaleRound(
            version=self.version,
            model_d=self.model_d,
            buffers_b=self.sent.buffers_b,
            updates=[self._stale_update(row_D, update) for row_D, update in zip(rows, updates, strict=True)],
        )

    def _stale_update(self, row_D: Tensor, update: RoundUpdate) -> StaleUpdate:
        assert self._versions is not None
        is_kept = update.base_version in self._versions
        return StaleUpdate(
            client_id=update.client_id,
            task_id=update.task_id,
            base_version=update.base_version,
            staleness=update.staleness,
            num_examples=update.num_examples,
            local_rate=update.local_rate,
            # Asynchronous: the row is unchanged until its round has been applied.
            vector_d=row_D[: self.policy.dimension].to(self.policy.device, non_blocking=True),
            kept_base_d=self.base(update.base_version).model_d if is_kept else None,
        )

    def _replaced(self, rows: Tensor | Rows, vectors: Mapping[int, Tensor], *, may_write: bool) -> Tensor:
        """Replace the pseudo-gradients of some rows, by index."""
        assert isinstance(rows, Tensor)
        rows = rows if may_write or not vectors else rows.clone()
        for index, vector_d in vectors.items():
            rows[index, : self.policy.dimension] = vector_d
        return rows

    def _move(self, rows: Tensor | Rows, updates: Sequence[RoundUpdate], outcome: Outcome) -> tuple[Step, bool]:
        """Set `sent` to the next version; return the policy's step, and whether it exceeded float32."""
        step = self.policy.step(self._batch(rows, updates, outcome))
        direction_d, sent = step.direction_d, self.sent
        assert direction_d.data_ptr() != sent.model_d.data_ptr(), "written to what the policy gave away"
        out_d = direction_d if self.policy.give_away(direction_d) else None
        model_d = torch.sub(sent.model_d, direction_d, alpha=self.rate * step.rate_factor, out=out_d)
        buffers_b = self._next_buffers(rows, step)
        overflowed = not is_finite(model_d, buffers_b)
        self.sent = Version(
            model_d=sent.model_d if overflowed else model_d,
            buffers_b=sent.buffers_b if overflowed else buffers_b,
            extra_d=self.policy.extra_d,
        )
        return step, overflowed

    def _next_buffers(self, rows: Tensor | Rows, step: Step) -> Tensor:
        """Aggregate the buffers of a round; the present ones if there are none or the round does not count.

        Source: docs/methods/README.md#numerical-conventions
        """
        size, start = self.sent.buffers_b.numel(), self.policy.dimension
        if size == 0 or rows.shape[0] == 0 or not step.counts:
            return self.sent.buffers_b
        # Differences, so that equal buffers stay equal bit by bit.
        end = start + size
        buffers_Kb = rows[:, start:end] if isinstance(rows, Tensor) else rows.columns(start, end)
        changes_Kb = buffers_Kb.to(self.policy.device) - self.sent.buffers_b
        return self.sent.buffers_b + self.policy.buffers_change(changes_Kb, step.weights_K)

    def _batch(self, rows: Tensor | Rows, updates: Sequence[RoundUpdate], outcome: Outcome) -> UpdateBatch:
        d = self.policy.dimension
        columns = None if isinstance(rows, Tensor) else rows.columns
        if not isinstance(rows, Tensor):
            assert self.policy.column_wise, f"{type(self.policy).__name__} needs the rows of a round in memory"
            rows = torch.empty(len(updates), 0, device=self.policy.device)
        base_models = None
        if self.policy.needs_base_models:
            # A replacement is an estimate of an update of the present model.
            base_models = tuple(
                self.model_d if index in outcome.vectors else self.base(update.base_version).model_d
                for index, update in enumerate(updates)
            )
        return UpdateBatch(
            version=self.version,
            matrix_Kd=rows if rows.shape[1] <= d else rows[:, :d],
            extra_Kd=None if self.sent.extra_d is None else rows[:, -d:],
            model_d=self.model_d if self.policy.needs_base_models else None,
            base_models=base_models,
            rate=self.rate,
            columns=columns,
            **_columns(updates, frozenset(outcome.counts_as_fresh)),
        )


def _check_outcome(compensator: Compensator[Any], outcome: Outcome, stale: StaleRound) -> None:
    """Raise UserError for a compensator of a user's own that leaves updates out."""
    if len(outcome.updates) != len(stale.updates):
        raise UserError(
            f"compensator {type(compensator).__name__} describes {len(outcome.updates)} of {len(stale.updates)} "
            "updates in Outcome.updates, expected each of them"
        )


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that are numbers, as floats."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _columns(updates: Sequence[RoundUpdate], fresh: Container[int]) -> dict[str, Any]:
    """The columns of `UpdateBatch` that the updates say, each [K]: int64, losses and local rates float32.

    One tensor for all columns of a type: the creation of a tensor costs more than filling it with ten updates.
    fresh: indices of updates whose staleness counts as 0.
    """
    integers = {
        "staleness_K": [0 if index in fresh else update.staleness for index, update in enumerate(updates)],
        "num_examples_K": [update.num_examples for update in updates],
        "client_ids_K": [update.client_id for update in updates],
        "batch_sizes_K": [update.batch_examples for update in updates],
    }
    floats = {"loss_K": [update.loss for update in updates], "local_rates_K": [update.local_rate for update in updates]}
    return {
        **dict(zip(integers, torch.tensor(list(integers.values()), dtype=torch.int64).unbind(), strict=True)),
        **dict(zip(floats, torch.tensor(list(floats.values()), dtype=torch.float32).unbind(), strict=True)),
    }
