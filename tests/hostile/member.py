"""A hostile client of the wire contract: it joins with or without a key and sends the messages of an attack."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import zmq

from hostile.target import Target
from support.keyed import KeyedClient
from support.wire import update_of
from unstale_proto import codec
from unstale_proto.messages import Ack, Heartbeat, Hello, Message, Task, Update, Welcome

HELLO_S = 1.0
HEARTBEAT_S = 0.3


class Member(KeyedClient):
    """One client id. Every wait is bounded by the time of the attack; its result is then None."""

    def __init__(self, target: Target, place: int) -> None:
        """place: of the client id in `Target.client_ids`."""
        super().__init__(target.address, target.client_ids[place], target.identities[place])
        self.target = target
        self.welcome: Welcome | None = None
        self.heard: int | None = None
        self.verdicts: dict[str, int] = {}
        self._number = 0

    def send(self, message: Message, frames: Sequence[bytes] = ()) -> bool:
        """Send a message if a connection accepts it now. Returns whether it did."""
        return self.send_bytes(codec.encode(message), *frames)

    def send_bytes(self, *frames: bytes) -> bool:
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def next(self, seconds: float) -> tuple[Message, list[bytes]] | None:
        """The next message within this time, with its payload."""
        if not self.socket.poll(max(0, int(seconds * 1000))):
            return None
        header, *frames = self.socket.recv_multipart()
        message = codec.decode(header)
        if isinstance(message, Welcome):
            self.welcome = message
        elif isinstance(message, Heartbeat):
            self.heard = message.number
        elif isinstance(message, Ack):
            key = message.first_outcome if message.reason is None else str(message.reason)
            self.verdicts[key] = self.verdicts.get(key, 0) + 1
        return message, frames

    def join(self) -> bool:  # type: ignore[override]
        """Send hellos until a welcome arrives. Returns whether one did."""
        self.welcome = None
        while self.welcome is None and self.target.is_active():
            self.send(Hello(client_id=self.client_id, session=self.session))
            self.next(HELLO_S)
        return self.welcome is not None

    def beat(self, **fields: Any) -> bool:
        """Send a heartbeat. fields: replace those of a client without losses."""
        self._number += 1
        return self.send(Heartbeat(**{"number": self._number, "version": 0, "heard": self.heard, **fields}))

    def next_task(self) -> tuple[Task, list[bytes]] | None:
        """The next task with its model; None after the end of the attack. Rejoins after an exclusion."""
        while self.target.is_active():
            found = self.next(HEARTBEAT_S)
            if found is None:
                if self.welcome is None:
                    self.join()
                else:
                    self.beat()
            elif isinstance(found[0], Task):
                return found[0], found[1]
            elif found[0].type in ("error", "stop"):
                self.welcome = None if _excludes(found[0]) else self.welcome
        return None

    @property
    def dimension(self) -> int:
        """Parameters of the model, d."""
        assert self.welcome is not None
        return sum(int(np.prod(spec.shape)) for spec in self.welcome.tensors)

    def update(self, task: Task, **changes: Any) -> Update:
        """A valid header for a delta, except for the changes."""
        return update_of(task, **{"kind": "delta", "steps": 1, "num_examples": 8, **changes})


class UnadmittedClient(KeyedClient):
    """A client with an unadmitted key, which has the public key of the server."""

    def __init__(self, target: Target) -> None:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        known = target.identities[0]
        assert known is not None, "a client with an unadmitted key requires a server with keys"
        super().__init__(target.address, target.client_ids[0], replace(known, public=public, secret=secret))

    @property
    def is_admitted(self) -> bool:
        """Whether there is a connection now."""
        return not self.is_kept_out()


def _excludes(message: Message) -> bool:
    return message.type == "stop" or str(getattr(message, "reason", "")) in ("hello-first", "quarantined")


@contextmanager
def members(target: Target, count: int | None = None) -> Iterator[list[Member]]:
    """Joined clients, one for each of the first `count` hostile ids; None for all of them."""
    with ExitStack() as stack:
        places = range(len(target.client_ids) if count is None else count)
        yield [member for place in places if (member := stack.enter_context(Member(target, place))).join()]
