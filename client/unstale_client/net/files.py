"""The limit of open files, which connections count against: often 1024, where a server may have 10,000 clients."""

import sys

from unstale_client.errors import UserError

SPARE = 256  # libraries, logs, wake-up pipes of threads, the HTTP port; half of it for unknown connections
UNLIMITED = 2**31
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
