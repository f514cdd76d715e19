"""FedAvg: the plain average of the round's updates, however old they are."""

from unstale.policies.averaging import Averaging


class FedAvg(Averaging):
    """The average of the updates, whatever their staleness.

        direction_d = sum_i p_i * g_i,   p_i = 1/K, or n_i / sum_j n_j for weighting="samples"

    g: rows of updates.matrix_Kd, float32, one device; not written to. n: num_examples_K. In synchronous rounds n_i
    weighs by default, as published; in the K-async loop everyone counts the same.
    Source: FedAvg (McMahan et al., AISTATS 2017), docs/methods/policies.md#fedavg
    """

    source = "FedAvg (McMahan et al., AISTATS 2017), docs/methods/policies.md#fedavg"
