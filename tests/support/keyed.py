"""A client with a key, or without the required one."""

import zmq

from support.running import PATIENCE_S
from support.wire import RawClient
from unstale_client.net.keys import Identity


class KeyedClient(RawClient):
    """A client with a key, or without one. routing_id: chosen by the client."""

    def __init__(self, address: str, client_id: int, identity: Identity | None, routing_id: bytes = b"") -> None:
        self.client_id = client_id
        self.session = f"{client_id:032x}"
        self.address = address
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        if routing_id:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if identity is not None:
            assert identity.server is not None
            self.socket.curve_publickey = identity.public.encode()
            self.socket.curve_secretkey = identity.secret.encode()
            self.socket.curve_serverkey = identity.server.encode()
        self.socket.connect(address)

    def is_let_in(self) -> bool:
        """Wait for a connection; whether there is one."""
        return bool(self.socket.poll(PATIENCE_S * 1000, zmq.POLLOUT))

    def is_kept_out(self) -> bool:
        """Whether there is no connection now. Call it once the other side has counted a refusal."""
        return not self.socket.poll(0, zmq.POLLOUT)
