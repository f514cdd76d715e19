"""The limit of open files, which connections count against: often 1024, where a server may have 10,000 clients."""

import sys

from unstale.errors import UserError

SPARE = 256  # libraries, logs, threads' wake-up pipes, the HTTP port; half of it for connections of strangers
UNLIMITED = 2**31
FILES_KEPT = 128  # that connections may not use: the journal, the HTTP port and its 64 connections, logs


def allow_connections(connections: int, files_each: int) -> None:
    """Raise this process's limit to what the system allows; UserError when that is too low for so many connections.

    To all of it, because connections of strangers count, too.
    files_each: 1 for a connection to a bound socket, 2 for a socket that connects, which has a wake-up file too.
    """
    if sys.platform == "win32":
        return  # has no such limit
    import resource

    wanted = connections * files_each + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise UserError(
            f"{connections} connections need {wanted} open files and this system allows {hard}; "
            "raise the limit (ulimit -n) or host fewer clients in one process"
        )
    if soft != resource.RLIM_INFINITY:
        highest = max(wanted, soft) if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))


def connections_max() -> int:
    """Connections that a bound socket may have under the limit of open files of this process."""
    if sys.platform == "win32":
        return UNLIMITED
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else max(0, soft - FILES_KEPT)
