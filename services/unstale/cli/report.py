"""How a run is told to a person, line by line, or to a program, as JSON lines."""

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from unstale.metrics.progress import Outcome, Progress


def json_line(event: str, facts: Mapping[str, Any]) -> None:
    """One JSON object on a line of standard output. What is not a number is null."""
    plain = {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in facts.items()
    }
    print(json.dumps({"event": event, **plain}), flush=True)


def progress(now: Progress, *, as_json: bool) -> None:
    """How the run stands."""
    if as_json:
        json_line("progress", asdict(now))
        return
    clients = ", ".join(f"{count} {state}" for state, count in now.clients.items() if count)
    print(
        f"version {now.version:>5}/{now.rounds}  accuracy {now.accuracy:.4f}  loss {now.loss:.4f}  "
        f"staleness {rounds_late(now.staleness_mean)}  {now.updates_per_s:,.0f} updates/s  clients: {clients}",
        flush=True,
    )


def outcome(end: Outcome, *, as_json: bool, clock: str) -> None:
    """How the run ended. clock: what kind of seconds they are."""
    if as_json:
        json_line("finished", asdict(end))
        return
    overflow = (
        f"{end.overflows} steps left the range of float32 and were not taken\n" if end.overflows else ""
    )
    updates = ", ".join(f"{count} {name}" for name, count in end.updates.items())
    print(
        f"{end.reason} at version {end.versions} after {end.seconds:.1f} s{clock}: "
        f"test accuracy {end.test_accuracy:.4f}, mean staleness {rounds_late(end.staleness_mean)}, updates: {updates}\n"
        f"{overflow}model digest {end.model_digest}",
        flush=True,
    )


def rounds_late(staleness: float) -> str:
    """A mean staleness, or a dash where nothing was aggregated."""
    return f"{staleness:.2f}" if isfinite(staleness) else "-"


def log_to_stderr() -> None:
    """What processes have to say while they run goes to stderr, with their name in front."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(name)s: %(message)s")


def stop_on_signals(stop: Callable[[], None]) -> None:
    """SIGINT (Ctrl-C) and SIGTERM ask for a clean end; a second one ends the process at once.

    stop: called in a thread that waits for them. A signal handler would not do: it has to wait for the main thread,
    and that may be waiting on a lock, from which a signal that comes at the wrong moment does not wake it.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def listen() -> None:
        reader.recv(1)
        stop()
        os._exit(128 + reader.recv(1)[0])

    threading.Thread(target=listen, name="signals", daemon=True).start()
    signal.set_wakeup_fd(writer.detach())  # it is written the number of each signal that has a handler
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
