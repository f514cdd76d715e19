"""ROUTER and DEALER sockets with their options, and the reason for each."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import zmq

from unstale_client.errors import UserError
from unstale_client.net.keys import Identity
from unstale_proto import limits

LIBZMQ_OLDEST = (4, 3, 2)  # older ones have a remote stack overflow in CURVE and crash on malformed greetings
RECONNECT_S = 0.1  # at most; doubled with each retry
RECONNECT_S_MAX = 5.0
PINGS_PER_S = 250  # of the connections of one process; libzmq searches all timers of a process for each answer
PING_S_MAX = 16.0  # half of the shortest timeout
BACKLOG = 4096  # connections that wait to be accepted while thousands of clients start together
SEND_QUEUE = 64  # messages to one client: a few acks and one task, so a longer queue means that it does not read
SLOWEST_BYTES_PER_S = 128 * 1024  # 1 Mbit/s; connections on a slower link would be cut within a frame
CURVE_BYTES = 33  # that encryption adds to a frame: command 8, nonce 8, authenticator 16, flags 1
HEARTBEAT_TTL_S_MAX = 6553.0  # 16 bits, in tenths of a second
RECEIVE_QUEUE = 8  # messages from one peer that are read ahead: 32 MiB of chunks
_ZERO_COPY_RECV = 10  # an option of contexts without a name in pyzmq


def require_libzmq(version: tuple[int, int, int] | None = None) -> None:
    """Raise UserError if the libzmq of pyzmq is too old to be exposed to a network."""
    version = zmq.zmq_version_info() if version is None else version
    if version < LIBZMQ_OLDEST:
        raise UserError(
            f"libzmq {'.'.join(map(str, version))} is too old, expected {'.'.join(map(str, LIBZMQ_OLDEST))} or later; "
            "upgrade pyzmq"
        )


def new_context(sockets_max: int | None = None) -> zmq.Context[zmq.Socket[bytes]]:
    """A context whose connections copy messages below 8 KiB out of their receive buffer.

    By default such a message refers to the buffer: one that waits keeps 18 KiB, and its connection allocates another
    buffer. Larger messages are received in place in both cases.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with suppress(zmq.ZMQError):  # this libzmq does not have the option
        context.set(_ZERO_COPY_RECV, 0)
    if sockets_max is not None:
        context.set(zmq.MAX_SOCKETS, sockets_max)
    return context


def router(context: zmq.Context[zmq.Socket[bytes]], *, heartbeat_s: float, linger_s: float) -> zmq.Socket[bytes]:
    """The server's socket, not yet bound, in plain text unless a `ZapAuthenticator` protects it.

    ROUTER_MANDATORY: a message to an unknown peer is an error. ROUTER_HANDOVER stays off: any peer could take over
    another's connection by its routing id. HEARTBEAT_IVL 0: libzmq 4.3.5 aborts the process when a ping is due to a
    peer that vanished while its queue was full. Clients send the pings, with their time to live.
    """
    socket = context.socket(zmq.ROUTER)
    _common(socket, heartbeat_s=heartbeat_s, linger_s=linger_s)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    socket.setsockopt(zmq.BACKLOG, BACKLOG)
    return socket


def dealer(
    context: zmq.Context[zmq.Socket[bytes]], *, heartbeat_s: float, linger_s: float, identity: Identity | None = None
) -> zmq.Socket[bytes]:
    """A client's socket, not yet connected. identity: own key, and that of the server; None for plain text.

    IMMEDIATE: nothing is queued without a connection, so that polling for output detects one. RECONNECT_IVL: each
    socket has its own, at least half of the constants, so that not all clients of a server that restarts come at once.
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
    share = 0.5 + secrets.randbelow(1000) / 2000
    socket.setsockopt(zmq.RECONNECT_IVL, int(share * RECONNECT_S * 1000))
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, int(share * RECONNECT_S_MAX * 1000))
    return socket


def ping_s(heartbeat_s: float, connections: int) -> float:
    """The interval of pings of one connection in a process with so many, at least `heartbeat_s`."""
    return max(heartbeat_s, min(connections / PINGS_PER_S, PING_S_MAX))


def let_encrypted_frames_in(socket: zmq.Socket[bytes]) -> None:
    """libzmq counts the bytes that encryption adds to a frame."""
    socket.setsockopt(zmq.MAXMSGSIZE, limits.FRAME_BYTES_MAX + CURVE_BYTES)


def _common(socket: zmq.Socket[bytes], *, heartbeat_s: float, linger_s: float) -> None:
    """LINGER: time for unsent messages at the end. MAXMSGSIZE: a longer frame cuts the connection before it is read.

    ZMTP heartbeats detect half-open connections, which TCP would keep for hours. Only a whole frame answers one, so
    their timeout includes the time of the longest frame on a slow link.
    """
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
    """Bind, and return the address with its real port (`tcp://127.0.0.1:*` takes a free one). Raises UserError.

    key: configuration key of the address.
    """
    _allow_ipv6(socket, address)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        if error.errno == zmq.EADDRINUSE:
            raise UserError(
                f"{key} {address} is in use; stop the program that uses it, or choose another port"
            ) from None
        raise UserError(
            f"{key} {address!r} cannot be bound ({error.strerror.lower()}); expected tcp://HOST:PORT of this machine"
        ) from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect(socket: zmq.Socket[bytes], address: str, *, key: str = "client.server") -> None:
    """Start to connect; the server may start later. key: as in `bind`. Raises UserError."""
    _allow_ipv6(socket, address)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise UserError(
            f"{key} {address!r} is not an address ({error.strerror.lower()}); expected tcp://HOST:PORT"
        ) from None


def _allow_ipv6(socket: zmq.Socket[bytes], address: str) -> None:
    """For a name or an IPv6 address only: with it an IPv4 address would be shown as IPv6."""
    host = address.removeprefix("tcp://").rpartition(":")[0]
    socket.setsockopt(zmq.IPV6, int(not host.replace(".", "").isdecimal()))


def _contract_max(_: bytes) -> int:
    return limits.PAYLOAD_BYTES_MAX


def send(socket: zmq.Socket[bytes], header: bytes, frames: Sequence[memoryview]) -> bool:
    """Send a message, with uncopied payload frames. False if the socket takes none now."""
    try:
        socket.send(header, zmq.NOBLOCK | (zmq.SNDMORE if frames else 0))
    except zmq.Again:
        return False
    for index, frame in enumerate(frames, start=1):
        socket.send(frame, zmq.SNDMORE if index < len(frames) else 0, copy=False)
    return True


def receive(socket: zmq.Socket[bytes]) -> tuple[bytes, list[zmq.Frame]] | None:
    """Receive a message as header and uncopied payload frames; None if there is none."""
    try:
        header = socket.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    return header.bytes, _payload(socket, _contract_max, b"")[0] if header.more else []


class Received(NamedTuple):
    """A message that a ROUTER received."""

    route: zmq.Frame  # routing id, uncopied
    header: bytes
    frames: list[zmq.Frame]  # payload, uncopied
    dropped: int = 0  # number of further payload frames


def receive_routed(
    socket: zmq.Socket[bytes], *, payload_bytes_max: Callable[[bytes], int] = _contract_max
) -> Received | None:
    """Receive a message; None if there is none.

    payload_bytes_max: payload that a connection may send. One frame beyond that is kept, so that the size check fails,
    and the rest is dropped.
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
    """The payload frames, and the number of dropped ones. A single frame is kept without a call of
    `payload_bytes_max`.
    """
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
    """Drop the rest of a message. Returns the number of frames."""
    number = 1
    while socket.recv(copy=False).more:
        number += 1
    return number
