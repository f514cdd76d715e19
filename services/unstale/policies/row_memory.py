"""What the policies that remember every client share: a row for each client, exchanged a few columns at a time.

Legend: N clients; L of them in this round, each once; K updates of the round; d parameters; c columns of one chunk.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from unstale.policies.policy import PolicyContext, UpdateBatch
from unstale.policies.weights import column_chunks


def latest_rows(client_ids_K: Tensor) -> dict[int, int]:
    """The row of the last update of each client, by client."""
    return {client: row for row, client in enumerate(client_ids_K.tolist())}


def host_copy(tensor: Tensor) -> Tensor:
    """A copy on the host, for `state_dict`, which is the same for memories on any device."""
    return tensor.to("cpu", copy=True)


def uploaded(indices: Sequence[int], where: torch.device) -> Tensor:
    """[n] int64 on a device; no wait for it."""
    return torch.tensor(indices, dtype=torch.int64).to(where, non_blocking=True)


def float64_zeros(context: PolicyContext) -> Tensor:
    """[d] float64 where the context allocates memories of all clients."""
    return context.allocate(1, 2 * context.dimension)[0].view(torch.float64)


class RowMemory:
    """The last update of every client: rows_Nd, float32 on the host or the policy's device, zeros at first."""

    def __init__(self, context: PolicyContext) -> None:
        self.rows_Nd = context.allocate(context.clients, context.dimension)
        self.device = self.rows_Nd.device

    def output(self, result_d: Tensor) -> Tensor:
        """The vector itself if it is on the memory's device, else memory of its shape there."""
        return result_d if result_d.device == self.device else torch.empty_like(result_d, device=self.device)

    def exchange(self, batch: UpdateBatch, latest: dict[int, int]) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Remember the round's updates; the memory holds them when the iterator is exhausted.

        latest: as `latest_rows` has it, which rows of the batch to remember. Gives, for each chunk of columns, the new
        rows and those that they replace, [L, c] float32 on the memory's device, in the order of `latest`, for reading.
        """
        new_Ld = batch.matrix_Kd.to(self.device)
        rows = list(latest.values())
        if rows != list(range(len(batch))):
            new_Ld = new_Ld.index_select(0, uploaded(rows, self.device))
        clients_L = uploaded(list(latest), self.device)
        for columns in column_chunks(new_Ld):
            yield columns, new_Ld[:, columns], self.rows_Nd[:, columns].index_select(0, clients_L)
        for client, new_d in zip(latest, new_Ld, strict=True):  # whole rows: half the time of chunks
            self.rows_Nd[client].copy_(new_d)
