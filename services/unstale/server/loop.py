"""The protocol thread: one poll on the connections and a queue until the next timer is due, and nothing slow."""

from collections.abc import Callable
from dataclasses import dataclass

from unstale.gateway.port import Port
from unstale.server.commands import QueueItem
from unstale.server.protocol import ServerProtocol
from unstale_client.net.wakeable_queue import Ping, WakeableQueue


@dataclass(kw_only=True, eq=False)
class Loop:
    """Handles messages, results and timers until the run is over."""

    port: Port
    queue: WakeableQueue[QueueItem | Ping]
    protocol: ServerProtocol
    clock: Callable[[], float]

    def run(self, *, ended: Callable[[], None]) -> None:
        """Run until the protocol is over; call `ended` when it has an outcome. Re-raises the end of a thread."""
        while not self.protocol.is_over:
            self._turn()
            if self.protocol.outcome is not None:
                ended()

    def _turn(self) -> None:
        due_s = self.protocol.due_s
        timeout_ms = None if due_s is None else max(0, int((due_s - self.clock()) * 1000) + 1)
        if self.port.wait(self.queue.fileno(), timeout_ms):
            for item in self.queue.drain():
                if isinstance(item, Ping):
                    item.answered.set()
                else:
                    self.protocol.on_result(item)
        for message in self.port.receive():
            self.protocol.on_message(message.route, message.header, message.frames, key=message.key)
        self.protocol.flush(more_waits=self.port.more_waits)
        self.port.turned()
