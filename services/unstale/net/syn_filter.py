"""Drops a share of the attempts to connect to a listening socket, by address, in the kernel.

On Linux, by a classic BPF program (SO_ATTACH_FILTER), which needs no privilege. It checks the packets that open a
connection (SYN without ACK). A dropped attempt looks like a lost packet, which the other side repeats after 1 s and
then at growing intervals. Accepted sockets inherit the program, which passes all their packets.

Instructions and offsets: Linux, Documentation/networking/filter.rst and include/uapi/linux/filter.h.
"""

import ctypes
import socket
import struct
import sys
from collections.abc import Mapping
from ipaddress import IPv4Address

from unstale.net import tcp

ATTACH = 26  # SO_ATTACH_FILTER; replaces the attached program
LOAD_WORD, LOAD_BYTE, AND, SHIFT_RIGHT = 0x20, 0x30, 0x54, 0x74
JUMP, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x05, 0x15, 0x35, 0x06
IP_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets from here are in the IP header, others in the TCP header
RANDOM = 0xFFFFF038  # SKF_AD_OFF + SKF_AD_RANDOM: 32 random bits
FLAGS_AT, SYN, SYN_AND_ACK = 13, 0x02, 0x12
VERSION_AT, IPV4_SOURCE_AT, IPV6_SOURCE_AT = 0, 12, 8
PASS, DROP = (RETURN, 0, 0, 0xFFFFFFFF), (RETURN, 0, 0, 0)

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def program(shares: Mapping[str, float]) -> list[Instruction]:
    """The program that passes shares (0 to 1) of attempts, by address as `connections.site_of` writes it."""
    ipv4 = [part for site, share in shares.items() if ":" not in site for part in _ipv4(site, share)]
    ipv6 = [part for site, share in shares.items() if ":" in site for part in _ipv6(site, share)]
    return [
        (LOAD_BYTE, 0, 0, FLAGS_AT),
        (AND, 0, 0, SYN_AND_ACK),
        (JUMP_EQUAL, 1, 0, SYN),
        PASS,
        (LOAD_BYTE, 0, 0, IP_HEADER + VERSION_AT),
        (SHIFT_RIGHT, 0, 0, 4),
        (JUMP_EQUAL, 1, 0, 4),
        (JUMP, 0, 0, 2 + len(ipv4)),
        (LOAD_WORD, 0, 0, IP_HEADER + IPV4_SOURCE_AT),
        *ipv4,
        PASS,
        *ipv6,
        PASS,
    ]


def apply(fd: int, shares: Mapping[str, float]) -> None:
    """Replace the program of a listening socket. Raises OSError where that is not possible.

    fd: of a socket that another library owns. shares: as in `program`; empty to pass all.
    """
    if sys.platform != "linux":
        raise OSError("only Linux drops attempts to connect by address")
    with tcp.borrowed(fd) as listening:
        instructions = program(shares)
        packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
        memory = ctypes.create_string_buffer(packed, len(packed))
        listening.setsockopt(socket.SOL_SOCKET, ATTACH, struct.pack("@HP", len(instructions), ctypes.addressof(memory)))


def _ipv4(site: str, share: float) -> list[Instruction]:
    """With the source address loaded: decide about this address, or continue with it loaded."""
    return [(JUMP_EQUAL, 0, 4, int(IPv4Address(site))), *_random(share)]


def _ipv6(site: str, share: float) -> list[Instruction]:
    prefix = int(site.removesuffix("::"), 16)
    return [
        (LOAD_WORD, 0, 0, IP_HEADER + IPV6_SOURCE_AT),
        (JUMP_EQUAL, 0, 6, prefix >> 32),
        (LOAD_WORD, 0, 0, IP_HEADER + IPV6_SOURCE_AT + 4),
        (JUMP_EQUAL, 0, 4, prefix & 0xFFFFFFFF),
        *_random(share),
    ]


def _random(share: float) -> list[Instruction]:
    """Four instructions that pass with a probability, and drop otherwise."""
    return [(LOAD_WORD, 0, 0, RANDOM), (JUMP_AT_LEAST, 0, 1, min(int(share * 2**32), 2**32 - 1)), DROP, PASS]
