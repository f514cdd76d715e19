"""The learner: the global model, and the one way in which it changes.

Legend: K updates of the round, in order of arrival; d parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unstale import flat
from unstale.learner import screen
from unstale.learner.updates import RoundUpdate
from unstale.learner.versions import VersionStore
from unstale.policies import Policy, UpdateBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round made.

    version: the new one. model_d: its model, [d] float32, never written to. weights_K: what each update weighed in
    the step. staleness: of each update, rounds. rate_factor: what the policy multiplied the learning rate by.
    overflowed: the step left the range of float32, so the version holds the same model as the one before.
    """

    version: int
    model_d: Tensor
    weights_K: tuple[float, ...]
    staleness: tuple[int, ...]
    rate_factor: float
    overflowed: bool

    @property
    def digest(self) -> str:
        """SHA-256 of the model in hex (`flat.digest`). Computed when asked for: it takes longer than the round."""
        return flat.digest(self.model_d)


class Learner:
    """Holds the global model and applies rounds to it. The same rounds in order give the same bits.

    Every version is a new tensor and is never written to afterwards, so an older one can still be sent or
    trained from. One thread applies rounds; `forget` may come from another one.
    """

    def __init__(
        self, model_d: Tensor, policy: Policy[Any], rate: float, *, keep_versions: bool = False
    ) -> None:
        """Start at version 0.

        model_d: [d] float32, any device; copied to the policy's. rate: eta, the server's effective learning
        rate, > 0. keep_versions: keep every version until it is forgotten, also when the policy needs none.
        """
        assert model_d.shape == (policy.dimension,), (tuple(model_d.shape), policy.dimension)
        assert model_d.dtype == torch.float32, model_d.dtype
        assert rate > 0, rate
        self.policy = policy
        self.rate = rate
        self.version = 0
        self.model_d = model_d.detach().to(policy.device, copy=True)
        self._versions: VersionStore | None = None
        if keep_versions or policy.needs_base_models:
            # One for each open task (clients), for each staged update (clients, and two blocks of at most as
            # many), the current one and the next.
            self._versions = VersionStore(limit=4 * policy.clients + 2)
            self._versions.add(0, self.model_d)

    @torch.no_grad()
    def apply_round(self, matrix_Kd: Tensor, updates: Sequence[RoundUpdate]) -> RoundResult:
        """Make the next version: w <- w - rate * rate_factor * direction.

        matrix_Kd: [K, d] float32, any device, not written to; row i is the pseudo-gradient of updates[i]. K =
        0 is a round that nobody contributed to. When finite updates add up to more than float32 holds, the
        model stays as it is and the result says so: what peers sent must neither stop the server nor turn the
        model into NaN.
        """
        assert matrix_Kd.shape == (len(updates), self.policy.dimension), tuple(matrix_Kd.shape)
        for update in updates:
            assert update.staleness == self.version - update.base_version, (
                f"{update} at version {self.version}"
            )
        step = self.policy.step(self._batch(matrix_Kd, updates))
        model_d = torch.sub(self.model_d, step.direction_d, alpha=self.rate * step.rate_factor)
        overflowed = screen.defect(model_d) is not None
        self.model_d = self.model_d if overflowed else model_d
        self.version += 1
        if self._versions is not None:
            self._versions.add(self.version, self.model_d)
        return RoundResult(
            version=self.version,
            model_d=self.model_d,
            weights_K=tuple(step.weights_K.tolist()),
            staleness=tuple(update.staleness for update in updates),
            rate_factor=step.rate_factor,
            overflowed=overflowed,
        )

    def base(self, version: int) -> Tensor:
        """The model of a version that is kept: [d] float32, not to be written to."""
        assert self._versions is not None, "this learner keeps no versions"
        return self._versions.get(version)

    def forget(self, version: int) -> None:
        """No update to come was computed from this version. Does nothing where none are kept."""
        if self._versions is not None:
            self._versions.forget(version)

    def state_dict(self) -> dict[str, Any]:
        """All that changes: version, model, versions kept, the policy's own state. A copy."""
        return {
            "version": self.version,
            "model_d": self.model_d.clone(),
            "versions": {} if self._versions is None else self._versions.state_dict(),
            "policy": self.policy.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of a learner made in the same way, to the bit."""
        self.version = state["version"]
        self.model_d = state["model_d"].to(self.policy.device, copy=True)
        if self._versions is not None:
            older = {
                v: w.to(self.policy.device, copy=True)
                for v, w in state["versions"].items()
                if v != self.version
            }
            self._versions.load_state_dict({**older, self.version: self.model_d})
        self.policy.load_state_dict(state["policy"])

    def _batch(self, matrix_Kd: Tensor, updates: Sequence[RoundUpdate]) -> UpdateBatch:
        base_models = None
        if self.policy.needs_base_models:
            base_models = tuple(self.base(update.base_version) for update in updates)
        # The copy need not be waited for: screening the new model waits for the device, before the caller may
        # give the matrix to somebody else.
        return UpdateBatch(
            version=self.version,
            matrix_Kd=matrix_Kd.to(self.policy.device, non_blocking=True),
            staleness_K=torch.tensor([update.staleness for update in updates], dtype=torch.int64),
            num_examples_K=torch.tensor([update.num_examples for update in updates], dtype=torch.int64),
            loss_K=torch.tensor([update.loss for update in updates], dtype=torch.float32),
            client_ids_K=torch.tensor([update.client_id for update in updates], dtype=torch.int64),
            model_d=self.model_d if self.policy.needs_base_models else None,
            base_models=base_models,
            rate=self.rate,
            local_rates_K=torch.tensor([update.local_rate for update in updates], dtype=torch.float32),
        )
