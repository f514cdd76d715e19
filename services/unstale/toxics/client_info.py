"""What a scenario may ask about the clients of a run, so that it can speak of those that hold a class."""

from collections.abc import Sequence
from typing import Protocol


class ClientInfo(Protocol):
    """The clients of one run. What is asked of their data is looked up only then."""

    @property
    def clients(self) -> int:
        """N: ids are 0 <= id < N."""
        ...

    @property
    def classes(self) -> int:
        """Classes of the data set."""
        ...

    def holders(self, label: int) -> Sequence[int]:
        """Clients that hold training examples of a class, those with the most first, equals by id."""
        ...

    def smallest_class(self, client_id: int) -> int:
        """The smallest class label of which a client holds training examples."""
        ...
