"""Attacks by connections: many, slow and unfinished ones."""

import socket
from contextlib import ExitStack

from hostile import zmtp
from hostile.attacks.attack import Attack, Facts
from hostile.member import UnadmittedClient
from hostile.target import Target
from unstale_proto import codec
from unstale_proto.limits import FRAME_BYTES_MAX
from unstale_proto.messages import Hello

SILENT, GREETED, HANDSHAKES, DRIPPING, UNKNOWN = 1500, 400, 100, 66, 200
EMPTY_FRAMES, EMPTY_MESSAGES = 5_000_000, 4
ENDLESS_BYTES_MAX = 1_200_000_000
RECONNECTING = 400
UNFINISHED_HANDSHAKE = (
    zmtp.greeting("CURVE") + zmtp.long_frame_head(zmtp.COMMAND, FRAME_BYTES_MAX - 64) + bytes(FRAME_BYTES_MAX - 65)
)
PLAIN, KEYED = "plain", "keyed"


def silent_connections(target: Target) -> Facts:
    with zmtp.connections(target, target.port, target.count(SILENT)) as held:
        while target.is_active():
            target.wait(0.5)
        return {"connections": len(held), "closed": sum(map(zmtp.is_closed, held))}


def greeted_connections(target: Target) -> Facts:
    """Silent after the greeting of ZMTP, or without keys after the whole handshake."""
    words = zmtp.greeting("CURVE") if target.has_keys else zmtp.greeting("NULL") + zmtp.ready()
    with zmtp.connections(target, target.port, target.count(GREETED)) as held:
        for one in held:
            zmtp.send(one, words)
        while target.is_active():
            target.wait(0.5)
        return {"connections": len(held), "closed": sum(map(zmtp.is_closed, held))}


def unfinished_handshakes(target: Target) -> Facts:
    """A command of 4 MiB replaces the first one of CURVE, and its last byte is never sent."""
    taken = 0
    with zmtp.connections(target, target.port, target.count(HANDSHAKES)) as held:
        for one in held:
            one.settimeout(0.2)
            taken += zmtp.send(one, UNFINISHED_HANDSHAKE)
        while target.is_active():
            target.wait(0.5)
        return {"connections": len(held), "taken whole": taken, "closed": sum(map(zmtp.is_closed, held))}


def reconnecting_handshakes(target: Target) -> Facts:
    """As unfinished handshakes, and each cut connection reconnects at once."""
    count = target.count(RECONNECTING)
    return {"connections": zmtp.reconnect(target, target.port, count, UNFINISHED_HANDSHAKE)}


def reconnecting_silent(target: Target) -> Facts:
    """As silent connections, and each cut one reconnects at once."""
    return {"connections": zmtp.reconnect(target, target.port, target.count(SILENT))}


def unknown_keys(target: Target) -> Facts:
    """Clients with unadmitted keys."""
    refused: list[UnadmittedClient] = []
    with ExitStack() as stack:
        while target.is_active():
            if len(refused) < target.count(UNKNOWN):
                refused.append(stack.enter_context(UnadmittedClient(target)))
                target.wait(0.01)
            else:
                target.wait(0.5)
        return {"keys": len(refused), "admitted": sum(one.is_admitted for one in refused)}


def empty_frames(target: Target) -> Facts:
    """Messages of millions of frames without a byte, by clients that have joined."""
    words = bytes([zmtp.MORE, 0]) * 65536
    hello = codec.encode(Hello(client_id=target.client_ids[0], session="e" * 32))
    frames = messages = 0
    with ExitStack() as stack:
        while target.is_active():
            one = zmtp.joined_in_plain_text(target) if messages < EMPTY_MESSAGES else None
            if one is None:
                target.wait(0.2)
                continue
            stack.enter_context(one)  # closing with an unread answer would reset the connection and drop the sent bytes
            zmtp.send(one, bytes([0, len(hello)]) + hello)
            messages += 1
            left = target.count(EMPTY_FRAMES)
            while left > 0 and target.is_active() and zmtp.send(one, words):
                left -= 65536
                frames += 65536
            zmtp.send(one, bytes([0, 0]))
    return {"messages": messages, "frames": frames}


def tiny_frames(target: Target) -> Facts:
    """Endless messages of empty frames, from two clients: 64 bytes of memory for 2 on the wire."""
    words = bytes([zmtp.MORE, 0]) * 65536
    frames = cut = 0
    held: dict[int, socket.socket] = {}
    with ExitStack() as stack:
        while target.is_active():
            for client_id in target.client_ids:
                one = held.get(client_id) or zmtp.joined_in_plain_text(target)
                if one is None:
                    target.wait(0.2)
                    continue
                if client_id not in held:
                    held[client_id] = stack.enter_context(one)
                    hello = codec.encode(Hello(client_id=client_id, session=f"{client_id:032x}"))
                    zmtp.send(one, bytes([0, len(hello)]) + hello)
                    target.wait(0.2)
                if zmtp.send(one, words):
                    frames += 65536
                else:
                    del held[client_id]
                    cut += 1
    return {"frames": frames, "cut": cut}


def endless_message(target: Target) -> Facts:
    """One message of full frames, each with the flag that more follow."""
    frame = zmtp.long_frame_head(zmtp.MORE, FRAME_BYTES_MAX) + bytes(FRAME_BYTES_MAX)
    sent = cut = 0
    one = None
    while target.is_active() and sent < target.count(ENDLESS_BYTES_MAX):
        one = one or zmtp.joined_in_plain_text(target)
        if one is None:
            target.wait(0.2)
        elif zmtp.send(one, frame):
            sent += len(frame)
        else:
            one.close()
            one, cut = None, cut + 1
    while target.is_active():
        target.wait(0.5)
    if one is not None:
        one.close()
    return {"bytes": sent, "cut": cut}


def dripping_http(target: Target) -> Facts:
    """Requests over HTTP whose header is sent a byte at a time."""
    held: list[socket.socket] = []
    dripped = 0
    with ExitStack() as stack:
        while target.is_active():
            one = zmtp.connected(target, target.http_port) if len(held) < target.count(DRIPPING) else None
            if one is not None:
                held.append(stack.enter_context(one))
                zmtp.send(one, b"GET /healthz HTTP/1.1\r\nX-Drip: ")
                target.wait(0.01)  # for the listener's short queue
                continue
            dripped += sum(zmtp.send(one, b"a") for one in held)
            target.wait(0.5)
    return {"connections": len(held), "bytes dripped": dripped}


ATTACKS = (
    Attack(
        name="unknown-keys",
        about=f"{UNKNOWN} clients with a key each that is not admitted",
        scenes=(KEYED,),
        run=unknown_keys,
        none_of=("admitted",),
    ),
    Attack(
        name="silent-connections",
        about=f"{SILENT} TCP connections that say nothing, with 1,024 descriptors for the server",
        scenes=(PLAIN, KEYED),
        run=silent_connections,
    ),
    Attack(
        name="greeted-connections",
        about=f"{GREETED} connections that do the handshake and say nothing more",
        scenes=(PLAIN, KEYED),
        run=greeted_connections,
    ),
    Attack(
        name="unfinished-handshakes",
        about=f"{HANDSHAKES} handshakes of 4 MiB each but for their last byte, without a key",
        scenes=(KEYED,),
        run=unfinished_handshakes,
        memory_bytes_max=128 * 1024 * 1024,
    ),
    Attack(
        name="reconnecting-handshakes",
        about=f"{RECONNECTING} such handshakes, each of which comes again as soon as it is cut",
        scenes=(KEYED,),
        run=reconnecting_handshakes,
    ),
    Attack(
        name="reconnecting-silent",
        about=f"{SILENT} silent connections, each of which comes again as soon as it is cut",
        scenes=(PLAIN, KEYED),
        run=reconnecting_silent,
    ),
    Attack(name="empty-frames", about=f"messages of {EMPTY_FRAMES:,} empty frames", scenes=(PLAIN,), run=empty_frames),
    Attack(
        name="tiny-frames",
        about="messages of frames of no byte that never end, from two clients, against server.memory_bytes_max",
        scenes=("large",),
        run=tiny_frames,
        memory_bytes_max=2**40,
    ),
    Attack(
        name="endless-message",
        about=f"one message of frames of 4 MiB, up to {ENDLESS_BYTES_MAX / 1e9:g} GB",
        scenes=(PLAIN,),
        run=endless_message,
    ),
    Attack(
        name="dripping-http",
        about=f"{DRIPPING} HTTP requests that come a byte at a time",
        scenes=(PLAIN,),
        run=dripping_http,
    ),
)
