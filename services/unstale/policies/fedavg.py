"""FedAvg: the plain average of the round's updates, however old they are."""

from unstale.policies.averaging import Averaging


class FedAvg(Averaging):
    """The average of the updates, whatever their staleness.

        direction_d = sum_i p_i * g_i,   p_i = 1/K, or n_i / sum_j n_j for weighting="samples"

    g: rows of updates.matrix_Kd, float32, one device; not written to. n: num_examples_K. In synchronous rounds n_i
    weighs by default, as published; in the K-async loop everyone counts the same.
    Source: algorithms.md 2.1.
    """

    source = "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks; algorithms.md 2.1"
