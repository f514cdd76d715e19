"""The learner: the global model, and the one way in which it changes: compensate, aggregate, apply.

Legend: K updates of the round, in order of arrival; d parameters; b numbers of float buffers; D numbers of a row:
d + b, and d more where a second vector comes along.
"""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unstale.compensators import (
    Compensated,
    Compensator,
    Made,
    MeasuredError,
    Outcome,
    StaleRound,
    StaleUpdate,
)
from unstale.flat import is_finite
from unstale.learner.updates import RoundUpdate, Rows
from unstale.learner.versions import Version, VersionStore
from unstale.policies import Policy, Step, UpdateBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensation:
    """What became of the updates of a round before the policy saw them: fields as in `compensators.Outcome`.

    made: what is to be kept with the round, so that it can be computed again; None for what needs nothing.
    """

    updates: Sequence[Compensated]
    errors: Sequence[MeasuredError]
    fallbacks: Mapping[str, int]
    notes: Sequence[str]
    made: Made | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round made.

    version: the new one. sent: what clients are sent of it. learning_rate: eta_l of its tasks. weights_K: what each
    update weighed in the step. staleness: of each update, rounds. rate_factor: what the policy multiplied the learning
    rate by. overflowed: the step left the range of float32, so the version holds the same model as the one before.
    compensation: None where there is no compensator.
    """

    version: int
    sent: Version
    learning_rate: float
    weights_K: tuple[float, ...]
    staleness: tuple[int, ...]
    rate_factor: float
    overflowed: bool
    compensation: Compensation | None = None


class Learner:
    """Holds the global model and applies rounds to it. The same rounds in order give the same bits.

    Every version is a new tensor and is never written to afterwards, so an older one can still be sent or
    trained from. One thread applies rounds; `forget` may come from another one. row_numbers: D, of each row.
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

        model_d: [d] float32, any device; copied to the policy's. buffers_b: [b] float32 or None, as model_d.
        learning_rate: eta_l > 0, given how many rounds have counted (`Step.counts`) so far. server_multiplier: eta_g,
        > 0; the server's step is eta_g * eta_l. keep_versions: keep every version until it is forgotten, also when the
        policy needs none. past_versions: how many before the current one may be asked for, referred to or not.
        compensator: of stale updates; None to leave them as they are.
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
        self._learning_rate = learning_rate(0)
        # One for all rounds: to make it takes as long as to enter it.
        self._without_gradients = torch.no_grad()
        self.sent = Version(
            model_d=model_d.detach().to(policy.device, copy=True),
            buffers_b=(torch.empty(0) if buffers_b is None else buffers_b.detach()).to(
                policy.device, copy=True
            ),
            extra_d=policy.extra_d,
        )
        self._versions: VersionStore | None = None
        if keep_versions or policy.needs_base_models or compensator is not None:
            # One for each open task (clients), for each staged update (clients, and two blocks of at most as
            # many), the current one and the next.
            self._versions = VersionStore(limit=4 * policy.clients + 2 + past_versions)
            self._versions.add(0, self.sent)
        self.row_numbers = sum(part.numel() for part in self.sent.parts)

    @property
    def model_d(self) -> Tensor:
        """The model as it is now: [d] float32, not to be written to."""
        return self.sent.model_d

    @property
    def learning_rate(self) -> float:
        """eta_l of the tasks of this version."""
        return self._learning_rate

    @property
    def rate(self) -> float:
        """eta, the server's effective learning rate in the next round."""
        return self._server_multiplier * self.learning_rate

    @property
    def column_wise(self) -> bool:
        """Whether the rows of a round need not be in memory."""
        return self.policy.column_wise and self.compensator is None

    @property
    def looks_ahead(self) -> bool:
        """Whether it is to be told of stale updates before their round closes."""
        return self.compensator is not None and self.compensator.begins_early

    def precompute(self, row_D: Tensor, update: RoundUpdate) -> None:
        """An update has come in whose round is open, and which is stale already: work on it may begin. row_D: [D]
        float32, any device; it stays as it is until its round is applied."""
        assert self.compensator is not None
        with self._without_gradients:
            self.compensator.begin(self._received(row_D, update))

    def work(self) -> bool:
        """Do a little of what was begun, while there is nothing else to do; whether there is more."""
        if self.compensator is None:
            return False
        with self._without_gradients:
            return self.compensator.work()

    def here(self, rows: Tensor | Rows) -> Tensor | Rows:
        """Rows of a round on the policy's device, for `make` and `apply_round`: a copy, or the same where they lie
        there; those that are not in memory stay where they are."""
        # The copy need not be waited for: screening the new model waits for the device, before the caller may
        # give the matrix to somebody else.
        if isinstance(rows, Tensor) and rows.device != self.policy.device:
            return rows.to(self.policy.device, non_blocking=True)
        return rows

    def make(self, rows: Tensor | Rows, updates: Sequence[RoundUpdate]) -> Made | None:
        """What takes long of a round that is applied next; for `apply_round`, which does it itself if it is not given.
        None where there is no compensator."""
        if self.compensator is None:
            return None
        with self._without_gradients:
            return self.compensator.make(self._stale(self.here(rows), updates))

    def apply_round(
        self,
        rows: Tensor | Rows,
        updates: Sequence[RoundUpdate],
        made: Made | None = None,
        *,
        may_write: bool = False,
    ) -> RoundResult:
        """Make the next version: w <- w - rate * rate_factor * direction.

        rows: [K, D] float32, any device, not written to; row i is of updates[i]: its pseudo-gradient, its buffers, its
        second vector. `Rows` that are not in memory only for a policy that streams. K = 0 is a round that nobody
        contributed to. When finite updates add up to more than float32 holds, the model stays as it is and the result
        says so: what peers sent must neither stop the server nor turn the model into NaN. made: as this round was
        compensated before (`Compensation.made`); None to compensate it now. may_write: nobody else looks at the rows,
        so they may be written to after all.
        """
        assert tuple(rows.shape) == (len(updates), self.row_numbers), tuple(rows.shape)
        for update in updates:
            assert update.staleness == self.version - update.base_version, (
                f"{update} at version {self.version}"
            )
        with self._without_gradients:
            here = self.here(rows)
            outcome, made = self._compensated(here, updates, made)
            if outcome is not None and outcome.vectors:
                here = self._replaced(here, outcome.vectors, may_write=may_write or here is not rows)
            step, overflowed = self._move(here, updates, outcome)
        self.version += 1
        if step.counts:
            self._counted += 1
            self._learning_rate = self._rate_of(self._counted)
        if self._versions is not None:
            self._versions.add(self.version, self.sent)
        return RoundResult(
            version=self.version,
            sent=self.sent,
            learning_rate=self._learning_rate,
            weights_K=tuple(step.weights_K.tolist()),
            staleness=tuple(update.staleness for update in updates),
            rate_factor=step.rate_factor,
            overflowed=overflowed,
            compensation=None if outcome is None else self._told(outcome, made),
        )

    def base(self, version: int) -> Version:
        """What was sent of a version that is kept."""
        assert self._versions is not None, "this learner keeps no versions"
        return self._versions.get(version)

    def forget(self, version: int) -> None:
        """No update to come was computed from this version. Does nothing where none are kept."""
        if self._versions is not None:
            self._versions.forget(version)

    def keep_only(self, versions: Container[int]) -> None:
        """Forget every other version that is kept."""
        if self._versions is not None:
            for number in self._versions.numbers:
                if number not in versions:
                    self._versions.forget(number)

    def state_dict(self) -> dict[str, Any]:
        """All that changes: version, what is sent of it, versions kept, the policy's own state. What is sent is not
        copied, for nobody writes to it."""
        return {
            "version": self.version,
            "counted": self._counted,
            "sent": self.sent.state_dict(),
            "versions": {} if self._versions is None else self._versions.state_dict(),
            "policy": self.policy.state_dict(),
            "compensator": None if self.compensator is None else self.compensator.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of a learner made in the same way, to the bit."""
        device = self.policy.device
        self.version = state["version"]
        self._counted = state["counted"]
        self._learning_rate = self._rate_of(self._counted)
        self.sent = Version.from_state(state["sent"], device)
        if self._versions is not None:
            older = {
                number: Version.from_state(kept, device)
                for number, kept in state["versions"].items()
                if number != self.version
            }
            self._versions.load({**older, self.version: self.sent})
        self.policy.load_state_dict(state["policy"])
        if self.compensator is not None:
            self.compensator.load_state_dict(state["compensator"])

    def _compensated(
        self, rows: Tensor | Rows, updates: Sequence[RoundUpdate], made: Made | None
    ) -> tuple[Outcome | None, Made | None]:
        """What the compensator makes of a round, and what it made it of; None where there is none."""
        if self.compensator is None:
            return None, None
        stale = self._stale(rows, updates)
        if made is None:
            made = self.compensator.make(stale)
        return self.compensator.take(stale, made), made

    def _stale(self, rows: Tensor | Rows, updates: Sequence[RoundUpdate]) -> StaleRound:
        assert isinstance(rows, Tensor), "a compensator needs the rows of a round in memory"
        return StaleRound(
            version=self.version,
            model_d=self.model_d,
            buffers_b=self.sent.buffers_b,
            updates=[self._received(row_D, update) for row_D, update in zip(rows, updates, strict=True)],
        )

    def _received(self, row_D: Tensor, update: RoundUpdate) -> StaleUpdate:
        assert self._versions is not None
        is_kept = update.base_version in self._versions
        return StaleUpdate(
            client_id=update.client_id,
            task_id=update.task_id,
            base_version=update.base_version,
            staleness=update.staleness,
            num_examples=update.num_examples,
            local_rate=update.local_rate,
            vector_d=row_D[: self.policy.dimension].to(self.policy.device),
            kept_base_d=self.base(update.base_version).model_d if is_kept else None,
        )

    def _told(self, outcome: Outcome, made: Made | None) -> Compensation:
        assert self.compensator is not None
        return Compensation(
            updates=outcome.updates,
            errors=outcome.errors,
            fallbacks=outcome.fallbacks,
            notes=outcome.notes,
            made=made if self.compensator.is_recorded else None,
        )

    def _replaced(self, rows: Tensor | Rows, vectors: Mapping[int, Tensor], *, may_write: bool) -> Tensor:
        """The rows with others at some places."""
        assert isinstance(rows, Tensor)
        rows = rows if may_write else rows.clone()
        for place, vector_d in vectors.items():
            rows[place, : self.policy.dimension] = vector_d
        return rows

    def _move(
        self, rows: Tensor | Rows, updates: Sequence[RoundUpdate], outcome: Outcome | None
    ) -> tuple[Step, bool]:
        """Make what is sent of the next version; the policy's step, and whether it left the range of float32."""
        rate = self.rate
        step = self.policy.step(self._batch(rows, updates, rate, outcome))
        direction_d, sent = step.direction_d, self.sent
        assert direction_d.data_ptr() != sent.model_d.data_ptr(), "written to what the policy gave away"
        out_d = direction_d if self.policy.give_away(direction_d) else None
        model_d = torch.sub(sent.model_d, direction_d, alpha=rate * step.rate_factor, out=out_d)
        buffers_b = self._next_buffers(rows, step)
        overflowed = not (is_finite(model_d) and (buffers_b.numel() == 0 or is_finite(buffers_b)))
        self.sent = Version(
            model_d=sent.model_d if overflowed else model_d,
            buffers_b=sent.buffers_b if overflowed else buffers_b,
            extra_d=self.policy.extra_d,
        )
        return step, overflowed

    def _next_buffers(self, rows: Tensor | Rows, step: Step) -> Tensor:
        """What the policy makes of the buffers received; as they were when nobody sent any, or it only waited.

        Source: docs/methods/README.md#numerical-conventions
        """
        size, start = self.sent.buffers_b.numel(), self.policy.dimension
        if size == 0 or rows.shape[0] == 0 or not step.counts:
            return self.sent.buffers_b
        # By how much they differ, so that what is the same everywhere stays so, to the bit.
        end = start + size
        buffers_Kb = rows[:, start:end] if isinstance(rows, Tensor) else rows.columns(start, end)
        changes_Kb = buffers_Kb.to(self.policy.device) - self.sent.buffers_b
        return self.sent.buffers_b + self.policy.buffers_change(changes_Kb, step.weights_K)

    def _base_models(self, updates: Sequence[RoundUpdate], replaced: Collection[int]) -> tuple[Tensor, ...]:
        """The model that each update was computed from, [d]; the current one for those that were replaced."""
        return tuple(
            self.model_d if place in replaced else self.base(update.base_version).model_d
            for place, update in enumerate(updates)
        )

    def _batch(
        self, rows: Tensor | Rows, updates: Sequence[RoundUpdate], rate: float, outcome: Outcome | None
    ) -> UpdateBatch:
        d = self.policy.dimension
        columns = None if isinstance(rows, Tensor) else rows.columns
        if not isinstance(rows, Tensor):
            assert self.policy.column_wise, (
                f"{type(self.policy).__name__} needs the rows of a round in memory"
            )
            rows = torch.empty(len(updates), 0, device=self.policy.device)
        replaced = (
            frozenset() if outcome is None else outcome.vectors.keys()
        )  # by updates of the current model
        fresh = frozenset() if outcome is None else frozenset(outcome.counts_as_fresh)
        staleness_K, num_examples_K, client_ids_K, batch_sizes_K, loss_K, local_rates_K = _columns(
            updates, fresh
        )
        return UpdateBatch(
            version=self.version,
            matrix_Kd=rows if rows.shape[1] <= d else rows[:, :d],
            staleness_K=staleness_K,
            num_examples_K=num_examples_K,
            loss_K=loss_K,
            client_ids_K=client_ids_K,
            batch_sizes_K=batch_sizes_K,
            extra_Kd=None if self.sent.extra_d is None else rows[:, -d:],
            model_d=self.model_d if self.policy.needs_base_models else None,
            base_models=self._base_models(updates, replaced) if self.policy.needs_base_models else None,
            rate=rate,
            local_rates_K=local_rates_K,
            columns=columns,
        )


def _columns(updates: Sequence[RoundUpdate], fresh: Container[int]) -> tuple[Tensor, ...]:
    """Staleness, examples, client ids and batch sizes (int64), losses and local rates (float32) of updates, each [K].

    A row of one tensor for each field: making a tensor costs more than filling it with ten updates.

    Args:
        updates: of a round.
        fresh: indices of updates whose staleness counts as 0.
    """
    integers = torch.tensor(
        [
            [0 if place in fresh else update.staleness for place, update in enumerate(updates)],
            [update.num_examples for update in updates],
            [update.client_id for update in updates],
            [update.batch_examples for update in updates],
        ],
        dtype=torch.int64,
    )
    floats = torch.tensor(
        [[update.loss for update in updates], [update.local_rate for update in updates]],
        dtype=torch.float32,
    )
    return (*integers.unbind(), *floats.unbind())
