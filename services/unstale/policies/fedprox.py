"""FedProx: FedAvg over clients that are held near the model which they were sent."""

from unstale.policies.averaging import Averaging


class FedProx(Averaging):
    """The average of updates from clients that pay for moving away from the model they were sent.

        direction_d = sum_i p_i * g_i,   p as in FedAvg

    The method is in the local training `fedprox`, which adds mu * (w - w_b) to every gradient; the server is FedAvg's.
    Source: FedProx (Li et al., MLSys 2020), docs/methods/policies.md#fedprox
    """

    training = "fedprox"
    source = "FedProx (Li et al., MLSys 2020), docs/methods/policies.md#fedprox"
