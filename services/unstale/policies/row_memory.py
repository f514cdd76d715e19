"""What the policies that remember every client share: a row for each client, exchanged a few columns at a time.

Legend: N clients; L of them in this round, each once; K updates of the round; d parameters; c columns of one chunk.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from unstale.policies.policy import PolicyContext, UpdateBatch
from unstale.policies.weights import column_chunks


def latest_rows(client_ids_K: Tensor) -> dict[int, int]:
    """The row of the last update of each client, by client."""
    return {client: row for row, client in enumerate(client_ids_K.tolist())}


def host_like(vector_d: Tensor) -> Tensor:
    """The vector itself where it lies on the host; else as much memory there."""
    return vector_d if vector_d.device.type == "cpu" else torch.empty_like(vector_d, device="cpu")


def float64_zeros(context: PolicyContext) -> Tensor:
    """[d] float64 on the host, where the context keeps what is too large for the device."""
    return context.allocate(1, 2 * context.dimension)[0].view(torch.float64)


class RowMemory:
    """The last update of every client: rows_Nd, float32 on the host, zeros at first."""

    def __init__(self, context: PolicyContext) -> None:
        self.rows_Nd = context.allocate(context.clients, context.dimension)

    def exchange(self, batch: UpdateBatch, latest: dict[int, int]) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Remember the round's updates; the memory holds them when the iterator is exhausted.

        latest: as `latest_rows` has it, which rows of the batch to remember. Gives, for each chunk of columns, the new
        rows and those that they replace, [L, c] float32 on the host, in the order of `latest`, for reading.
        """
        matrix_Kd = batch.matrix_Kd.cpu()
        rows = list(latest.values())
        new_Ld = matrix_Kd if rows == list(range(len(batch))) else matrix_Kd[rows]
        clients_L = torch.tensor(list(latest), dtype=torch.int64)
        for columns in column_chunks(new_Ld):
            yield columns, new_Ld[:, columns], self.rows_Nd[:, columns].index_select(0, clients_L)
        for client, new_d in zip(latest, new_Ld, strict=True):  # whole rows: half the time of chunks
            self.rows_Nd[client].copy_(new_d)
