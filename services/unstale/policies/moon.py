"""MOON: FedAvg over clients whose features are drawn to the global model's and away from their own old ones."""

from unstale.policies.averaging import Averaging


class Moon(Averaging):
    """The average of updates from clients that train with a contrastive loss against their own last model.

        direction_d = sum_i p_i * g_i,   p as in FedAvg

    The method is in the local training `moon`; the server is FedAvg's.
    Source: MOON (Li et al., CVPR 2021), docs/methods/policies.md#moon
    """

    training = "moon"
    source = "MOON (Li et al., CVPR 2021), docs/methods/policies.md#moon"
