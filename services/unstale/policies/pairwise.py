"""What the policies that compare whole vectors share: lengths and inner products, made in passes over columns.

A pass takes a few columns at a time (`weights.column_chunks`) and makes everything that it can of them while they are
in the cache. The products of one chunk are float32, those of all chunks are added in float64: that is good to about
1e-7 of |a||b|, at the price of a read. Where a difference of products leaves fewer digits, `inner` gives all.

Legend: K updates of the round, in order of arrival; d parameters; c columns of one chunk.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from unstale.flat import on_host
from unstale.policies.weights import column_chunks

NO_DIRECTION = 1e-12
"""Two vectors whose lengths' product is at most this have cosine 0.

Source: docs/methods/README.md#numerical-conventions
"""

ROUNDING = 2.0**-22
"""A weighted sum shorter than this share of its terms is what float32 leaves of 0: it points nowhere."""

_BLOCK = 4096
"""Columns that `vector_norm` sums in float32 to 2e-7; over ten times as many it loses a digit."""

_CANCELLED = 0.1
"""Below this share of |a|^2 + |b|^2, |a + b|^2 is computed directly: the products leave too few digits of it."""


def read(*quantities: list[Tensor]) -> list[Tensor]:
    """Quantities that were computed for each chunk, each [chunks, ...] float64 on the CPU. One wait for the device."""
    return [each.to(torch.float64) for each in on_host(*(torch.stack(parts) for parts in quantities))]


def totals(*quantities: list[Tensor]) -> list[Tensor]:
    """The sums over the chunks of several quantities, as `total`. One wait for the device."""
    return [each.sum(0) for each in read(*quantities)]


def total(parts: list[Tensor]) -> Tensor:
    """The sum of a quantity over the chunks, float64 on the CPU."""
    return totals(parts)[0]


def squares(part_Kc: Tensor) -> Tensor:
    """|g_i|^2 over the columns of a chunk, [K] float32."""
    rows, columns = part_Kc.shape
    blocks = columns // _BLOCK
    blocks_Kbc = part_Kc[:, : blocks * _BLOCK].view(rows, blocks, _BLOCK)
    lengths_Kb: Tensor = torch.linalg.vector_norm(blocks_Kbc, dim=2)
    rest_K: Tensor = torch.linalg.vector_norm(part_Kc[:, blocks * _BLOCK :], dim=1)
    return lengths_Kb.square().sum(1) + rest_K.square()


def cosines(products: Tensor, lengths: Tensor) -> Tensor:
    """cos(a, b) from a . b and |a||b|; 0 where |a||b| <= 1e-12. Both float64, of one shape."""
    return torch.where(lengths > NO_DIRECTION, products / lengths, 0.0)


def cosines64(rows_Kd: Tensor, others_nd: Tensor) -> Tensor:
    """cos(a_i, b_j), [K, n] float64 on the CPU, in float64 throughout: several times as slow as in float32."""
    where = _float64_device(rows_Kd)
    products, rows, others = [], [], []
    for first in range(0, rows_Kd.shape[1], _BLOCK):
        rows_Kc = rows_Kd[:, first : first + _BLOCK].to(where, torch.float64)
        others_nc = others_nd[:, first : first + _BLOCK].to(where, torch.float64)
        products.append(rows_Kc @ others_nc.T)
        rows.append(rows_Kc.square().sum(1))
        others.append(others_nc.square().sum(1))
    products_Kn, rows_K, others_n = totals(products, rows, others)
    return cosines(products_Kn, (rows_K[:, None] * others_n).sqrt())


def inner(
    first_d: Tensor, second_d: Tensor | None = None, *, shift_d: Tensor | None = None, alpha: float = 0.0
) -> float:
    """(a + alpha * x) . b in float64 throughout, several times as slow as in float32; its own square without b.

    first_d (a), second_d (b), shift_d (x): [d] float32 on one device.
    """
    (products,) = read(inner_products(first_d, second_d, shift_d=shift_d, alpha=alpha))
    return float(in_order(products))


def inner_products(
    first_d: Tensor, second_d: Tensor | None = None, *, shift_d: Tensor | None = None, alpha: float = 0.0
) -> list[Tensor]:
    """The terms of `inner`, one for each chunk of columns, float64, on a device where it has such numbers."""
    where = _float64_device(first_d)
    products = []
    for columns in column_chunks(first_d[None]):
        left_c = first_d[columns].to(where, torch.float64)
        if shift_d is not None:
            left_c.add_(shift_d[columns].to(where, torch.float64), alpha=alpha)
        right_c = left_c if second_d is None else second_d[columns].to(where, torch.float64)
        products.append(torch.dot(left_c, right_c))
    return products


def in_order(values: Tensor) -> Tensor:
    """The sum of [n, ...] over n, from the first to the last; `Tensor.sum` adds, and so rounds, in another order."""
    result = torch.zeros_like(values[0])
    for value in values:
        result += value
    return result


def fused_squares(own_K: Tensor, along_K: Tensor, other_K: Tensor, alpha: float) -> tuple[Tensor, list[int]]:
    """|g_i + alpha * x_i|^2, [K] float64 on the CPU, and the rows where g and x nearly cancel: theirs are wrong.

    own_K: |g_i|. along_K: g_i . x_i. other_K: |x_i|.
    """
    scale_K = own_K.square() + (alpha * other_K).square()
    squares_K = scale_K + 2 * alpha * along_K
    # Not `<`: a product that float32 does not hold compares with nothing.
    return squares_K, (~(squares_K >= _CANCELLED * scale_K)).nonzero().flatten().tolist()


def fused_lengths(
    own_K: Tensor, along_K: Tensor, other_K: Tensor, alpha: float, vectors: Callable[[int], tuple[Tensor, Tensor]]
) -> tuple[Tensor, list[int]]:
    """|g_i + alpha * x_i|, [K] float64 on the CPU, and for which rows the products did not give it.

    own_K, along_K, other_K: as for `fused_squares`. vectors: gives g_i and x_i, for rows where they nearly cancel.
    """
    squares_K, cancelled = fused_squares(own_K, along_K, other_K, alpha)
    lengths_K = squares_K.sqrt()
    for i in cancelled:
        g_d, x_d = vectors(i)
        lengths_K[i] = math.sqrt(inner(g_d, shift_d=x_d, alpha=alpha))
    return lengths_K, cancelled


def gram(matrix_Kd: Tensor) -> Tensor:
    """G_ij = g_i . g_j, [K, K] float64 on the CPU, symmetric to the bit. One read of the matrix; it is not written to.

    In float64, because distances between rows are differences of these: at 1e-5 of a row's length float32 leaves no
    digit of them, and a row of 1e20 has no square. It costs 1.5 times as much as in float32.
    """
    rows = len(matrix_Kd)
    where = _float64_device(matrix_Kd)
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


def _float64_device(tensor: Tensor) -> torch.device:
    """Where to compute in float64: where the tensor lies, or on the host if there is none there."""
    return torch.device("cpu") if tensor.device.type == "mps" else tensor.device
