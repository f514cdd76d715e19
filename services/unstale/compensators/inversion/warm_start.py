"""What was reconstructed of each client last, kept on the host, within a bound."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from unstale.compensators.inversion.reconstruction import Reconstruction


class WarmStarts:
    """By client. Beyond `bytes_max` the client that was inverted longest ago goes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[int, Reconstruction] = OrderedDict()
        self.size_bytes = 0

    def put(self, client_id: int, reconstruction: Reconstruction) -> None:
        """Keep it in place of what there was of this client. reconstruction: on the host."""
        self._drop(client_id)
        self._kept[client_id] = reconstruction
        self.size_bytes += reconstruction.size_bytes
        while self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._kept)))

    def get(self, client_id: int) -> Reconstruction | None:
        """What is kept of a client."""
        return self._kept.get(client_id)

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
        self.size_bytes = 0

    def _drop(self, client_id: int) -> None:
        before = self._kept.pop(client_id, None)
        if before is not None:
            self.size_bytes -= before.size_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def state_dict(self) -> list[dict[str, Any]]:
        """The client that was inverted longest ago first."""
        return [{"client": client_id, **kept.state_dict()} for client_id, kept in self._kept.items()]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Keep exactly these."""
        self.clear()
        for one in state:
            self.put(one["client"], Reconstruction.from_state(one))
