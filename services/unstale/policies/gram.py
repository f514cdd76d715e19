"""What the policies that compare whole updates share: all products between the rows of a round.

Legend: K updates of the round, in order of arrival; d parameters; c columns of one chunk.
"""

import torch
from torch import Tensor

from unstale.policies.weights import column_chunks


def gram(matrix_Kd: Tensor) -> Tensor:
    """G_ij = g_i . g_j, [K, K] float64 on the CPU, symmetric to the bit. One read of the matrix; it is not written to.

    In float64, because distances between rows are differences of these: at 1e-5 of a row's length float32 leaves no
    digit of them, and a row of 1e20 has no square. It costs 1.5 times as much as in float32.
    """
    rows = len(matrix_Kd)
    where = "cpu" if matrix_Kd.device.type == "mps" else matrix_Kd.device  # mps has no float64
    total_KK = torch.zeros(rows, rows, dtype=torch.float64, device=where)
    with torch.no_grad():
        for chunk in column_chunks(matrix_Kd):
            chunk_Kc = matrix_Kd[:, chunk].to(where, torch.float64)
            total_KK.addmm_(chunk_Kc, chunk_Kc.T)
    total_KK = total_KK.cpu()
    return (total_KK + total_KK.T) / 2


def squared_distances(matrix_Kd: Tensor) -> Tensor:
    """|g_i - g_j|^2, [K, K] float64 on the CPU, symmetric to the bit, 0 on the diagonal, never below 0.

    Good to 1e-4 of the distance for rows that are 1e-5 of their length apart. No row is taken from the others first: a
    wild one would spoil what is known of all.
    """
    products_KK = gram(matrix_Kd)
    squares_K = products_KK.diagonal()
    return (squares_K[:, None] + squares_K[None, :] - 2 * products_KK).clamp(min=0).fill_diagonal_(0)
