"""State of clients between their tasks: tensors by name, which change when an update is accepted."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

PENDING_MAX = 16
"""Maximum of a client's updates that wait for a verdict, whose state is stored; more remove the oldest.

A client has one task at a time, so there are several only if verdicts were lost in transit, and tasks do not name the
accepted one.
"""


@dataclass(eq=False, slots=True)
class ClientState:
    """State of the clients, on the host. One thread at a time."""

    adds: bool = False  # the state of an accepted update is added to the kept one instead of replacing it
    _kept: dict[int, dict[str, Tensor]] = field(default_factory=dict, init=False)
    _pending: dict[int, dict[int, Mapping[str, Tensor]]] = field(default_factory=dict, init=False)
    _newest: dict[int, int] = field(default_factory=dict, init=False)  # task of the kept state, by client

    def put(self, client_id: int, number: int, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Store the state that an update leaves, until the verdict on it. Returns it on the host.

        number: of the client's task.
        """
        if not state:
            return state
        on_host = {key: tensor.to("cpu") for key, tensor in state.items()}
        pending = self._pending.setdefault(client_id, {})
        pending[number] = on_host
        if len(pending) > PENDING_MAX:
            del pending[next(iter(pending))]
        return on_host

    def keep(self, client_id: int, number: int) -> bool:
        """Make the state of an accepted update the client's. Returns whether it changed: not on a second call.

        State that replaces the kept one does so in the order of the tasks, also if verdicts overtake each other.
        """
        state = self._pending.get(client_id, {}).get(number, {})
        self.drop(client_id, number)
        if not self.adds and number < self._newest.get(client_id, 0):
            return False
        self._newest[client_id] = number
        for key, tensor in state.items():
            kept = self._kept.setdefault(client_id, {})
            adds = self.adds and key in kept
            kept[key] = kept[key] + tensor if adds else tensor  # not in place: callers of `kept` may reference it
        return bool(state)

    def drop(self, client_id: int, number: int) -> None:
        """Delete the stored state of an update that was not accepted."""
        pending = self._pending.get(client_id, {})
        pending.pop(number, None)
        if not pending:
            self._pending.pop(client_id, None)

    def kept(self, client_id: int) -> Mapping[str, Tensor]:
        """The state of a client after its accepted updates, by name: no copies, read-only."""
        return self._kept.get(client_id, {})

    def restore(self, client_id: int, kept: Mapping[str, Tensor], pending: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Restore the state of a client from an earlier process.

        kept: as from `kept`. pending: states of updates without a verdict, by task, oldest first.
        """
        self._kept[client_id] = dict(kept)
        newest = list(pending.items())[-PENDING_MAX:]
        if newest:
            self._pending[client_id] = dict(newest)
