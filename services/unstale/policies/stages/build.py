"""The stages that a configuration asks for, put around its policy."""

from typing import Any

from unstale.policies.policy import Policy
from unstale.policies.stages.clipping import Clipping, ClippingSettings
from unstale.policies.stages.server_optimiser import ServerOptimiser
from unstale.settings.learning import OptimiserSettings


def wrapped(
    policy: Policy[Any], *, clip_norm: float | None = None, optimiser: OptimiserSettings | None = None
) -> Policy[Any]:
    """The policy with norm clipping before it and a server optimiser after it, as far as they are asked for.

    clip_norm: > 0, in units of the updates. Without either it is the policy itself.
    """
    if clip_norm is not None:
        policy = Clipping(ClippingSettings(clip_norm=clip_norm), policy)
    if optimiser is not None and optimiser.name != "none":
        policy = ServerOptimiser(optimiser, policy)
    return policy
