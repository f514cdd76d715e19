"""The last reconstruction of each client, on the host, with limited memory."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from unstale.compensators.inversion.reconstruction import Reconstruction


class WarmStarts:
    """Reconstructions by client. Beyond `bytes_max` the least recently inverted client is removed."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[int, Reconstruction] = OrderedDict()
        self.size_bytes = 0

    def put(self, client_id: int, reconstruction: Reconstruction) -> None:
        """Replace the reconstruction of a client. reconstruction: on the host."""
        self._drop(client_id)
        self._kept[client_id] = reconstruction
        self.size_bytes += reconstruction.size_bytes
        while self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._kept)))

    def get(self, client_id: int) -> Reconstruction | None:
        return self._kept.get(client_id)

    def clear(self) -> None:
        self._kept.clear()
        self.size_bytes = 0

    def _drop(self, client_id: int) -> None:
        if client_id in self._kept:
            self.size_bytes -= self._kept.pop(client_id).size_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def state_dict(self) -> list[dict[str, Any]]:
        """All reconstructions, the least recently inverted client first."""
        return [{"client": client_id, **kept.state_dict()} for client_id, kept in self._kept.items()]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        self.clear()
        for one in state:
            self.put(one["client"], Reconstruction.from_state(one))
