"""What stages share: a stage is a policy itself, around another one.

Legend: d parameters.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unstale.policies.policy import Policy, S


class Stage(Policy[S]):
    """A policy that calls another one, `inner`, and asks of the run what that one asks.

    Its state is the inner policy's, under `inner`, beside the stage's own.
    """

    _SAME = ("source", "loops", "memory", "training", "sends_extra", "once_a_cycle", "needs_base_models", "column_wise")

    def __init__(self, settings: S, inner: Policy[Any]) -> None:
        super().__init__(settings, inner.context)
        self.inner = inner
        for name in self._SAME:
            setattr(self, name, getattr(inner, name))

    @property
    def extra_d(self) -> Tensor | None:
        return self.inner.extra_d

    def give_away(self, direction_d: Tensor) -> bool:
        return super().give_away(direction_d) or self.inner.give_away(direction_d)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
