"""Drops a share of the attempts to connect to a listening socket, by address, before the socket sees them.

On Linux, by a classic BPF program (SO_ATTACH_FILTER), for which no privilege is needed. It runs in the kernel for each
packet to the listening socket and looks at those that open a connection (SYN without ACK). A dropped attempt looks like
a lost packet to the other side, which tries again after 1 s and then ever later. Sockets that are accepted inherit the
program, which lets all their packets pass.

Instructions and offsets: Linux, Documentation/networking/filter.rst and include/uapi/linux/filter.h.
"""

import ctypes
import socket
import struct
import sys
from collections.abc import Mapping
from ipaddress import IPv4Address

from unstale.net import tcp

ATTACH = 26  # SO_ATTACH_FILTER; it replaces the program that was attached before
LOAD_WORD, LOAD_BYTE, AND, SHIFT_RIGHT = 0x20, 0x30, 0x54, 0x74
JUMP, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x05, 0x15, 0x35, 0x06
IP_HEADER = 0xFFF00000  # SKF_NET_OFF: an offset from here is in the header of IP, any other in that of TCP
RANDOM = 0xFFFFF038  # SKF_AD_OFF + SKF_AD_RANDOM: 32 random bits
FLAGS_AT, SYN, SYN_AND_ACK = 13, 0x02, 0x12
VERSION_AT, IPV4_SOURCE_AT, IPV6_SOURCE_AT = 0, 12, 8
PASS, DROP = (RETURN, 0, 0, 0xFFFFFFFF), (RETURN, 0, 0, 0)

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def program(shares: Mapping[str, float]) -> list[Instruction]:
    """The program that lets shares of attempts to connect pass.

    Args:
        shares: by address of IPv4, or the first 64 bits of IPv6 as `connections.site_of` writes them; 0 to 1.
    """
    four = [_of_ipv4(site, share) for site, share in shares.items() if ":" not in site]
    six = [_of_ipv6(site, share) for site, share in shares.items() if ":" in site]
    of_four = [instruction for block in four for instruction in block]
    return [
        (LOAD_BYTE, 0, 0, FLAGS_AT),
        (AND, 0, 0, SYN_AND_ACK),
        (JUMP_EQUAL, 1, 0, SYN),
        PASS,
        (LOAD_BYTE, 0, 0, IP_HEADER + VERSION_AT),
        (SHIFT_RIGHT, 0, 0, 4),
        (JUMP_EQUAL, 1, 0, 4),
        (JUMP, 0, 0, 2 + len(of_four)),
        (LOAD_WORD, 0, 0, IP_HEADER + IPV4_SOURCE_AT),
        *of_four,
        PASS,
        *(instruction for block in six for instruction in block),
        PASS,
    ]


def apply(fd: int, shares: Mapping[str, float]) -> None:
    """Drop attempts to connect to a listening socket from now on, and no others. OSError where that cannot be done.

    Args:
        fd: of the socket, which belongs to somebody else.
        shares: as in `program`; empty to let all pass.
    """
    if sys.platform != "linux":
        raise OSError("only Linux drops attempts to connect by address")
    with tcp.borrowed(fd) as listening:
        instructions = program(shares)
        packed = b"".join(struct.pack("=HBBI", *one) for one in instructions)
        memory = ctypes.create_string_buffer(packed, len(packed))
        listening.setsockopt(
            socket.SOL_SOCKET, ATTACH, struct.pack("@HP", len(instructions), ctypes.addressof(memory))
        )


def _of_ipv4(site: str, share: float) -> list[Instruction]:
    """With the address loaded: decide about this one, or go on with it loaded."""
    return [(JUMP_EQUAL, 0, 4, int(IPv4Address(site))), *_by_lot(share)]


def _of_ipv6(site: str, share: float) -> list[Instruction]:
    half = int(site.removesuffix("::"), 16)
    return [
        (LOAD_WORD, 0, 0, IP_HEADER + IPV6_SOURCE_AT),
        (JUMP_EQUAL, 0, 6, half >> 32),
        (LOAD_WORD, 0, 0, IP_HEADER + IPV6_SOURCE_AT + 4),
        (JUMP_EQUAL, 0, 4, half & 0xFFFFFFFF),
        *_by_lot(share),
    ]


def _by_lot(share: float) -> list[Instruction]:
    """Pass with a probability, else drop: four instructions."""
    return [(LOAD_WORD, 0, 0, RANDOM), (JUMP_AT_LEAST, 0, 1, min(int(share * 2**32), 2**32 - 1)), DROP, PASS]
