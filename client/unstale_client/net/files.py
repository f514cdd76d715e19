"""Limits of the system on connections: open files, often 1024 where a server may have 10,000 clients, and others."""

import sys
from contextlib import suppress
from logging import Logger
from math import isqrt
from pathlib import Path

from unstale_client.errors import UserError

SPARE = 256  # libraries, logs, wake-up pipes of threads, the HTTP port; half of it for unknown connections
UNLIMITED = 2**31
SYSCTL = Path("/proc/sys")  # settings of the Linux kernel
FILES_KEPT = 128  # not for connections: the journal, the HTTP port and its 64 connections, logs


def allow_connections(connections: int, files_each: int) -> None:
    """Raise this process's limit to the system's, because unknown connections count too.

    Raises UserError if that is too low. files_each: 1 for connections to a bound socket, 2 for sockets that connect,
    which have a wake-up file too.
    """
    if sys.platform == "win32":
        return
    import resource

    needed = connections * files_each + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"{connections} connections need {needed} open files, and this system allows {hard}; "
            "raise the limit (ulimit -n) or host fewer clients in one process"
        )
    if soft != resource.RLIM_INFINITY:
        highest = max(needed, soft) if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))


def connections_max() -> int:
    """Connections that a bound socket may have under this process's limit of open files."""
    if sys.platform == "win32":
        return UNLIMITED
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else max(0, soft - FILES_KEPT)


def share_of_one(connections: int, processes: int) -> int:
    """Connections that one of several processes may get, where the system draws a process for each at random."""
    share = -(-connections // max(1, processes))
    return min(connections, share + 4 * isqrt(share)) if processes > 1 else share  # by at most 4 standard deviations


def backlog_shortage(connections: int, backlog: int) -> str | None:
    """A warning where fewer connections may wait to be accepted than come at once; None where there is room.

    connections: to one listening socket. backlog: that it asks the system for.
    """
    needed = min(connections, backlog)
    allowed = _numbers("net.core.somaxconn")
    if not allowed or allowed[0] >= needed:
        return None
    return (
        f"net.core.somaxconn is {allowed[0]}, but {connections} clients may connect at once, and those without a place "
        f"try again after a second or more; set it to {needed} or more"
    )


def port_shortage(connections: int) -> str | None:
    """A warning where this machine has fewer ports than its connections to one server; None where it has enough."""
    first_and_last = _numbers("net.ipv4.ip_local_port_range")
    ports = first_and_last[-1] - first_and_last[0] + 1 if first_and_last else connections
    if ports >= connections:
        return None
    return (
        f"net.ipv4.ip_local_port_range has {ports} ports, but {connections} clients need one each, and the others "
        "cannot connect; widen it, or host fewer clients on one machine"
    )


def warn(log: Logger, shortage: str | None) -> None:
    """Log a shortage, if there is one."""
    if shortage is not None:
        log.warning("%s", shortage)


def _numbers(name: str) -> list[int]:
    """Values of a setting of the Linux kernel; none where the system does not have it."""
    with suppress(OSError, ValueError):
        return [int(word) for word in (SYSCTL / name.replace(".", "/")).read_text().split()]
    return []
