"""A server with ten thousand real connections on this machine, to the end of a run.

A server process runs `k-async` with K = 100 and a model of 170 parameters; client processes of thousands answer each
task at once with an update of zeros. Nothing is trained, so the rate is that of server, sockets and clients on the
machine's cores. Once a second the status page is read: when all have joined, the rounds, the clients that were lost,
and the memory of the server with its gateways.

With --restart the server is killed (SIGKILL) once the clients have sent as many updates as there are clients, and
started again on its run directory. With --keys all connections are encrypted, with one key for each client process.
With --idle no task is answered: the clients only send heartbeats, each --heartbeat-s, until --keep-s. Messages are
counted by the client processes in each second in which all have joined.

    python -m benchmarks.ten_thousand [--clients 10000] [--processes 2] [--rounds 1000] [--gateways 1] [--keep-s 600]
        [--heartbeat-s 2] [--idle] [--restart] [--keys]
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.request import urlopen

import psutil

from benchmarks import report
from benchmarks.client_scale import InstantWorker
from unstale.net import keygen
from unstale.net.authorized_keys import SERVER, ClientIds
from unstale_client.jobs import Job, Settlement
from unstale_client.loop import ClientLoop, Observer
from unstale_client.net import keys
from unstale_proto.messages import Heartbeat, Message, Welcome

POLL_S = 1.0
CONNECTED = re.compile(rb'^unstale_connections{state="client"} (.+)$', re.MULTILINE)


# --- the processes of the clients ---


class IdleWorker(InstantWorker):
    """Never answers a task."""

    def submit(self, job: Job | Settlement) -> None:
        pass


class Counter(Observer):
    """Counts messages, and prints the counts of each second in which all clients of the process are welcome."""

    def __init__(self, clients: range) -> None:
        self._left = set(clients)
        self._second = 0
        self._heartbeats = self._messages = 0

    def received(self, client_id: int, message: Message, payload_bytes: int) -> None:  # noqa: ARG002  (as inherited)
        if isinstance(message, Welcome):
            self._left.discard(client_id)
        self._count(answered=isinstance(message, Heartbeat))

    def sent(self, client_id: int, message: Message, payload_bytes: int) -> None:  # noqa: ARG002  (as inherited)
        self._count(answered=False)

    def _count(self, *, answered: bool) -> None:
        second = int(time.monotonic())
        if second != self._second:
            if not self._left:
                print(json.dumps([self._second, self._heartbeats, self._messages]), flush=True)
            self._second, self._heartbeats, self._messages = second, 0, 0
        self._heartbeats += answered
        self._messages += 1


def host(address: str, clients: range, key: Path | None, *, idle: bool) -> None:
    """Host clients until the run is over."""
    ClientLoop(
        server=address,
        client_ids=clients,
        worker=IdleWorker if idle else InstantWorker,
        heartbeat_s=2.0,
        linger_s=1.0,
        identity=None if key is None else keys.identity(key, "--key"),
        observer=Counter(clients),
    ).run()


# --- the measurement ---


class Look(NamedTuple):
    """At the run, so many seconds after its clients were started."""

    at_s: float
    version: int
    active: int  # also those of an earlier server whose lease lasts
    connected: int  # have said hello to this server
    lost: int
    accepted: int
    memory_bytes: int
    status_bytes: int
    status_s: float  # that the status took
    metrics_bytes: int
    metrics_s: float


class Restart(NamedTuple):
    """Of a killed server. The times are seconds after the clients were started."""

    killed_s: float
    up_s: float  # the next server listens
    accepted: int  # updates, at the first look after it


class Server:
    """The server process, in a folder that outlives it."""

    def __init__(self, stack: ExitStack, folder: Path, *options: object) -> None:
        self._stack, self._options = stack, (*options, "--folder", folder)
        self._start()

    def _start(self, *options: object) -> None:
        self.process = _process(self._stack, "benchmarks.ten_thousand_server", *self._options, *options)
        assert self.process.stdout is not None
        addresses = json.loads(self.process.stdout.readline())
        self.address, self.http = addresses["address"], addresses["http"]

    def kill_and_start(self) -> None:
        self.process.kill()
        self.process.wait()
        self._start("--address", self.address)

    def outcome(self) -> dict[str, Any] | None:
        """None while it runs, and if it printed none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline() if self.process.poll() is not None else ""
        return json.loads(line) if line else None


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """One run, which ends after given.keep_s."""
    clients, parts = given.clients, parts_of(given.clients, given.processes)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = ("clients", "rounds", "gateways", "durability", "heartbeat_s")
        options = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in names]
        server = Server(stack, folder, *options, *(["--keys", _keys(folder, parts)] if given.keys else []))
        began_s = time.monotonic()
        keys_of = folder / "keys" if given.keys else None
        hosts = start_hosts(stack, server.address, parts, keys_of, *(["--idle"] if given.idle else []))
        looks: list[Look] = []
        restart: Restart | None = None
        while server.process.poll() is None and time.monotonic() < began_s + given.keep_s:
            time.sleep(POLL_S)
            now = look(server.http, server.process.pid, began_s)
            if now is None:
                continue
            looks.append(now)
            print(now, file=sys.stderr, flush=True)
            if given.restart and restart is None and now.accepted >= clients:
                killed_s = time.monotonic() - began_s
                server.kill_and_start()
                restart = Restart(killed_s, time.monotonic() - began_s, now.accepted)
                print(restart, file=sys.stderr, flush=True)
        ended_s = time.monotonic() - began_s
        outcome = server.outcome()
        return {
            "looks": looks,
            "outcome": outcome,
            "seconds": ended_s,
            "restart": restart,
            "messages": messages_of(hosts),
        }


def parts_of(clients: int, processes: int) -> list[tuple[int, int]]:
    """First client and number of clients of each process."""
    each = -(-clients // processes)
    return [(first, min(each, clients - first)) for first in range(0, clients, each)]


def start_hosts(
    stack: ExitStack, address: str, parts: list[tuple[int, int]], folder: Path | None, *options: str
) -> "list[subprocess.Popen[str]]":
    """Start processes of clients, which end with the stack. folder: of their keys; None for plain text."""
    found = []
    for first, count in parts:
        key = [] if folder is None else ["--key", folder / f"host-{first}.key_secret"]
        common = ("host", "--address", address, "--first", first, "--clients", count)
        found.append(_process(stack, "benchmarks.ten_thousand", *common, *key, *options))
    return found


def messages_of(hosts: "list[subprocess.Popen[str]]") -> list[tuple[int, int]]:
    """Answered heartbeats, and messages both ways, in each second for which all hosts have counted. Ends the hosts."""
    counts = []
    for process in hosts:
        process.terminate()
        lines = [json.loads(line) for line in process.communicate()[0].splitlines()]
        counts.append({second: (heartbeats, messages) for second, heartbeats, messages in lines})
    seconds = sorted(set.intersection(*(set(each) for each in counts)))
    return [(sum(each[one][0] for each in counts), sum(each[one][1] for each in counts)) for one in seconds]


def _keys(folder: Path, parts: list[tuple[int, int]]) -> Path:
    """A folder with keys of the server and of each client process."""
    keygen.create(folder / "keys", SERVER, None)
    for first, count in parts:
        keygen.create(folder / "keys", f"host-{first}", ClientIds.parse(f"{first}-{first + count - 1}", "--clients"))
    return folder / "keys"


def look(http: str, pid: int, began_s: float) -> Look | None:
    """A look at the run now; None if the server has ended, or does not answer."""
    try:
        status_text, status_s = _get(http, "status.json")
        metrics_text, metrics_s = _get(http, "metrics")
        process = psutil.Process(pid)
        memory = sum(one.memory_full_info().pss for one in (process, *process.children()))  # shared memory once
    except (OSError, psutil.Error):
        return None
    status = json.loads(status_text)
    states = status["clients"]
    active = sum(states.get(state, 0) for state in ("waiting", "working", "contributed", "unavailable"))
    accepted = status["updates"].get("accepted", 0)
    pages = (len(status_text), status_s, len(metrics_text), metrics_s)
    at_s = time.monotonic() - began_s
    connected = int(float(CONNECTED.search(metrics_text)[1]))  # type: ignore[index]
    return Look(at_s, status["state"]["version"], active, connected, states.get("lost", 0), accepted, memory, *pages)


def _get(http: str, page: str) -> tuple[bytes, float]:
    """A page, and the seconds that it took."""
    began_s = time.perf_counter()
    with urlopen(f"http://{http}/{page}", timeout=10) as answer:
        return answer.read(), time.perf_counter() - began_s


def _process(stack: ExitStack, module: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    return process


def markdown(figures: dict[str, Any], clients: int) -> str:
    """The figures as a table."""
    looks: list[Look] = figures["looks"]
    restart: Restart | None = figures["restart"]
    last = looks[-1]
    ended = f"{figures['seconds']:.0f} s"
    rows = [
        ["all have joined after", _seconds_until_all(looks, clients, 0.0)],
        ["end of the run after", ended if figures["outcome"] else f"not in {ended}"],
        ["rounds", f"{figures['outcome']['versions'] if figures['outcome'] else last.version:,}"],
        ["updates accepted a second, over the whole run", f"{last.accepted / last.at_s:,.0f}"],
        ["most clients lost at a time", f"{max(one.lost for one in looks):,}"],
        ["most memory of the server and its gateways", report.megabytes(max(one.memory_bytes for one in looks))],
        _page_row("status page", [(one.status_bytes, one.status_s) for one in looks]),
        _page_row("metrics", [(one.metrics_bytes, one.metrics_s) for one in looks]),
    ]
    if figures["messages"]:
        heartbeats, messages = zip(*figures["messages"], strict=True)
        rows += [
            ["heartbeats answered a second, after all have joined", report.median_and_spread(heartbeats, ",.0f")],
            ["messages a second, both ways, after that", report.median_and_spread(messages, ",.0f")],
        ]
    if restart is not None:
        after = [one for one in looks if one.at_s > restart.up_s]
        rate = (last.accepted - restart.accepted) / (last.at_s - restart.up_s)
        rows += [
            ["next server listens, after the kill", f"{restart.up_s - restart.killed_s:.1f} s"],
            ["all have said hello again, after that", _seconds_until_all(after, clients, restart.up_s)],
            ["most clients lost at a time, after that", f"{max((one.lost for one in after), default=0):,}"],
            ["updates accepted a second, after that", f"{rate:,.0f}"],
        ]
    return report.table(["", f"{clients:,} clients"], rows)


def _seconds_until_all(looks: list[Look], clients: int, since_s: float) -> str:
    found = next((one.at_s - since_s for one in looks if one.connected == clients), None)
    return "-" if found is None else f"{found:.0f} s"


def _page_row(name: str, answers: list[tuple[int, float]]) -> list[str]:
    sizes, seconds = zip(*answers, strict=True)
    return [f"{name}: largest, median time", f"{max(sizes) / 1000:.0f} KB, {1000 * median(seconds):.0f} ms"]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", nargs="?", choices=["host"])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--durability", default="normal")
    parser.add_argument("--keep-s", type=float, default=600.0)
    parser.add_argument("--address")
    parser.add_argument("--first", type=int)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--heartbeat-s", type=float, default=2.0)
    parser.add_argument("--idle", action="store_true", help="the clients answer no task")
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--keys", action="store_true")
    parser.add_argument("--quick", action="store_true", help="300 clients, 30 rounds")
    given = parser.parse_args(arguments)
    if given.quick:
        given.clients, given.rounds = 300, 30
    return given


def main() -> None:
    given = parsed()
    if given.part == "host":
        host(given.address, range(given.first, given.first + given.clients), given.key, idle=given.idle)
    else:
        print(markdown(measure(given), given.clients))


if __name__ == "__main__":
    main()
