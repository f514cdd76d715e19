"""A run over loopback sockets: a server and client processes, to its end."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

LIMIT_S = 600  # of one run, which fails after it
ERRORS = "errors.txt"
UNSTALE = (sys.executable, "-m", "unstale")


def run(
    folder: Path, of_the_run: Sequence[str], *, clients: int, of_the_clients: Sequence[str] = (), limit_s: int = LIMIT_S
) -> str:
    """Run to the end and return the server's output. of_the_run: its arguments. clients: in two processes.
    of_the_clients: their arguments. Raises RuntimeError when a process fails, or the run takes longer than limit_s.
    """
    with ExitStack() as stack:
        server = _start(stack, folder, "server", *of_the_run)
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        half = clients // 2
        shares = ((0, half), (half, clients - half))
        hosts = [
            _start(
                stack,
                folder,
                *("client", "--server", address, "--first", str(first), "--count", str(count)),
                *("--set", f"client.directory=clients-{first}", *of_the_clients),
            )
            for first, count in shares
            if count
        ]
        return _end_of(server, hosts, folder, limit_s)


def _end_of(
    server: "subprocess.Popen[str]", clients: Sequence["subprocess.Popen[str]"], folder: Path, limit_s: int
) -> str:
    """Output of the server until its end. Raises RuntimeError when a process fails."""
    for _ in range(limit_s):
        try:
            output, _ = server.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            output = None
        if any(process.poll() not in (None, 0) for process in (server, *clients)):
            break
        if output is not None:
            return output
    raise RuntimeError(f"the run did not end: {(folder / ERRORS).read_text()[-2000:]}")


def _start(stack: ExitStack, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    with (folder / ERRORS).open("a") as errors:
        process = subprocess.Popen(
            [*UNSTALE, *arguments],
            cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    stack.callback(_end, process)
    return process


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("UNSTALE_")}
