"""ROUTER and DEALER sockets with every option that matters set, each with its reason."""

from collections.abc import Callable
from typing import NamedTuple

import zmq

from unstale.errors import UserError
from unstale.net.keys import Identity
from unstale_proto import limits

LIBZMQ_OLDEST = (4, 3, 2)  # older ones have a remote stack overflow in CURVE and crash on malformed greetings
RECONNECT_S = 0.1  # first retry; doubled up to the next, so that 10,000 clients do not knock at once
RECONNECT_S_MAX = 5.0
BACKLOG = 4096  # connections that may wait to be accepted while thousands of clients start together
SEND_QUEUE = (
    64  # messages to one client; it is owed a few acks and one task, so more means that it is not reading
)
SLOWEST_BYTES_PER_S = (
    128 * 1024
)  # 1 Mbit/s; on a link slower than that, connections would be cut in mid-frame
CURVE_BYTES = 33  # that encryption adds to a frame: command 8, nonce 8, authenticator 16, flags 1
HEARTBEAT_TTL_S_MAX = 6553.0  # the protocol counts it in tenths of a second, in 16 bits
RECEIVE_QUEUE = (
    8  # messages from one peer that are read ahead: 32 MiB from one that sends chunks without credit
)


def require_libzmq(version: tuple[int, int, int] | None = None) -> None:
    """Raise UserError when the libzmq underneath pyzmq is too old to be exposed to a network."""
    found = version if version is not None else zmq.zmq_version_info()
    if tuple(found) < LIBZMQ_OLDEST:
        raise UserError(
            f"libzmq {'.'.join(map(str, found))} is too old, expected {'.'.join(map(str, LIBZMQ_OLDEST))} or later; "
            "upgrade pyzmq"
        )


def router(
    context: zmq.Context[zmq.Socket[bytes]], *, heartbeat_s: float, linger_s: float
) -> zmq.Socket[bytes]:
    """The server's socket, not yet bound. A `ZapAuthenticator` makes it one for keys.

    ROUTER_MANDATORY: a message to nobody is an error instead of vanishing. ROUTER_HANDOVER stays off: anyone could take
    over another's connection by its routing id, which no key belongs to; a client that comes back says hello.
    HEARTBEAT_IVL 0: libzmq 4.3.5 aborts the process when a ping of ours is due to a peer that vanished while our queue
    for it was full. Clients ping us, and what they send says for how long they live.
    """
    socket = context.socket(zmq.ROUTER)
    _common(socket, heartbeat_s=heartbeat_s, linger_s=linger_s)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    socket.setsockopt(zmq.BACKLOG, BACKLOG)
    return socket


def dealer(
    context: zmq.Context[zmq.Socket[bytes]],
    *,
    heartbeat_s: float,
    linger_s: float,
    identity: Identity | None = None,
) -> zmq.Socket[bytes]:
    """A client's socket, not yet connected. identity: who we are, and who the server is; None for plain text.

    IMMEDIATE: nothing is queued for a server that is not there, so that a poll for output tells when it is.
    """
    socket = context.socket(zmq.DEALER)
    _common(socket, heartbeat_s=heartbeat_s, linger_s=linger_s)
    if identity is not None:
        assert identity.server is not None
        socket.curve_publickey = identity.public.encode()
        socket.curve_secretkey = identity.secret.encode()
        socket.curve_serverkey = identity.server.encode()
        let_encrypted_frames_in(socket)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, int(RECONNECT_S * 1000))
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, int(RECONNECT_S_MAX * 1000))
    return socket


def let_encrypted_frames_in(socket: zmq.Socket[bytes]) -> None:
    """Frames of full size come with what encryption adds, and libzmq measures them so."""
    socket.setsockopt(zmq.MAXMSGSIZE, limits.FRAME_BYTES_MAX + CURVE_BYTES)


def _common(socket: zmq.Socket[bytes], *, heartbeat_s: float, linger_s: float) -> None:
    """LINGER: closing waits this long for what is still unsent, then lets go. MAXMSGSIZE: a longer frame cuts the
    connection before it is read into memory. ZMTP heartbeats find half-open links that TCP would keep for hours; only
    a whole frame answers one, so their timeout leaves time for the longest on a slow link."""
    timeout_s = max(3 * heartbeat_s, limits.FRAME_BYTES_MAX / SLOWEST_BYTES_PER_S)
    socket.setsockopt(zmq.LINGER, int(linger_s * 1000))
    socket.setsockopt(zmq.MAXMSGSIZE, limits.FRAME_BYTES_MAX)
    socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
    socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE)
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(heartbeat_s * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(timeout_s * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TTL, int(min(timeout_s, HEARTBEAT_TTL_S_MAX) * 1000))
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)


def bind(socket: zmq.Socket[bytes], address: str, *, key: str = "server.address") -> str:
    """Bind and return the address with the port that was really taken (`tcp://127.0.0.1:*` takes a free one).

    key: of the configuration, that holds the address. Raises UserError.
    """
    _allow_ipv6(socket, address)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        if error.errno == zmq.EADDRINUSE:
            raise UserError(
                f"{key} {address} is in use; stop what listens there or name another port"
            ) from None
        raise UserError(
            f"{key} {address!r} cannot be bound ({error.strerror.lower()}); "
            "expected tcp://HOST:PORT of this machine"
        ) from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect(socket: zmq.Socket[bytes], address: str, *, key: str = "client.server") -> None:
    """Start connecting; the server need not be there yet. key: as in `bind`."""
    _allow_ipv6(socket, address)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise UserError(
            f"{key} {address!r} is not an address ({error.strerror.lower()}); expected tcp://HOST:PORT"
        ) from None


def _allow_ipv6(socket: zmq.Socket[bytes], address: str) -> None:
    """Only for an address that is one, or a name: an IPv4 address would be written as IPv6 everywhere."""
    host = address.removeprefix("tcp://").rpartition(":")[0]
    socket.setsockopt(zmq.IPV6, int(not host.replace(".", "").isdecimal()))


def _as_the_contract_allows(_: bytes) -> int:
    return limits.PAYLOAD_BYTES_MAX


def receive(socket: zmq.Socket[bytes]) -> tuple[bytes, list[zmq.Frame]] | None:
    """One message, or None when there is none: header, payload frames uncopied."""
    try:
        header = socket.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    return header.bytes, _payload(socket, _as_the_contract_allows, b"")[0] if header.more else []


class Received(NamedTuple):
    """A message that a ROUTER took in. route: the connection's routing id, received uncopied. frames: payload, too.
    dropped: further payload frames, which were not kept."""

    route: zmq.Frame
    header: bytes
    frames: list[zmq.Frame]
    dropped: int = 0


def receive_routed(
    socket: zmq.Socket[bytes], *, payload_bytes_max: Callable[[bytes], int] = _as_the_contract_allows
) -> Received | None:
    """One message, or None when there is none.

    payload_bytes_max: how much payload a connection may send. Of more than that one frame is kept, so that its size is
    found to be wrong, and the rest let go. (libzmq itself gathers the whole message first: that a stranger can make it
    do so is for authentication to end.)
    """
    try:
        route = socket.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    if not route.more:
        return Received(route, b"", [])
    header = socket.recv(copy=False)
    frames, dropped = _payload(socket, payload_bytes_max, route.bytes) if header.more else ([], 0)
    return Received(route, header.bytes, frames, dropped)


def _payload(
    socket: zmq.Socket[bytes], payload_bytes_max: Callable[[bytes], int], route: bytes
) -> tuple[list[zmq.Frame], int]:
    """What comes behind the header, and the number of frames that were dropped. payload_bytes_max: of this route; the
    frame that goes beyond it is the last one kept. It is not asked about a single frame, which is kept in any case."""
    frame = socket.recv(copy=False)
    frames = [frame]
    if not frame.more:
        return frames, 0
    left_bytes = payload_bytes_max(route) - len(frame)
    while frame.more and left_bytes >= 0 and len(frames) <= limits.FRAMES_MAX:
        frame = socket.recv(copy=False)
        frames.append(frame)
        left_bytes -= len(frame)
    return frames, drop_rest(socket) if frame.more else 0


def drop_rest(socket: zmq.Socket[bytes]) -> int:
    """Read the rest of a message and keep nothing of it. Returns the number of frames."""
    number = 1
    while socket.recv(copy=False).more:
        number += 1
    return number
