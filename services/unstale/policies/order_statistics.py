"""What the policies that look at one coordinate at a time share: the mean of the middle values of each column.

Legend: K updates of the round, in order of arrival; d parameters; c columns of one chunk.
"""

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from unstale.policies.weights import uniform, weighted_sum

WIDTH_ON_CPU, WIDTH_ELSEWHERE = 2**14, 2**20
"""Columns at a time: few enough that K rows of them stay in cache, enough that each call does some work."""


def middle_mean(matrix_Kd: Tensor, cut: int, out_d: Tensor) -> Tensor:
    """In each column, the mean of what is left without the `cut` smallest and the `cut` largest values: into out_d.

    matrix_Kd: float32, finite, not written to; zeros result when it has no row. cut: >= 0, 2 * cut < K.
    """
    rows, columns = matrix_Kd.shape
    width = WIDTH_ON_CPU if matrix_Kd.device.type == "cpu" else WIDTH_ELSEWHERE
    with torch.no_grad():
        for first in range(0, columns, width):
            chunk_Kc = matrix_Kd[:, first : first + width]
            middle_Mc = _ordered(chunk_Kc)[cut : rows - cut] if cut else chunk_Kc
            weighted_sum(middle_Mc, uniform(len(middle_Mc)), out_d=out_d[first : first + width])
    return out_d


def _ordered(chunk_Kc: Tensor) -> Tensor:
    """A copy with each column sorted from its smallest value to its largest.

    By a sorting network over whole rows, ten times as fast here as sorting many short columns.
    """
    spare_c, *rows = torch.cat((chunk_Kc[:1], chunk_Kc)).unbind()
    for i, j in _network(len(rows)):
        torch.minimum(rows[i], rows[j], out=spare_c)
        torch.maximum(rows[i], rows[j], out=rows[j])
        rows[i], spare_c = spare_c, rows[i]
    return torch.stack(rows)


@cache
def _network(count: int) -> tuple[tuple[int, int], ...]:
    """Which pairs of `count` places to put into order, one after another, so that all are in the end."""
    return tuple(_merge_exchange(count))


def _merge_exchange(count: int) -> Iterator[tuple[int, int]]:
    """Batcher's merge exchange: Knuth, The Art of Computer Programming, 5.2.2, algorithm M, with its p, q, r, d."""
    top = 1 << max((count - 1).bit_length() - 1, 0)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            yield from ((i, i + d) for i in range(count - d) if i & p == r)
            if q == p:
                break
            q, r, d = q // 2, p, q - p
        p //= 2
