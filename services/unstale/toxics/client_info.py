"""Information about the clients of a run for scenarios."""

from collections.abc import Sequence
from typing import Protocol


class ClientInfo(Protocol):
    """The clients of one run. Their data is loaded on first use."""

    @property
    def clients(self) -> int:
        """Number of clients N; ids are 0 <= id < N."""
        ...

    @property
    def classes(self) -> int:
        """Number of classes of the data set."""
        ...

    def holders(self, label: int) -> Sequence[int]:
        """Clients with examples of a class, those with the most first, ties by id."""
        ...

    def smallest_class(self, client_id: int) -> int:
        """The smallest class label of a client's training examples."""
        ...
