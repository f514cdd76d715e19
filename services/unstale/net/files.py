"""The limit of open files, which connections count against: often 1024, where a server may have 10,000 clients."""

import sys

from unstale.errors import UserError

SPARE = 256  # libraries, logs, threads' wake-up pipes, the HTTP port


def allow_connections(connections: int, files_each: int) -> None:
    """Raise this process's limit so far that so many connections can be open; UserError when the system refuses.

    files_each: 1 for a connection to a bound socket, 2 for a socket that connects, which has a wake-up file too.
    """
    if sys.platform == "win32":
        return  # has no such limit
    import resource

    wanted = connections * files_each + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise UserError(
            f"{connections} connections need {wanted} open files and this system allows {hard}; "
            "raise the limit (ulimit -n) or host fewer clients in one process"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
