"""Print a run, as lines for people or as JSON lines, and handle signals."""

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
from pathlib import Path
from typing import Any, Self

from unstale.metrics.named import formatted
from unstale.metrics.progress import Outcome, Progress
from unstale.metrics.spread import Spread, means
from unstale.report.content import count

log = logging.getLogger("unstale")

WAITING_MAX = 10_000  # progress lines for a slow reader, some MB; further ones are dropped


def line(text: str) -> None:
    """Print a line and flush. A run continues after a failure of standard output, such as `| head -1` causes."""
    try:
        print(text, flush=True)
    except OSError as error:
        log.warning("standard output: %s; nothing more is printed", (error.strerror or str(error)).lower())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_line(event: str, facts: Mapping[str, Any]) -> None:
    """Print a JSON object on a line, with null for numbers that are not finite."""
    line(json.dumps({"event": event, **_plain(facts)}))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not isfinite(value) else value


def progress(now: Progress, *, as_json: bool) -> None:
    """Print the progress of a run."""
    if as_json:
        json_line("progress", {**asdict(now), **accuracy_and_loss(now.metrics)})
        return
    clients = ", ".join(f"{number} {state}" for state, number in now.clients.items() if number)
    line(
        f"version {now.version:>5}/{now.rounds}  {_measured(now)}  staleness {figure(now.staleness_mean, '.2f')}  "
        f"{now.updates_per_s:,.0f} updates/s  clients: {clients}"
    )


class ProgressPrinter:
    """Prints progress in its own thread, so that a slow reader does not delay the run. Leaving the context waits."""

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


def outcome(end: Outcome, *, as_json: bool, clock: str = "") -> None:
    """Print the result of a run. clock: follows the seconds."""
    if as_json:
        json_line("finished", {**asdict(end), **accuracy_and_loss(end.metrics, "test_")})
        return
    overflow = f"{end.overflows} steps left the range of float32 and were skipped\n" if end.overflows else ""
    missed = f"{end.missed}\n" if end.missed else ""
    updates = ", ".join(f"{number} {name}" for name, number in end.updates.items())
    line(
        f"{end.reason} at version {end.versions} after {end.seconds:.1f} s{clock}: "
        f"{_result(end)}, mean staleness {figure(end.staleness_mean, '.2f')}, "
        f"updates: {updates}\n{missed}{overflow}{_fairness(end)}model digest {end.model_digest}"
    )


def _measured(now: Progress) -> str:
    """Return the metrics on the test set, or the means over the clients where there is none."""
    if now.metrics:
        return named(now.metrics, "  ")
    of, spreads = _of_clients(now)
    return f"{of} {named(means(spreads), '  ')}" if spreads else "not measured"


def _result(end: Outcome) -> str:
    """Return the main metric, or the first one that there is, on the test set or over the clients."""
    if end.metrics:
        return f"test {named(dict([*end.metrics.items()][:1]))}"
    of, spreads = _of_clients(end)
    return f"{of} {named(dict([*means(spreads).items()][:1]))}" if spreads else "test accuracy -"


def _of_clients(run: Progress | Outcome) -> tuple[str, Mapping[str, Spread]]:
    return ("clients", run.client_metrics) if run.client_metrics else ("training", run.training_metrics)


def _fairness(end: Outcome) -> str:
    clients = end.fairness
    if clients is None:
        return ""
    oldest, newest = clients.oldest_version, clients.newest_version
    versions = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
    return (
        f"on the own test examples of {count(clients.clients, 'client')}, {versions}: "
        f"accuracy {clients.mean:.4f} ± {figure(clients.std, '.4f')}, worst tenth {clients.worst_tenth:.4f}, "
        f"best tenth {clients.best_tenth:.4f}\n"
    )


def injected(numbers: Mapping[str, Any]) -> str:
    """Return a line on the messages of an injector. numbers: of the event `injected`."""
    passed = numbers["up"] + numbers["down"]
    mean_s = numbers["delay_s"] / passed if passed else 0.0
    faults = ", ".join(f"{number} {name}" for name, number in sorted(numbers["faults"].items()) if number)
    lost = f"; {numbers['overflowed']} lost because the server took none" if numbers["overflowed"] else ""
    return (
        f"{numbers['up']} up, {numbers['down']} down, delayed {mean_s:.3f} s on average; in flight "
        f"{numbers['in_flight_messages']} ({numbers['in_flight_bytes'] / 1e6:.1f} MB) on {numbers['connections']} "
        f"connections; affected: {faults or 'none'}{lost}"
    )


def named(metrics: Mapping[str, float], between: str = ", ") -> str:
    """Return metrics as text: `accuracy 0.9712, loss 0.1034`."""
    return between.join(f"{name} {figure(value, '.4f')}" for name, value in metrics.items())


def accuracy_and_loss(metrics: Mapping[str, float], prefix: str = "") -> dict[str, float | None]:
    """Return the keys of a JSON line that every run has had since version 0.1; null for a metric that there is not."""
    return {f"{prefix}{name}": metrics.get(name) for name in ("accuracy", "loss")}


def figure(value: float | None, form: str) -> str:
    """Return a number in a form like `.4f`, or a dash for None and for numbers that are not finite."""
    return "-" if value is None or not isfinite(value) else formatted(value, form)


def log_to_stderr() -> None:
    """Log to stderr, each line with the name of its logger."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(name)s: %(message)s")


def stop_on_signals(stop: Callable[[int], None]) -> None:
    """Stop at SIGINT (Ctrl-C), SIGTERM and SIGHUP; a second one ends the process at once.

    An ignored SIGHUP, as under nohup, stays ignored.

    Args:
        stop: called with the number of the signal, in another thread. A signal handler has to wait for the main
            thread, which may wait for a lock that a signal does not interrupt.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def listen() -> None:
        stop(reader.recv(1)[0])
        os._exit(128 + reader.recv(1)[0])

    threading.Thread(target=listen, name="signals", daemon=True).start()
    signal.set_wakeup_fd(writer.detach())  # receives the number of each signal that has a handler
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda *_: None)


def stop_at_end_of_input(stop: Callable[[], None]) -> None:
    """Call a function in another thread when standard input ends."""

    def listen() -> None:
        while os.read(0, 1024):  # not sys.stdin, whose lock the interpreter needs at its end
            pass
        stop()

    threading.Thread(target=listen, name="input", daemon=True).start()
