"""The processes of `unstale demo`, forked from one that has imported PyTorch.

Server and clients would import it at the same time, for more than half of the time to the first round on two cores.
"""

import json
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import IO, Any, Self, TypeAlias

import typer

from unstale.errors import UserError
from unstale_client.net.clock import now_s

GOODBYE_S = 30.0  # time for the next process to end after the result; then the others are terminated
AFTER_SERVER_S = 5.0  # the same when the server has ended: a client that missed the message never ends
KILL_S = 10.0  # from termination of a process to its kill


MODULE = "unstale.cli.demo_imports"  # imported before the first process is forked
# Metal and Accelerate do not work in forked processes.
CONTEXT = multiprocessing.get_context("forkserver") if sys.platform == "linux" else multiprocessing.get_context("spawn")
CONTEXT.set_forkserver_preload([MODULE])


def prepare() -> None:
    """Start the process that the others are forked from. It imports while this one continues, and ignores Ctrl-C."""
    if CONTEXT.get_start_method() == "forkserver":
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        forkserver.ensure_running()
        signal.signal(signal.SIGINT, handler)


class Process:
    """A child process that calls a function. Leaving its context terminates it.

    `events` receives each line that it prints, and the process itself when it has ended. Its standard input is a pipe
    that ends with this process. Ctrl-C in a terminal reaches this process alone, which terminates the others.

    Attributes:
        code: The exit code, or None while it runs.
    """

    def __init__(
        self, function: Callable[..., None], arguments: Sequence[str], environment: Mapping[str, str], events: "Events"
    ) -> None:
        self.code: int | None = None
        self._events = events
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in __exit__)
        their_input, self._input = CONTEXT.Pipe(duplex=False)
        output, their_output = CONTEXT.Pipe(duplex=False)
        their_errors = Connection(os.dup(self._errors.fileno()))
        self._output: IO[str] = os.fdopen(os.dup(output.fileno()))
        self._process = CONTEXT.Process(
            name=" ".join(["unstale", *arguments[:1]]),
            target=_call,
            args=(function, arguments, dict(environment), (their_input, their_output, their_errors)),
        )
        self._process.start()
        for descriptor in (their_input, output, their_output, their_errors):
            descriptor.close()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.code is None:
            self._process.terminate()
            self._thread.join(KILL_S)
        if self.code is None:
            self._process.kill()
        self._thread.join()
        for stream in (self._input, self._output, self._errors):
            stream.close()

    def close_input(self) -> None:
        """End its standard input."""
        self._input.close()

    def check(self) -> None:
        """Raise its UserError, or print its errors and exit with 1, if it has failed."""
        if not self.code:
            return
        self._errors.seek(0)
        errors = self._errors.read()
        messages = [line for line in errors.splitlines() if line.startswith("unstale: ")]
        if self.code == 2 and messages:
            raise UserError(messages[-1].removeprefix("unstale: "))
        print(f"{errors}unstale: a process of the demo ended with code {self.code}", file=sys.stderr)
        raise typer.Exit(1)

    def _follow(self) -> None:
        for line in self._output:
            self._events.put(line)
        self._process.join()
        self.code = self._process.exitcode
        self._events.put(self)


def command(*arguments: str) -> None:
    """Run a command of unstale, and exit."""
    from unstale.cli import main

    sys.exit(main.run(arguments))


def _call(
    function: Callable[..., None],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    standard: Sequence["Connection[Any, Any]"],
) -> None:
    """Call a function in this new process. standard: its input, output and errors."""
    os.setpgid(0, 0)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor.fileno(), number)
        descriptor.close()
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.set_start_method(None, force=True)  # that of this process is not for code of users
    function(*arguments)


Event: TypeAlias = str | Process | int
"""A line that a process printed, a process that has ended, or the number of a signal to this process."""
Events: TypeAlias = queue.SimpleQueue[Event]


def next_message(events: Events) -> dict[str, Any]:
    """Return the next JSON line. Raises as `check`."""
    while not isinstance(event := events.get(), str):
        check(event)
    message: dict[str, Any] = json.loads(event)
    return message


def check(event: Process | int) -> None:
    """Raise typer.Exit for a signal, and as `Process.check` for a process that failed."""
    if isinstance(event, int):
        raise typer.Exit(128 + event)
    event.check()


def wait_for_end(processes: Sequence[Process], events: Events) -> None:
    """Wait a limited time for the processes to end, of which the server is the first. Raises as `check`."""
    waits_until_s = now_s() + GOODBYE_S
    while any(process.code is None for process in processes):
        try:
            event = events.get(timeout=max(0.0, waits_until_s - now_s()))
        except queue.Empty:
            break
        if not isinstance(event, str):  # the injector still prints
            check(event)
            waits_until_s = now_s() + (GOODBYE_S if processes[0].code is None else AFTER_SERVER_S)
    for process in processes:
        process.check()
