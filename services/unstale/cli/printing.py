"""How a run is told to a person, line by line, or to a program, as JSON lines."""

import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from typing import Annotated, Any, Self

import typer

from unstale.metrics.progress import Outcome, Progress

log = logging.getLogger("unstale")

WAITING_MAX = 10_000  # progress lines for a reader that is slow, some MB; what comes then is left out

EndsWithInput = Annotated[bool, typer.Option("--ends-with-input", hidden=True)]
"""Stop at the end of standard input. For a program that starts this one with a pipe there: should it die, in whatever
way, the pipe ends, and nothing that it started is left running."""


def line(text: str) -> None:
    """Print a line at once. A run goes on without a standard output that fails, closed by `| head -1` perhaps."""
    try:
        print(text, flush=True)
    except OSError as error:
        log.warning("standard output: %s; nothing more is printed", (error.strerror or str(error)).lower())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_line(event: str, facts: Mapping[str, Any]) -> None:
    """One JSON object on a line of standard output. What is not a number is null."""
    line(json.dumps({"event": event, **_plain(facts)}))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(below) for name, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def progress(now: Progress, *, as_json: bool) -> None:
    """How the run stands."""
    if as_json:
        json_line("progress", asdict(now))
        return
    clients = ", ".join(f"{count} {state}" for state, count in now.clients.items() if count)
    line(
        f"version {now.version:>5}/{now.rounds}  accuracy {figure(now.accuracy, '.4f')}  "
        f"loss {figure(now.loss, '.4f')}  staleness {figure(now.staleness_mean, '.2f')}  "
        f"{now.updates_per_s:,.0f} updates/s  clients: {clients}"
    )


class ProgressPrinter:
    """Prints how the run stands in a thread of its own: whoever tells it never waits for whoever reads.

    Left as a context, it has printed what it was told.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._waiting: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="printer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)
        self._thread.join()

    def __call__(self, now: Progress) -> None:
        if self._waiting.qsize() < WAITING_MAX:
            self._waiting.put(now)

    def _run(self) -> None:
        while (now := self._waiting.get()) is not None:
            progress(now, as_json=self._as_json)


def outcome(end: Outcome, *, as_json: bool, clock: str) -> None:
    """How the run ended. clock: what kind of seconds they are."""
    if as_json:
        json_line("finished", asdict(end))
        return
    overflow = (
        f"{end.overflows} steps left the range of float32 and were not taken\n" if end.overflows else ""
    )
    updates = ", ".join(f"{count} {name}" for name, count in end.updates.items())
    line(
        f"{end.reason} at version {end.versions} after {end.seconds:.1f} s{clock}: "
        f"test accuracy {figure(end.test_accuracy, '.4f')}, mean staleness {figure(end.staleness_mean, '.2f')}, "
        f"updates: {updates}\n{overflow}{_fairness(end)}model digest {end.model_digest}"
    )


def _fairness(end: Outcome) -> str:
    over = end.fairness
    if over is None:
        return ""
    clients = "1 client" if over.clients == 1 else f"{over.clients} clients"
    oldest, newest = over.oldest_version, over.newest_version
    versions = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
    return (
        f"on the own test examples of {clients}, {versions}: "
        f"accuracy {over.mean:.4f} ± {figure(over.std, '.4f')}, worst tenth {over.worst_tenth:.4f}, "
        f"best tenth {over.best_tenth:.4f}\n"
    )


def injected(numbers: Mapping[str, Any]) -> str:
    """What an injector has done so far, as `unstale inject --json` tells it."""
    passed = numbers["up"] + numbers["down"]
    mean_s = numbers["delay_s"] / passed if passed else 0.0
    faults = ", ".join(f"{count} {name}" for name, count in sorted(numbers["faults"].items()) if count)
    lost = f"; {numbers['overflowed']} lost because the server took none" if numbers["overflowed"] else ""
    return (
        f"{numbers['up']} up, {numbers['down']} down, held up {mean_s:.3f} s on average; in flight "
        f"{numbers['in_flight_messages']} ({numbers['in_flight_bytes'] / 1e6:.1f} MB) on {numbers['connections']} "
        f"connections; touched: {faults or 'none'}{lost}"
    )


def figure(value: float | None, form: str) -> str:
    """A number in a form like `.4f`, or a dash where there is none: nothing was aggregated, or training diverged."""
    return "-" if value is None or not isfinite(value) else format(value, form)


def log_to_stderr() -> None:
    """What processes have to say while they run goes to stderr, with their name in front."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(name)s: %(message)s")


def stop_on_signals(stop: Callable[[int], None]) -> None:
    """SIGINT (Ctrl-C), SIGTERM and SIGHUP ask for a clean end; a second one ends the process at once.

    A SIGHUP that is ignored, as under nohup, stays so.
    stop: called with the signal's number, in a thread that waits for it. A signal handler would not do: it has to wait
    for the main thread, and that may be waiting on a lock, from which a signal that comes at the wrong moment does not
    wake it.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def listen() -> None:
        stop(reader.recv(1)[0])
        os._exit(128 + reader.recv(1)[0])

    threading.Thread(target=listen, name="signals", daemon=True).start()
    signal.set_wakeup_fd(writer.detach())  # it is written the number of each signal that has a handler
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda *_: None)


def stop_at_end_of_input(stop: Callable[[], None]) -> None:
    """Call `stop` in another thread when standard input has ended."""

    def listen() -> None:
        # Not through sys.stdin, whose lock the interpreter wants when it ends.
        while os.read(0, 1024):
            pass
        stop()

    threading.Thread(target=listen, name="input", daemon=True).start()
